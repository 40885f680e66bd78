"""A data folder goes from earlier commits' own code to today's and back, as ``docs/how-to/upgrade.md`` says (I65).

The earlier code comes out of the history that the clone holds; without that history the tests are skipped and counted.
``make upgrades`` runs them with one commit more.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import apsw
import pytest
from azure.servicebus.exceptions import ServiceBusError
from program_formats import keep

from duobus.cli.remote import Remote, operate
from duobus.codec import Int
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_rows import DEFAULT_RULE_NAME
from duobus.testing.server import DemoFailed, ServerProcess, queues_config
from kits.earlier_commits import COMMITS, FIRST, MARKS, ROOT, EarlierServer, package_of, unpack_commit, words_before
from kits.prompt_sdk import prompt_sdk
from kits.raw_client import RawClient
from kits.server_contents import KEY, RULE, AdminEndpoint, client_of, configuration, fill, survey, text

PAGE: Final = ROOT / "docs" / "how-to" / "upgrade.md"
OPTIONS: Final = ("--emulator", "--stores", "2")
#: What stays the same and is told differently:
TOLD_DIFFERENTLY: Final = re.compile(
    # by some versions only, or in an order of their own;
    "/(Sql|Correlation)FilterCount|/AuthorizationRules/"
    # the queue in which these tests leave messages;
    "|^queue bought /(CountDetails/|MessageCount|SizeInBytes)"
    # the first version told no deliveries of dead letters until its next start; this message is locked at a stop.
    "|/dead letters [0-9]+ delivery_count|^plain 2 delivery_count"
)
#: Reads an outbox and a file of seen ids with the package of whatever commit is on the path.
READ_CLIENT_FILES: Final = """
import sys
from pathlib import Path
try:
    from duobus.ha.outbox.queue import Outbox
except ModuleNotFoundError:
    from duobus.ha.outbox import Outbox
from duobus.ha.deduplication import SeenMessages
folder = Path(sys.argv[1])
with Outbox(folder / "outbox.db") as outbox:
    print(outbox.depth.messages, len(outbox.set_aside()))
with SeenMessages(folder / "seen.db") as seen:
    print(len(seen), seen.result("with a result"))
"""

pytestmark = [
    pytest.mark.slow,
    # The SDK leaves sockets to the collector when a server ends.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module", params=COMMITS)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package of an earlier commit is imported from."""
    return unpack_commit(request.param, tmp_path_factory.mktemp(request.param))


#: For what an earlier commit cannot do: the first one alone.
of_the_first = pytest.mark.parametrize("source", [FIRST], indirect=True)


@pytest.fixture(autouse=True)
def prompt() -> Iterator[None]:
    with prompt_sdk():
        yield


class TwoVersions:
    """Servers of an earlier commit and of today for one data folder, one at a time."""

    def __init__(self, folder: Path, source: Path, config: dict[str, Any], *options: str) -> None:
        self.data = folder / "data"
        chosen = {"config": config, "data": self.data, "arguments": (*OPTIONS, *options)}
        self.old = EarlierServer(source, folder / "old", **chosen)
        self.new = ServerProcess(folder / "new", **chosen)


def found_by(server: ServerProcess) -> dict[str, Any]:
    """Everything that a client finds."""
    with client_of(server.connection_string) as client:
        return survey(client, AdminEndpoint(server.ready["admin_url"]))


def demand_same(expected: dict[str, Any], found: dict[str, Any]) -> None:
    """Nothing is missing, added or changed. What a version tells in its own way is left out."""
    assert found["states"] == expected["states"]
    assert members_of(found) == members_of(expected)


def members_of(found: dict[str, Any]) -> dict[str, str]:
    """What was found, member by member, by where it stands."""
    members: dict[str, str] = {}
    for name, about in found["entities"].items():
        members |= {f"{name} {key}": value for key, value in about.items()}
    for place, messages in found["messages"].items():
        for number, about in enumerate(messages):
            members |= {f"{place} {number} {key}": value for key, value in about.items()}
    return {where: value for where, value in members.items() if not TOLD_DIFFERENTLY.search(where)}


def test_a_server_of_an_earlier_commit_runs_the_earlier_package(source: Path) -> None:
    assert package_of(words_before(source)) == source / "duobus"


def test_a_data_folder_is_upgraded_and_goes_back_and_forth_with_everything_in_it(tmp_path: Path, source: Path) -> None:
    versions = TwoVersions(tmp_path, source, configuration())
    with versions.old as server:
        with client_of(server.connection_string) as client:
            fill(client, AdminEndpoint(server.ready["admin_url"]))
        expected = found_by(server)
    before = len(expected["messages"]["bought"])
    left: list[str] = []
    for life, server in enumerate((versions.new, versions.old, versions.new)):
        with server:
            found = found_by(server)
            bought = found["messages"]["bought"]
            found["messages"]["bought"] = bought[:before]
            demand_same(expected, found)
            assert [message["body"] for message in bought[before:]] == left
            # What one version leaves behind, the other one has to find, too.
            with client_of(server.connection_string) as client, client.get_queue_sender("bought") as sender:
                sender.send_messages(text(f"left {life}"))
            left.append(repr([f"left {life}".encode()]))


def test_a_backup_of_today_is_restored_by_an_earlier_commit(tmp_path: Path, source: Path) -> None:
    versions = TwoVersions(tmp_path, source, queues_config({"kept": {}}), "--backup-to", str(tmp_path / "backups"))
    with versions.new as server:
        leave(server, "in the backup")
        address = {"DUOBUS_CONNECTION_STRING": server.connection_string}
        assert run([], "backup", "--endpoint", server.ready["admin_url"], **address) == 0
    (backup,) = (tmp_path / "backups").iterdir()
    assert run(words_before(source), "restore", "--from", str(backup), "--data", str(tmp_path / "restored")) == 0
    with EarlierServer(source, tmp_path / "again", data=tmp_path / "restored", arguments=OPTIONS) as server:
        assert kept(server) == ["in the backup"]


def test_relays_are_back_after_a_life_of_an_earlier_commit_and_in_a_restored_backup(
    tmp_path: Path, source: Path
) -> None:
    versions = TwoVersions(tmp_path, source, queues_config({"kept": {}}), "--backup-to", str(tmp_path / "backups"))
    key = {"keyName": "own", "primaryKey": "one", "secondaryKey": "two", "rights": ["Listen"]}
    with versions.new as server:
        leave(server, "beside the relay")
        operate(
            remote_of(server), "PUT", "relays/shop/web", None, {"userMetadata": "mine", "authorizationRules": [key]}
        )
        made = relays_of(server)
        assert run([], "backup", "--endpoint", server.ready["admin_url"], **address_of(server)) == 0
    # An earlier version leaves what it does not know alone, and serves the rest.
    with versions.old as server:
        assert kept(server) == ["beside the relay"]
        leave(server, "by the earlier version")
    with versions.new as server:
        assert relays_of(server) == made
        assert kept(server) == ["beside the relay", "by the earlier version"]
        operate(remote_of(server), "DELETE", "relays/shop/web")
    (backup,) = (tmp_path / "backups").iterdir()
    assert run([], "restore", "--from", str(backup), "--data", str(tmp_path / "restored")) == 0
    with ServerProcess(tmp_path / "again", data=tmp_path / "restored", arguments=OPTIONS) as server:
        assert relays_of(server) == made


def remote_of(server: ServerProcess) -> Remote:
    """What commands ask a server by."""
    return Remote(server.connection_string, server.ready["admin_url"], None)


def address_of(server: ServerProcess) -> dict[str, str]:
    """The environment in which commands find a server."""
    return {"DUOBUS_CONNECTION_STRING": server.connection_string}


def relays_of(server: ServerProcess) -> list[Any]:
    """The relays of a server with their properties, rules and keys."""
    found: list[Any] = operate(remote_of(server), "GET", "relays", {"keys": "true"})
    return found


@of_the_first
def test_after_a_kill_and_a_life_of_a_version_without_marks_the_marks_have_to_go(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier version empties a log of which the mark says that the store needs it.

    It would not open a store that was killed with a journal; ``duobus store write-back`` leaves no mark that has to go.
    """
    monkeypatch.setenv("DUOBUS_JOURNAL", "0")
    versions = TwoVersions(tmp_path, source, queues_config({"kept": {}}))
    with versions.new as server:
        leave(server, "before the kill")
        server.kill()
    with versions.old as server:
        leave(server, "by the earlier version")
        assert kept(server) == ["before the kill", "by the earlier version"]
    with versions.new as server, pytest.raises(ServiceBusError, match="store's log is empty, or another file stands"):
        kept(server)
    for mark in (versions.data / "stores").glob("*.mark"):
        mark.unlink()
    with versions.new as server:
        assert kept(server) == ["before the kill", "by the earlier version"]


@of_the_first
def test_a_version_that_does_not_know_a_null_property_does_not_start_until_the_rule_is_gone(
    tmp_path: Path, source: Path
) -> None:
    config = queues_config({"kept": {}})
    (namespace,) = config["UserConfig"]["Namespaces"]
    namespace["Topics"] = [{"Name": "news", "Properties": {}, "Subscriptions": [{"Name": "all", "Properties": {}}]}]
    versions = TwoVersions(tmp_path, source, config)
    with versions.new as server:
        leave(server, "beside the rule")
        described = {"correlation-filter": {"label": "x", "properties": {"color": None, "size": Int(1)}}}
        ask_about_rules(server, "add-rule", {"rule-name": "picky", "rule-description": described})
    assert found_by_the_page(versions.data / "catalog.db") == [("news/Subscriptions/all", "picky", "color")]
    with pytest.raises(DemoFailed, match="Rule 'picky': The value of 'color' is a string, number or boolean"):
        versions.old.start()
    with versions.new as server:
        ask_about_rules(server, "remove-rule", {"rule-name": "picky"})
    assert found_by_the_page(versions.data / "catalog.db") == []
    with versions.old as server:
        assert kept(server) == ["beside the rule"]


@pytest.mark.parametrize("source", [MARKS], indirect=True)
def test_a_version_without_keys_removes_a_rule_of_no_file_and_does_not_start_without_the_default_rule(
    tmp_path: Path, source: Path
) -> None:
    config = queues_config({"kept": {}})
    data = tmp_path / "data"
    old = EarlierServer(source, tmp_path / "old", config=config, data=data, arguments=("--stores", "1"))
    new = ServerProcess(tmp_path / "new", config=config, data=data, arguments=("--stores", "1"))
    key = ("--data", str(data), "--rights", "manage")
    with new:
        assert run([], "key", "add", "boss", *key) == 0
        assert run([], "key", "remove", DEFAULT_RULE_NAME, *key[:2], "--yes") == 0
    assert rules_in(data) == ["boss"]
    with pytest.raises(DemoFailed, match=f"KeyError: '{DEFAULT_RULE_NAME}'"):
        old.start()
    assert run([], "key", "add", DEFAULT_RULE_NAME, *key) == 0
    with old:
        pass
    assert rules_in(data) == [DEFAULT_RULE_NAME]


def test_an_outbox_and_seen_ids_of_today_are_read_by_an_earlier_commit(tmp_path: Path, source: Path) -> None:
    asyncio.run(keep(tmp_path))
    command = [*words_before(source), sys.executable, "-c", READ_CLIENT_FILES, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, check=False, text=True)
    assert found.stdout.split("\n")[:2] == ["3 1", "3 b'\\x00result'"], found.stderr


def run(words: list[str], *arguments: str, **more: str) -> int:
    """Run a command of duobus; its exit status."""
    command = [*words, sys.executable, "-m", "duobus", *arguments]
    return subprocess.run(command, env=os.environ | more, capture_output=True, check=False).returncode


def found_by_the_page(catalog: Path) -> list[tuple[Any, ...]]:
    """What the statement of the page on upgrades finds in a catalog."""
    (statement,) = re.findall("```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    with closing(apsw.Connection(str(catalog), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        return list(db.execute(statement))


def rules_in(data: Path) -> list[str]:
    """Names of the access rules of the only namespace in a catalog that nobody uses."""
    with closing(SqliteCatalog(data / "catalog.db")) as catalog:
        (namespace,) = catalog.read().namespaces
    return sorted(rule.name for rule in namespace.rules)


def leave(server: ServerProcess, body: str) -> None:
    """Leave a message in the queue."""
    with client_of(server.connection_string) as client, client.get_queue_sender("kept") as sender:
        sender.send_messages(text(body))


def kept(server: ServerProcess) -> list[str]:
    """What lies in the queue."""
    with client_of(server.connection_string) as client, client.get_queue_receiver("kept") as receiver:
        return [str(message) for message in receiver.peek_messages(10)]


def ask_about_rules(server: ServerProcess, operation: str, body: dict[str, Any]) -> None:
    """Ask the management node of the subscription, which takes a null where HTTP has none."""
    login = f"\0{RULE}\0{KEY}".encode()
    with RawClient(server.ready["amqp_port"], mechanism="PLAIN", response=login) as client:
        properties = {"operation": f"com.microsoft:{operation}"}
        found, _, _ = client.request("news/Subscriptions/all/$management", properties, body)
        assert found["statusCode"] == 200, found
