"""What operators see of several servers, and say to them: status, places of stores, drains, a database that is late."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from click.testing import CliRunner, Result
from kit_cluster import Cluster, running_cluster

from duobus.cli.main import main
from duobus.testing import server as server_process
from duobus.testing.ports import HeldPort
from kits.postgres import running_postgres

pytestmark = [pytest.mark.slow]

#: Only ends a hang.
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three servers, each in a zone of its own, and four stores."""
    zones = ("a", "b", "b")
    with running_cluster(
        tmp_path_factory.mktemp("labelled"), more=lambda number: ["--label", f"zone={zones[number]}"]
    ) as found:
        found.await_served()
        with found.admin(0) as admin:
            for number in range(4):
                admin.create_queue(f"q{number}")
        yield found


def run(cluster: Cluster, *words: str, server: int = 0) -> Result:
    environment = {"DUOBUS_CONNECTION_STRING": cluster.address(server)}
    return CliRunner().invoke(main, ["cluster", *words], env=environment)


def rows(cluster: Cluster, *words: str, server: int = 0) -> list[dict[str, Any]]:
    found = run(cluster, *words, server=server)
    assert found.exit_code == 0, found.output
    return [json.loads(line) for line in found.stdout.splitlines()]


def address(cluster: Cluster, number: int) -> str:
    """How operators name a server."""
    return cluster.http(number).removeprefix("http://").replace("localhost", "127.0.0.1").rstrip("/")


def store_of(queue: str) -> int:
    """The store in which a queue was created (``duobus.cluster.directory``)."""
    return crc32(f"sbemulatorns/{queue}".encode()) % 4 + 1


def owner(cluster: Cluster, store: int) -> str | None:
    (row,) = [row for row in rows(cluster, "status", "--stores") if row["store"] == store]
    found: str | None = row["server"]
    return found


def test_every_server_tells_the_same_of_servers_and_stores(labelled: Cluster) -> None:
    for server in labelled.servers:
        servers = rows(labelled, "status", server=server)
        assert [one["server"] for one in servers] == sorted(address(labelled, number) for number in labelled.servers)
        assert {one["state"] for one in servers} == {"serving"}
        assert sorted(len(one["stores"]) for one in servers) == [1, 1, 2]
        assert sorted(label for one in servers for label in one["labels"]) == ["zone=a", "zone=b", "zone=b"]
        assert all(one["version"] and one["sinceMs"] >= 0 and one["load"] >= 0 for one in servers)
        stores = rows(labelled, "status", "--stores", server=server)
        assert [one["store"] for one in stores] == [1, 2, 3, 4]
        for one in stores:
            assert one["state"] == "held"
            assert 0 < one["leaseLeftMs"] <= 2500
            assert "postgresql://" in one["place"]
            assert (one["preference"], one["isDisplaced"]) == (None, False)


def test_a_store_that_is_moved_is_there_when_the_command_returns_and_messages_go_on(labelled: Cluster) -> None:
    before = owner(labelled, 3)
    target = next(address(labelled, n) for n in labelled.servers if address(labelled, n) != before)
    with labelled.client(0) as bus:
        for number in range(4):
            with bus.get_queue_sender(f"q{number}") as sender:
                sender.send_messages(ServiceBusMessage(f"before {number}"))
    (row,) = rows(labelled, "move", "3", target)
    assert (row["server"], row["preference"], row["isDisplaced"]) == (target, target, False)
    with labelled.client(1) as bus:
        for number in range(4):
            with bus.get_queue_receiver(f"q{number}") as receiver:
                (message,) = receiver.receive_messages(1, max_wait_time=20)
                assert str(message) == f"before {number}"
                receiver.complete_message(message)
    rows(labelled, "move", "3", "any")
    assert [one["preference"] for one in rows(labelled, "status", "--stores")] == [None] * 4


def test_a_store_is_kept_at_a_server_with_a_label(labelled: Cluster) -> None:
    for store in (1, 2, 3, 4):
        (row,) = rows(labelled, "move", str(store), "zone=b")
        assert row["server"] in {address(labelled, 1), address(labelled, 2)}
    (lone,) = [one for one in rows(labelled, "status") if one["server"] == address(labelled, 0)]
    assert lone["stores"] == []
    for store in (1, 2, 3, 4):
        rows(labelled, "move", str(store), "any")
    labelled.await_served()


def test_a_drained_server_serves_clients_without_stores_until_the_drain_ends(labelled: Cluster) -> None:
    target = address(labelled, 2)
    (row,) = rows(labelled, "drain", target, server=2)
    assert (row["server"], row["state"], row["stores"]) == (target, "drained", [])
    with labelled.client(2) as bus, bus.get_queue_sender("q0") as sender, bus.get_queue_receiver("q0") as receiver:
        sender.send_messages(ServiceBusMessage("by way of others"))
        (message,) = receiver.receive_messages(1, max_wait_time=20)
        receiver.complete_message(message)
    with urllib.request.urlopen(f"{labelled.http(2)}/metrics", timeout=PATIENCE_S) as answer:
        assert "\nduobus_cluster_drained 1" in answer.read().decode()
    # After a restart, too.
    labelled.terminate(2)
    labelled.start(2)
    labelled.await_ready(2)
    end = time.monotonic() + PATIENCE_S
    found: list[dict[str, Any]] = []
    while not found:
        assert time.monotonic() < end, rows(labelled, "status")
        # The server that is asked hears of the other's start with its next heartbeat.
        found = [one for one in rows(labelled, "status") if one["server"] == target]
    assert [(one["state"], one["stores"]) for one in found] == [("drained", [])]
    rows(labelled, "drain", target, "--undo")
    labelled.await_served()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["move", "9", "any"], "There is no messaging store 9 in this cluster. Its stores are 1, 2, 3, 4."),
        (["move", "1", "nowhere.example"], "There is no server 'nowhere.example' now."),
        (["move", "1", "zone=c"], "No server has the label 'zone=c' now."),
        (["move", "1", "127.0.0.1"], "names several servers"),
        (["drain", "nowhere.example"], "There is no server 'nowhere.example' now."),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(labelled: Cluster, words: list[str], says: str) -> None:
    found = run(labelled, *words)
    assert found.exit_code != 0
    assert says in found.output


def test_the_audit_log_tells_who_moved_a_store(labelled: Cluster) -> None:
    rows(labelled, "move", "1", "any")
    found = CliRunner().invoke(main, ["audit", "--data", str(labelled.folder_of(0))])
    assert any("store 1 to any" in line and "cluster" in line for line in found.stdout.splitlines()), found.output


def test_a_lone_server_says_that_it_is_alone(tmp_path: Path) -> None:
    from duobus.testing.server import ServerProcess

    with ServerProcess(tmp_path, arguments=("--emulator", "--ephemeral")) as server:
        environment = {"DUOBUS_CONNECTION_STRING": str(server.ready["connection_string"])}
        found = CliRunner().invoke(main, ["cluster", "status"], env=environment)
    assert found.exit_code != 0
    assert "shares its catalog with no other" in found.output


def _health(port: int) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def _serve(folder: Path, url: str, port: HeldPort, *more: str) -> subprocess.Popen[bytes]:
    options = ["--data", str(folder / "data"), "--join", url, "--emulator", "--port", "0", "--tls-port", "0"]
    options += ["--http-port", str(port.number), "--ready-file", str(folder / "ready.json"), *more]
    with (folder / "log").open("ab") as log:
        return server_process.start_process([sys.executable, "-m", "duobus", "serve", *options], log)


def _until_starting(process: subprocess.Popen[bytes], port: HeldPort, folder: Path) -> dict[str, Any]:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            code, told = _health(port.number)
        except OSError:
            time.sleep(0.05)
            continue
        assert code == 503
        return told
    raise AssertionError((folder / "log").read_text())


def test_a_start_waits_for_the_database_and_says_so_on_its_http_port(tmp_path: Path) -> None:
    with running_postgres(durable=True) as postgres:
        postgres.stop()
        port = HeldPort()
        process = _serve(tmp_path, postgres.url(), port)
        try:
            told = _until_starting(process, port, tmp_path)
            assert told["status"] == "starting"
            assert "waits for the catalog's database" in told["message"]
            postgres.start()
            end = time.monotonic() + PATIENCE_S
            while not (tmp_path / "ready.json").exists():
                assert process.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < end, (tmp_path / "log").read_text()
                time.sleep(0.05)
            assert _health(port.number)[0] == 200
        finally:
            process.kill()
            process.wait()


def test_a_start_that_waits_ends_at_a_signal_and_at_its_bound(tmp_path: Path) -> None:
    with running_postgres(durable=True) as postgres:
        postgres.stop()
        port = HeldPort()
        process = _serve(tmp_path, postgres.url(), port)
        try:
            _until_starting(process, port, tmp_path)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()
        process = _serve(tmp_path, postgres.url(), HeldPort(), "--join-wait", "0.1")
        assert process.wait(PATIENCE_S) not in (0, -signal.SIGKILL)
        assert "--join-wait says how long a start waits for the database" in (tmp_path / "log").read_text()


def test_while_the_database_is_away_health_tells_what_was_known(tmp_path: Path) -> None:
    with running_cluster(tmp_path, servers=2) as cluster:
        cluster.await_served()
        cluster.postgres.stop("immediate")
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(f"{cluster.http(0)}/health", timeout=PATIENCE_S) as answer:
                    told = json.load(answer)
            except urllib.error.HTTPError as error:
                told = json.loads(error.read())
                break
            assert time.monotonic() < end, told
            time.sleep(0.1)
        assert told["cluster"]["isMember"] is False
        assert told["cluster"]["servers"] == 2
        assert sorted(told["cluster"]["stores"]) == ["1", "2", "3", "4"]
        assert told["cluster"]["seenMs"] > 0
        cluster.postgres.start()
        cluster.await_served()


class _Loop:
    """A client of the SDK that does one thing again and again, and what it noticed."""

    def __init__(self, cluster: Cluster, server: int, queue: str, *, sends: bool) -> None:
        self.name = f"{'sender' if sends else 'receiver'} of {queue} at {server}"
        self.done: list[str] = []
        self.failures: list[str] = []
        self.attaches = 0
        self.longest_s = 0.0
        self._cluster, self._server, self._queue = cluster, server, queue
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send if sends else self._receive)
        self._thread.start()

    def _counted(self, link: Any) -> Any:
        make = link._create_handler

        def counted(*words: Any) -> Any:
            self.attaches += 1
            return make(*words)

        link._create_handler = counted
        return link

    def _send(self) -> None:
        with self._cluster.client(self._server) as bus, self._counted(bus.get_queue_sender(self._queue)) as sender:
            number = 0
            while not self._is_over.wait(0.02):
                text = f"{self.name} {number}"
                number += 1
                with self._timed():
                    sender.send_messages(ServiceBusMessage(text))
                    self.done.append(text)

    def _receive(self) -> None:
        with self._cluster.client(self._server) as bus, self._counted(bus.get_queue_receiver(self._queue)) as receiver:
            while not self._is_over.is_set():
                with self._timed():
                    # Longer than the SDK waits before it tries again; else it raises what has ended the link.
                    for message in receiver.receive_messages(10, max_wait_time=5):
                        receiver.complete_message(message)
                        self.done.append(str(message))

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        except (ServiceBusError, OSError) as error:
            self.failures.append(f"{type(error).__name__}: {error}")
        self.longest_s = max(self.longest_s, time.monotonic() - begun)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE_S)


def test_a_drain_costs_each_client_one_attach_and_no_failure(labelled: Cluster) -> None:
    labelled.await_served()
    target = address(labelled, 1)
    stores = next(one["stores"] for one in rows(labelled, "status") if one["server"] == target)
    # One queue in each store.
    names = {store_of(name): name for name in (f"drained{number}" for number in range(20))}
    assert sorted(names) == [1, 2, 3, 4]
    with labelled.admin(0) as admin:
        for name in names.values():
            admin.create_queue(name)
    moving = {names[store] for store in stores}
    loops = [
        _Loop(labelled, server, queue, sends=sends)
        for server in labelled.servers
        for queue in names.values()
        for sends in (True, False)
    ]
    try:
        end = time.monotonic() + PATIENCE_S
        while not all(len(one.done) > 10 for one in loops):
            assert time.monotonic() < end, [(one.name, len(one.done), one.failures) for one in loops]
            time.sleep(0.05)
        rows(labelled, "drain", target)
        before = {one: len(one.done) for one in loops}
        while not all(len(one.done) > before[one] + 10 for one in loops):
            assert time.monotonic() < end, [(one.name, len(one.done), one.failures) for one in loops]
            time.sleep(0.05)
    finally:
        for one in loops:
            one.stop()
        rows(labelled, "drain", target, "--undo")
    told = [(one.name, one.attaches, f"{one.longest_s:.2f} s", one.failures) for one in loops]
    print(moving, *told, sep="\n")
    assert [one for one in told if one[3]] == []
    # The first attach, and one more where the store of the queue has moved.
    assert [one for one in told if one[1] > 2] == []
    # No client was led to a store that was still being opened.
    logs = [(labelled.folder_of(number) / "log").read_text() for number in labelled.servers]
    assert [one for one in logs if "No messaging store of this entity is available" in one] == []
    labelled.await_served()
