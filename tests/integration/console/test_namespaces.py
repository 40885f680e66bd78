"""Several namespaces in one console: saved ones, going from one to another, and one beside another."""

from __future__ import annotations

import json
import stat
from http import HTTPStatus
from pathlib import Path

import pytest

from duobus.console.profiles import Profile, Profiles
from duobus.console.sessions import OTHERS_MAX
from duobus.console.visits import Screen, View, Visit
from duobus.errors import ArgumentInvalid, ConfigurationError
from duobus.model.descriptions import QueueDescription
from kits.console import SENDER, ConsoleClient, broker, connection_string, console_of
from kits.gateway import in_loop

AZURE = "Endpoint=sb://shop.servicebus.windows.net;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0"


def test_profiles_are_kept_in_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    profiles = Profiles(tmp_path / "more" / "profiles.json")
    assert profiles.read() == []
    profiles.add(Profile("shop", AZURE))
    profiles.add(Profile("here", "Endpoint=sb://localhost;UseDevelopmentEmulator=true", "http://localhost:5300"))
    profiles.add(Profile("shop", AZURE.replace("Root", "Other")))
    assert [one.name for one in profiles.read()] == ["here", "shop"]
    assert profiles.read()[1].address.rule_name == "Other"
    assert profiles.read()[0].address.url == "http://localhost:5300"
    assert stat.S_IMODE((tmp_path / "more" / "profiles.json").stat().st_mode) == 0o600
    assert [path.name for path in (tmp_path / "more").iterdir()] == ["profiles.json"]
    profiles.remove("here")
    profiles.remove("missing")
    assert [one.name for one in profiles.read()] == ["shop"]


def test_a_file_that_others_can_read_is_refused_and_told_how_to_cure(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    Profiles(path).add(Profile("shop", AZURE))
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        Profiles(path).read()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"profiles": [{"name": "a"}]}', '{"profiles": [{"name": "a", "connectionString": "x"}]}']
)
def test_a_file_that_is_no_list_of_profiles_is_refused_without_its_contents(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="is no file of profiles"):
        Profiles(path).read()


@pytest.mark.parametrize("name", ["", " ", "x" * 81, "a\nb"])
def test_a_name_that_no_page_could_show_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentInvalid):
        Profiles(tmp_path / "profiles.json").add(Profile(name, AZURE))


async def by_code(client: ConsoleClient) -> None:
    page = await client.sign_in_with(kind="code", namespace=client.place, code=client.console.access_code)
    assert page.status == HTTPStatus.SEE_OTHER


@in_loop
async def test_who_came_with_the_code_saves_a_namespace_and_goes_there(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    async with (
        broker(QueueDescription(name="one")) as first,
        broker(QueueDescription(name="two"), QueueDescription(name="three")) as second,
        console_of(first, right=None, profiles=path) as client,
    ):
        await by_code(client)
        wrong = await client.post("/namespaces/add", {"name": "x", "connection_string": "no"})
        assert wrong.status == HTTPStatus.UNPROCESSABLE_ENTITY
        text = connection_string(second)
        assert (await client.post("/namespaces/add", {"name": "second", "connection_string": text})).status == 303
        page = await client.get("/namespaces")
        assert "second is saved." in page.words
        assert text not in page.text
        assert json.loads(path.read_text())["profiles"][0]["connectionString"] == text
        assert (await client.data("/"))["queues"] == 1
        assert (await client.post("/namespaces/open", {"name": "second"})).status == 303
        assert (await client.data("/"))["queues"] == 2
        assert (await client.post("/namespaces/open", {"name": "elsewhere"})).status == 404
        gone = await client.post("/namespaces/remove", {"name": "second", "confirm": "second"})
        assert gone.status == HTTPStatus.SEE_OTHER
        assert json.loads(path.read_text()) == {"profiles": []}


@in_loop
async def test_a_page_of_the_namespace_before_changes_nothing_in_the_namespace_after() -> None:
    async with broker() as server, console_of(server, right=None) as client:
        await by_code(client)
        old = client.csrf
        await client.post("/namespaces/open", {"name": client.place})
        page = await client.post("/namespaces/add", {}, **{"X-CSRF-Token": old})
        assert page.status == HTTPStatus.FORBIDDEN
        assert "session has changed" in page.words


@in_loop
async def test_who_came_with_a_key_neither_sees_nor_opens_nor_changes_what_is_saved(tmp_path: Path) -> None:
    Profiles(tmp_path / "profiles.json").add(Profile("shop", AZURE))
    async with broker() as server, console_of(server, right="manage", profiles=tmp_path / "profiles.json") as client:
        assert "shop" not in (await client.get("/namespaces")).words
        assert (await client.data("/namespaces"))["entries"] == []
        for path, fields in (
            ("open", {"name": "shop"}),
            ("add", {"name": "mine", "connection_string": AZURE}),
            ("remove", {"name": "shop", "confirm": "shop"}),
        ):
            page = await client.post(f"/namespaces/{path}", fields)
            assert page.status == HTTPStatus.FORBIDDEN
        assert [one.name for one in Profiles(tmp_path / "profiles.json").read()] == ["shop"]


@in_loop
async def test_a_screen_opens_other_namespaces_beside_that_of_the_session(tmp_path: Path) -> None:
    screen = Screen("pair")

    @screen.get("/pair")
    async def show(visit: Visit) -> View:
        other = await visit.other(name=visit.query.get("name", ""), connection_string=visit.query.get("text", ""))
        again = await visit.other(connection_string=other.address.text)
        data = {"same": again is other, "rule": other.rule_name, "saved": visit.saved_namespaces}
        return View("failure.html", "Pair", data)

    async with broker() as one, broker() as two:
        Profiles(tmp_path / "profiles.json").add(Profile("two", connection_string(two)))
        async with console_of(one, right=None, profiles=tmp_path / "profiles.json", screens=(screen,)) as client:
            await client.sign_in()
            found = await client.ask(
                "GET", "/pair", params={"text": connection_string(two, "send")}, headers={"Accept": "application/json"}
            )
            assert found.json == {"same": True, "rule": SENDER.name, "saved": []}
            assert (await client.get("/pair?name=two")).status == HTTPStatus.NOT_FOUND
            await client.post("/sign-out")
            await by_code(client)
            assert (await client.data("/pair?name=two"))["saved"] == [client.place, "two"]
            (session,) = client.console.sessions.all()
            (other,) = session.others.values()
            for _ in range(OTHERS_MAX + 1):
                session.others[str(len(session.others))] = other
            await session.add_other(other)
            assert len(session.others) == OTHERS_MAX
