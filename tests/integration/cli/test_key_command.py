"""``duobus key`` against real servers: over the management API, and with the data folder of one that runs or not."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusError
from click.testing import CliRunner, Result

from duobus.cli.keys import clients
from duobus.cli.main import main
from duobus.clock import Clock
from duobus.ha.sdk import prompt_client
from duobus.storage.folder_lock import FolderLock
from duobus.testing.server import ServerProcess

ROOT = "RootManageSharedAccessKey"
OPTIONS = ("--stores", "1")


class Shell:
    """Runs commands, by default with the data folder of a server."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"

    def run(self, *words: str, status: int = 0, environment: dict[str, str] | None = None) -> Result:
        # Only where it is not given in another way.
        where = [] if environment else ["--data", str(self.data)]
        result = CliRunner(env={"DUOBUS_CONNECTION_STRING": None}).invoke(main, [*words, *where], env=environment)
        assert result.exit_code == status, (words, result.output)
        return result

    def records(self, *words: str, **given: Any) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*words, **given).stdout.splitlines()]

    def record(self, *words: str, **given: Any) -> dict[str, Any]:
        (found,) = self.records(*words, **given)
        return found

    def names(self) -> list[tuple[str | None, str]]:
        return [(rule["entity"], rule["name"]) for rule in self.records("key", "list")]

    def statuses(self, *commands: tuple[str, ...]) -> list[int]:
        """Run commands at the same time, each in a process of its own mind: the statuses that they end with."""
        begun = threading.Barrier(len(commands))

        def run(words: tuple[str, ...]) -> int:
            begun.wait()
            return ran(*words, "--data", str(self.data))

        with ThreadPoolExecutor(len(commands)) as pool:
            return sorted(pool.map(run, commands))


def ran(*words: str) -> int:
    """The exit status of a command in a process of its own."""
    return subprocess.run([sys.executable, "-m", "duobus", *words], capture_output=True, check=False).returncode


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, arguments=(*OPTIONS, "--tls-self-signed")) as process:
        yield process


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def sends(connection_string: str, queue: str = "orders") -> bool:
    """Whether a message can be sent with a key."""
    with prompt_client(ServiceBusClient.from_connection_string(connection_string, retry_total=0)) as client:
        try:
            with client.get_queue_sender(queue) as sender:
                sender.send_messages(ServiceBusMessage("hello"))
        except ServiceBusAuthenticationError:
            return False
    return True


def test_a_new_server_has_one_rule_which_is_shown_and_not_listed_with_its_keys(
    server: ServerProcess, shell: Shell
) -> None:
    listed = shell.run("key", "list").stdout
    assert [rule["name"] for rule in map(json.loads, listed.splitlines())] == [ROOT]
    shown = shell.record("key", "show", ROOT)
    assert shown["primaryConnectionString"] == server.connection_string
    assert shown["primaryConnectionStringTls"] == server.connection_string_tls
    assert shown["ca"] == server.ca
    for name in ("primaryKey", "secondaryKey"):
        assert len(shown[name]) == 44
        assert shown[name] not in listed
    over_http = {"DUOBUS_CONNECTION_STRING": server.connection_string}
    # The port of AMQP takes HTTP as well.
    where = ("--endpoint", server.ready["admin_url"])
    again = shell.record("key", "show", ROOT, *where, environment=over_http)
    assert (again["primaryKey"], again["secondaryKey"]) == (shown["primaryKey"], shown["secondaryKey"])


def test_rules_of_the_namespace_and_of_entities_are_added_used_and_removed(server: ServerProcess, shell: Shell) -> None:
    shell.run("queue", "create", "orders")
    shell.run("topic", "create", "prices")
    sender = shell.record("key", "add", "sender", "--rights", "send")
    assert sender["rights"] == ["Send"]
    assert sends(sender["primaryConnectionString"])
    assert sends(sender["secondaryConnectionString"])
    own = shell.record("key", "add", "own", "--rights", "send,listen", "--entity", "Orders")
    assert (own["entity"], sends(own["primaryConnectionString"])) == ("orders", True)
    topic = shell.record("key", "add", "own", "--rights", "manage", "--entity", "prices")
    assert topic["rights"] == ["Listen", "Send", "Manage"]
    assert shell.names() == [(None, ROOT), (None, "sender"), ("orders", "own"), ("prices", "own")]
    assert [rule["name"] for rule in shell.records("key", "list", "--entity", "prices")] == ["own"]
    # Whoever may manage an entity may manage its keys, and no others.
    environment = {"DUOBUS_CONNECTION_STRING": topic["primaryConnectionString"]}
    where = ("--endpoint", server.ready["admin_url"])
    shell.run("key", "add", "more", "--rights", "send", "--entity", "prices", *where, environment=environment)
    for refused in (("--entity", "orders"), ()):
        shell.run("key", "list", *refused, *where, environment=environment, status=5)
    for name, entity in (("sender", ()), ("own", ("--entity", "orders")), ("own", ("--entity", "prices"))):
        shell.run("key", "remove", name, "--yes", *entity)
        shell.run("key", "remove", name, "--yes", *entity, status=3)
    assert shell.names() == [(None, ROOT), ("prices", "more")]
    assert not sends(sender["primaryConnectionString"])
    assert not sends(own["primaryConnectionString"])


def test_each_kind_of_failure_has_a_status_and_a_sentence_of_the_server(server: ServerProcess, shell: Shell) -> None:
    shell.run("key", "add", "reader", "--rights", "listen")
    assert "exists already" in shell.run("key", "add", "reader", "--rights", "send", status=4).stderr
    assert "no access rule 'none'" in shell.run("key", "rotate", "none", "--which", "primary", status=3).stderr
    shell.run("key", "show", "reader", "--entity", "nowhere", status=3)
    shell.run("key", "add", "reader2", "--rights", "own", status=2)
    shell.run("key", "rotate", "reader", status=2)
    shell.run("key", "show", "", status=2)
    shell.run("key", "remove", "..", "--yes", status=2)
    shell.run("key", "show", "a?b#c d%2F", status=3)
    shell.run("key", "remove", "reader", status=2)
    shell.run("queue", "list", "--connection-string", server.connection_string, status=2)
    assert "last access rule" in shell.run("key", "remove", ROOT, "--yes", status=1).stderr
    wrong = {"DUOBUS_CONNECTION_STRING": server.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")}
    where = ("--endpoint", server.ready["admin_url"])
    for command in (("key", "list"), ("queue", "list")):
        told = shell.run(*command, *where, environment=wrong, status=5).stderr
        assert "Check the key and its name" in told
    assert "Check the key and its name" in shell.run("store", "list", *where, environment=wrong, status=5).stderr
    shell.run("key", "list", "--namespace", "duobus", status=2)


def test_commands_follow_a_replaced_key_by_the_data_folder_and_clients_move_without_an_outage(
    server: ServerProcess, shell: Shell
) -> None:
    shell.run("queue", "create", "orders")
    before = shell.record("key", "show", ROOT)
    rotated = shell.record("key", "rotate", ROOT, "--which", "primary")
    assert rotated["secondaryKey"] == before["secondaryKey"]
    assert rotated["primaryKey"] not in (before["primaryKey"], before["secondaryKey"])
    assert not sends(before["primaryConnectionString"])
    assert sends(before["secondaryConnectionString"])
    shell.run("message", "send", "orders", "hello")
    assert shell.record("message", "receive", "orders")["body"] == "hello"
    swapped = shell.record("key", "rotate", ROOT, "--which", "swap")
    assert (swapped["primaryKey"], swapped["secondaryKey"]) == (rotated["secondaryKey"], rotated["primaryKey"])
    shell.run("topic", "create", "prices")
    for words in (
        ("namespace", "show"),
        ("queue", "show", "orders"),
        ("subscription", "list", "prices"),
        ("message", "peek", "orders"),
        ("dlq", "list", "orders"),
        ("topology", "export"),
        ("fragment", "list"),
        ("store", "list"),
        ("pair", "backlog", "primary"),
    ):
        shell.run(*words)
    # After the restart the keys are those that were told.
    server.restart()
    assert shell.record("key", "show", ROOT)["primaryKey"] == swapped["primaryKey"]
    assert sends(swapped["secondaryConnectionString"])
    assert not sends(before["primaryConnectionString"])


def within(limit_s: float, is_over: Callable[[], bool]) -> bool:
    """Whether something comes true in time, of a process and a client of their own."""
    end = time.monotonic() + limit_s
    while not is_over():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_links_of_a_replaced_key_end_within_five_seconds_and_those_of_the_other_key_go_on(
    server: ServerProcess, shell: Shell
) -> None:
    shell.run("queue", "create", "orders")
    rule = shell.record("key", "add", "app", "--rights", "send,listen")
    first, second = (
        prompt_client(ServiceBusClient.from_connection_string(rule[f"{which}ConnectionString"], retry_total=0))
        for which in ("primary", "secondary")
    )
    with first, second, first.get_queue_sender("orders") as cut, second.get_queue_sender("orders") as kept:
        cut.send_messages(ServiceBusMessage("1"))
        kept.send_messages(ServiceBusMessage("2"))
        shell.run("key", "rotate", "app", "--which", "primary")

        def is_refused() -> bool:
            try:
                cut.send_messages(ServiceBusMessage("3"))
            except ServiceBusError:
                return True
            return False

        assert within(5, is_refused)
        kept.send_messages(ServiceBusMessage("4"))


def test_a_key_that_is_replaced_after_it_was_looked_up_is_looked_up_again(
    server: ServerProcess, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    del server
    operate, calls = clients.operate, []

    def replaced_meanwhile(*asked: Any) -> Any:
        calls.append(asked)
        if len(calls) < 3:
            assert ran("key", "rotate", ROOT, "--which", "primary", "--data", str(shell.data)) == 0
        return operate(*asked)

    monkeypatch.setattr(clients, "operate", replaced_meanwhile)
    assert shell.names() == [(None, ROOT)]
    assert len(calls) == 3


def test_what_is_done_twice_at_once_is_done_once(server: ServerProcess, shell: Shell) -> None:
    del server
    adding = ("key", "add", "one", "--rights", "listen")
    assert shell.statuses(adding, adding, adding) == [0, 4, 4]
    # Every rotation is done, one after the other, and one that found an older key in the folder looks again.
    rotating = ("key", "rotate", ROOT, "--which", "primary")
    assert shell.statuses(rotating, rotating, rotating) == [0, 0, 0]
    shell.run("key", "add", "other", "--rights", "manage")
    removing = [("key", "remove", name, "--yes") for name in (ROOT, "other")]
    assert shell.statuses(*removing) == [0, 1]
    assert len([rule for rule in shell.records("key", "list") if "Manage" in rule["rights"]]) == 1


def test_a_stopped_server_is_changed_in_its_folder_and_killed_ones_are_not_taken_for_running(
    server: ServerProcess, shell: Shell
) -> None:
    shell.run("queue", "create", "orders")
    own = shell.record("key", "add", "own", "--rights", "send", "--entity", "orders")
    before = shell.record("key", "show", ROOT)
    record = shell.data / "server.json"
    assert record.stat().st_mode & 0o777 == 0o600
    server.kill()
    assert record.exists()
    told = shell.run("queue", "list", status=6).stderr
    assert f"No server runs on {shell.data}. The last one there, with process id {server.pid}, was killed." in told
    assert shell.names() == [(None, ROOT), ("orders", "own")]
    rotated = shell.record("key", "rotate", ROOT, "--which", "primary")
    # What it had was an old key.
    assert not record.exists()
    own = shell.record("key", "rotate", "own", "--which", "primary", "--entity", "ORDERS") | {"old": own}
    assert own["entity"] == "orders"
    adding = ("key", "add", "one", "--rights", "listen")
    assert shell.statuses(adding, adding) == [0, 4]
    shell.run("key", "remove", ROOT, "--yes", status=1)
    shell.run("key", "show", "none", status=3)
    shell.run("key", "list", "--namespace", "nowhere", status=1)
    assert len(shell.records("key", "list", "--namespace", "duobus")) == 3
    server.start()
    assert shell.record("key", "show", ROOT)["primaryKey"] == rotated["primaryKey"] != before["primaryKey"]
    shown = shell.record("key", "show", "own", "--entity", "orders")
    assert shown["primaryKey"] == own["primaryKey"] != own["old"]["primaryKey"]
    assert sends(shown["primaryConnectionString"])
    assert not sends(own["old"]["primaryConnectionString"])
    server.terminate()
    assert not record.exists()
    assert shell.run("queue", "list", status=6).stderr.startswith(f"Error: No server runs on {shell.data}. Start one")


def test_the_file_with_the_first_connection_string_has_the_key_of_now(server: ServerProcess, shell: Shell) -> None:
    file = shell.data / "connection-string"
    pause = threading.Event()
    # The file is written right after clients can connect.
    while not file.exists() and server.is_running:
        pause.wait(0.01)
    assert file.read_text().strip() == server.connection_string
    rotated = shell.record("key", "rotate", ROOT, "--which", "primary")
    assert file.read_text().strip() == rotated["primaryConnectionString"]
    assert file.stat().st_mode & 0o777 == 0o600
    server.terminate()
    shell.run("key", "rotate", ROOT, "--which", "primary")
    server.start()
    assert file.read_text().strip() == shell.record("key", "show", ROOT)["primaryConnectionString"]
    file.unlink()
    shell.run("key", "rotate", ROOT, "--which", "primary")
    assert not file.exists()


def test_a_folder_whose_server_has_not_said_where_it_is_says_so(tmp_path: Path, shell: Shell) -> None:
    shell.data.mkdir()
    assert "has no catalog" in shell.run("key", "list", status=1).stderr
    lock = FolderLock(shell.data)
    lock.take("a server", Clock())
    for words in (("queue", "list"), ("key", "list")):
        told = shell.run(*words, status=6).stderr
        assert "is in use by a server with process id" in told
        assert "has not said where it listens" in told
    lock.release()


def test_the_folder_of_another_user_is_not_changed_while_no_server_runs(
    server: ServerProcess, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = shell.data.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    # A server that runs does it itself.
    shell.run("key", "list")
    server.terminate()
    assert "belongs to another user" in shell.run("key", "list", status=5).stderr


def test_the_default_rule_can_go_when_another_one_may_manage_and_stays_away(
    server: ServerProcess, shell: Shell
) -> None:
    shell.run("key", "add", "admin", "--rights", "manage")
    shell.run("key", "remove", ROOT, "--yes")
    assert shell.names() == [(None, "admin")]
    server.restart()
    assert shell.names() == [(None, "admin")]
    assert "SharedAccessKeyName=admin;" in server.connection_string
    shell.run("key", "remove", "admin", "--yes", status=1)


def test_rules_of_a_configuration_file_are_changed_there_and_others_outlive_it(tmp_path: Path, shell: Shell) -> None:
    rule = {"KeyName": "of-file", "PrimaryKey": "a key of the file", "Rights": ["Send"]}
    config = {"UserConfig": {"Namespaces": [{"Name": "duobus", "AuthorizationRules": [rule]}]}}
    with ServerProcess(tmp_path, config=config, arguments=OPTIONS) as server:
        shell.run("key", "add", "mine", "--rights", "listen")
        told = shell.run("key", "rotate", "of-file", "--which", "primary", status=1).stderr
        assert "is given by the configuration file" in told
        server.restart()
        assert shell.names() == [(None, ROOT), (None, "of-file"), (None, "mine")]
        server.terminate()
        told = shell.run("key", "remove", "of-file", "--yes", status=1).stderr
        assert "was made by a configuration file" in told
        shell.run("key", "remove", "mine", "--yes")


def test_the_key_of_the_emulator_is_not_replaced(tmp_path: Path, shell: Shell) -> None:
    with ServerProcess(tmp_path, arguments=(*OPTIONS, "--emulator")) as server:
        told = shell.run("key", "rotate", ROOT, "--which", "primary", status=1).stderr
        assert "is given by --emulator at each start" in told
        server.terminate()
        told = shell.run("key", "rotate", ROOT, "--which", "primary", status=1).stderr
        assert "has the key of --emulator" in told


def test_no_key_gets_into_logs_and_the_audit_log_says_who_changed_what(server: ServerProcess, shell: Shell) -> None:
    found = [shell.record("key", "add", "app", "--rights", "send")]
    found += [shell.record("key", "rotate", "app", "--which", which) for which in ("primary", "secondary", "swap")]
    shell.run("key", "add", "app", "--rights", "send", status=4)
    shell.run("key", "remove", "app", "--yes")
    server.terminate()
    found.append(shell.record("key", "rotate", ROOT, "--which", "secondary"))
    keys = {record[name] for record in found for name in ("primaryKey", "secondaryKey")}
    assert len(keys) == 6
    files = [server.log_path, *(shell.data / "audit").iterdir()]
    assert not [(file, key) for file in files for key in keys if key in file.read_text()]
    records = shell.records("audit")
    assert [(one["operation"], one["kind"], one["path"]) for one in records] == [
        ("create", "access rule", "AuthorizationRules/app"),
        *[("update", "access rule", "AuthorizationRules/app")] * 3,
        ("create", "access rule", "AuthorizationRules/app"),
        ("delete", "access rule", "AuthorizationRules/app"),
        ("update", "access rule", f"AuthorizationRules/{ROOT}"),
    ]
    assert {(one["who"], one["door"]) for one in records[:-1]} == {(ROOT, "http")}
    assert records[-1]["door"] == "folder"
    assert records[1]["changes"] == {"primary_key": ["***", "***"]}
    assert "exists already" in records[4]["outcome"]
