"""Files that browsers send: written to disk as they come, bounded, refused before they are read, gone afterwards."""

from __future__ import annotations

import io
import json
import shutil
from collections import namedtuple
from http import HTTPStatus
from typing import Any

import pytest
from aiohttp import FormData

from duobus.console import uploads
from duobus.console.uploads import Upload
from duobus.console.visits import Redirect, Screen, Visit
from duobus.model.descriptions import QueueDescription
from kits.console import ConsoleClient, Page, console
from kits.gateway import in_loop

QUEUE = QueueDescription(name="orders", max_message_size_bytes=2 << 20)


def trial(found: list[Upload], *, file_max: int | None, keeps: bool = False) -> Screen:
    """A screen that takes a file from whoever may send."""
    screen = Screen("trial")

    @screen.post("/trial", right="send", file_max=file_max)
    async def take(visit: Visit) -> Redirect:
        file = visit.files["file"]
        found.append(file.keep() if keeps else file)
        assert file.read() == b"x" * file.size
        return Redirect("/")

    return screen


def form_with(size: int, **fields: str) -> FormData:
    form = FormData(fields)
    form.add_field("file", io.BytesIO(b"x" * size), filename="file.bin")
    return form


async def send(client: ConsoleClient, form: FormData, path: str = "/trial") -> Page:
    """Send a form whose token is among its fields."""
    return await client.ask("POST", path, data=form, headers={"Origin": client.url, "Accept": "text/html"})


@pytest.mark.parametrize("size", [1_000, 3 << 20])
@pytest.mark.parametrize("keeps", [False, True])
@in_loop
async def test_a_file_is_gone_with_the_request_unless_a_screen_keeps_it(size: int, keeps: bool) -> None:
    found: list[Upload] = []
    async with console(QUEUE, screens=(trial(found, file_max=None, keeps=keeps),), request_bytes_max=10_000) as client:
        page = await send(client, form_with(size, csrf=client.csrf))
        assert page.status == HTTPStatus.SEE_OTHER, page
        (file,) = found
        assert (file.size, file.file.closed) == (size, not keeps)
        file.close()


@in_loop
async def test_a_file_above_its_bound_is_refused_and_its_bytes_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    make = uploads.tempfile.SpooledTemporaryFile
    monkeypatch.setattr(uploads.tempfile, "SpooledTemporaryFile", lambda size: opened.append(make(size)) or opened[-1])
    async with console(QUEUE, screens=(trial([], file_max=1 << 20),)) as client:
        page = await send(client, form_with((1 << 20) + 1, csrf=client.csrf))
        assert page.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        assert "more than 1 MiB" in page.words
        assert [file.closed for file in opened] == [True]


@in_loop
async def test_nothing_of_a_file_is_read_for_somebody_who_may_not_send_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*_: object) -> Upload:
        raise AssertionError("The file was read.")

    monkeypatch.setattr(uploads, "_to_disk", read)
    async with console(QUEUE, screens=(trial([], file_max=None),), right="listen") as client:
        page = await send(client, form_with(10, csrf=client.csrf))
        assert page.status == HTTPStatus.FORBIDDEN
        assert "needs the right Send" in page.words
    async with console(QUEUE, screens=(trial([], file_max=None),)) as client:
        late = form_with(10)
        late.add_field("csrf", client.csrf)
        for form in (form_with(10, csrf="wrong"), late):
            page = await send(client, form)
            assert page.status == HTTPStatus.FORBIDDEN


@in_loop
async def test_a_form_without_files_takes_none() -> None:
    found: list[Upload] = []
    async with console(QUEUE, screens=(trial(found, file_max=0),)) as client:
        page = await send(client, form_with(10, csrf=client.csrf))
        assert page.status == HTTPStatus.UNPROCESSABLE_ENTITY
        assert "takes no file" in page.words
        assert found == []


@in_loop
async def test_a_file_for_which_the_disk_has_no_room_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    async with console(QUEUE, screens=(trial([], file_max=None),)) as client:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(uploads.SPARED_BYTES - 1))
        page = await send(client, form_with(uploads._LOOK_BYTES + 1, csrf=client.csrf))
        assert page.status == HTTPStatus.INSUFFICIENT_STORAGE
        assert "no room for this file" in page.words


@in_loop
async def test_fields_of_a_form_with_files_are_bounded_together() -> None:
    found: list[Upload] = []
    async with console(QUEUE, screens=(trial(found, file_max=None),), request_bytes_max=10_000) as client:
        page = await send(client, form_with(10, csrf=client.csrf, one="x" * 6_000, other="x" * 6_000))
        assert page.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        assert found == []


@in_loop
async def test_a_file_that_is_larger_than_a_request_becomes_the_body_of_a_message() -> None:
    async with console(QUEUE, request_bytes_max=100_000) as client:
        form = FormData({"csrf": client.csrf, "kind": "file", "count": "2", "do": "send"})
        form.add_field("file", b"\xff" * 1_000_000, filename="file.bin")
        page = await send(client, form, "/send/orders")
        assert page.status == HTTPStatus.SEE_OTHER, page
        rows = (await client.data("/messages/orders?columns=number,size"))["rows"]
        assert [row["size"] > 1_000_000 for row in rows] == [True, True]
        body = await client.session.get(f"{client.url}/messages/orders?number={rows[0]['number']}&download=body")
        assert await body.read() == b"\xff" * 1_000_000


@in_loop
async def test_a_file_of_many_messages_is_sent_portion_by_portion_in_its_order() -> None:
    async with console(QUEUE) as client:
        lines = [json.dumps({"body": {"data": [f"{number}"]}}) for number in range(1_200)]
        form = FormData({"csrf": client.csrf})
        form.add_field("lines", "\n".join(lines).encode(), filename="messages.jsonl")
        page = await send(client, form, "/send-file/orders")
        assert page.status == HTTPStatus.SEE_OTHER, page
        rows: list[Any] = []
        following = 0
        while following is not None:
            found = await client.data(f"/messages/orders?columns=body&count=200&from={following}")
            rows += found["rows"]
            following = found["next"]
        assert [row["body"] for row in rows] == [f"{number}" for number in range(1_200)]
