"""Backups of a real server under traffic of the SDK, and data folders made from them (I7, I63 to I65)."""

from __future__ import annotations

import gc
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.ha.sdk import prompt_client
from duobus.storage.backup.restore import COUNTS_LEFT_OUT
from duobus.storage.replacement import COUNT_BITS
from duobus.testing.server import ServerProcess

ENTITIES = [
    {"Name": "spread", "Properties": {"EnablePartitioning": True}},
    {
        "Name": "once",
        "Properties": {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT1H"},
    },
    {"Name": "steps", "Properties": {"RequiresSession": True}},
    {"Name": "end", "Properties": {}},
    {"Name": "through", "Properties": {"ForwardTo": "end"}},
]
TOPICS = [{"Name": "news", "Subscriptions": [{"Name": "all"}, {"Name": "too"}], "Properties": {}}]
CONFIG = {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": ENTITIES, "Topics": TOPICS}]}}
OPTIONS = ("--emulator", "--stores", "3")


@pytest.fixture
def sweeping() -> Iterator[None]:
    """The SDK forgets to close the socket of a connection whose server was killed; later tests are not to be blamed."""
    yield
    gc.collect()


def duobus(*words: str, status: int = 0, server: ServerProcess | None = None) -> Any:
    environment = {} if server is None else {"DUOBUS_CONNECTION_STRING": server.connection_string}
    result = CliRunner().invoke(main, words, env=environment)
    assert result.exit_code == status, result.output
    return [json.loads(line) for line in result.stdout.splitlines()] if status == 0 else result.output


def start(folder: Path, *options: str, data: Path | None = None) -> ServerProcess:
    return ServerProcess(folder, config=CONFIG, data=data, arguments=(*OPTIONS, *options))


def client_of(server: ServerProcess, **options: Any) -> ServiceBusClient:
    return prompt_client(ServiceBusClient.from_connection_string(server.connection_string, **options))


def send(client: ServiceBusClient, queue: str, *messages: ServiceBusMessage) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(list(messages))


def send_keyed(client: ServiceBusClient, prefix: str) -> None:
    """Send 40 messages with keys of their own."""
    with client.get_queue_sender("spread") as sender:
        for number in range(40):
            sender.send_messages(ServiceBusMessage(f"{prefix}{number}", partition_key=str(number)))


def taken(client: ServiceBusClient, queue: str, **options: Any) -> dict[str, int]:
    """Body to sequence number of what is there, which is taken out."""
    found: dict[str, int] = {}
    options.setdefault("receive_mode", ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    with client.get_queue_receiver(queue, **options) as receiver:
        # For the first there is time; what is forwarded is on its way to the end a little after that.
        wait_s = 5.0
        while batch := receiver.receive_messages(500, max_wait_time=wait_s):
            wait_s = 1.0
            for message in batch:
                assert str(message) not in found
                found[str(message)] = message.sequence_number or 0
    return found


def peeked(client: ServiceBusClient, queue: str) -> dict[str, int]:
    found: dict[str, int] = {}
    with client.get_queue_receiver(queue) as receiver:
        first = 0
        while batch := receiver.peek_messages(250, sequence_number=first):
            found |= {str(message): message.sequence_number or 0 for message in batch}
            first = max(message.sequence_number or 0 for message in batch) + 1
    return found


class Traffic:
    """Sends one numbered message after the other to ``through``, which forwards them to another store."""

    def __init__(self, server: ServerProcess) -> None:
        self.acknowledged: list[str] = []
        self._server = server
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def wait_for(self, number: int) -> None:
        pause = threading.Event()
        while len(self.acknowledged) < number:
            assert self._thread.is_alive()
            pause.wait(0.01)

    def _run(self) -> None:
        try:
            # Without retries: a server that was killed does not come back while anybody waits for this.
            with client_of(self._server, retry_total=0) as client, client.get_queue_sender("through") as sender:
                number = 0
                while not self._stopping.is_set():
                    bodies = [f"t{number + index}" for index in range(5)]
                    sender.send_messages([ServiceBusMessage(body) for body in bodies])
                    self.acknowledged += bodies
                    number += 5
        except ServiceBusError:
            # The server was killed; what was acknowledged before is what counts.
            return


@pytest.mark.slow
@pytest.mark.usefixtures("either_way")
def test_a_backup_under_traffic_has_all_that_was_acknowledged_and_no_number_comes_again(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    with start(tmp_path / "live", "--backup-to", str(backups)) as server, client_of(server) as client:
        send_keyed(client, "s")
        send(client, "once", ServiceBusMessage("first", message_id="one"))
        send(client, "steps", ServiceBusMessage("step", session_id="a"))
        with client.get_queue_receiver("steps", session_id="a") as session:
            session.session.set_state(b"half way")
        with client.get_topic_sender("news") as sender:
            sender.send_messages(ServiceBusMessage("paper"))
        send(client, "end", ServiceBusMessage("dead"), ServiceBusMessage("late"))
        with client.get_queue_receiver("end") as receiver:
            first, second = receiver.receive_messages(2, max_wait_time=5)
            receiver.dead_letter_message(first)
            receiver.defer_message(second)
            deferred = second.sequence_number or 0
        with Traffic(server) as traffic:
            traffic.wait_for(100)
            before = list(traffic.acknowledged)
            (status,) = duobus("backup", server=server)
            traffic.wait_for(len(traffic.acknowledged) + 50)
        assert (status["state"], status["copied"]) == ("done", status["bytes"])
        # The server lives on: these numbers are given out, and nothing of them is in the backup.
        send_keyed(client, "after-")
        lost_numbers = set(taken(client, "spread").values())
        assert len(lost_numbers) == 80
        end_numbers = set(taken(client, "end").values())
        stores = {row["entity"]: row["store"] for row in duobus("fragment", "list", server=server)}
        assert stores["through"] != stores["end"]
    backup = backups / status["backup"]
    data = tmp_path / "restored"
    (told,) = duobus("restore", "--from", str(backup), "--data", str(data))
    assert told["stores"] == 3
    with start(tmp_path / "second", data=data) as server, client_of(server) as client:
        found = taken(client, "end")
        assert set(before) <= found.keys() - {"late"}
        with client.get_queue_receiver("end") as receiver:
            (late,) = receiver.receive_deferred_messages(deferred)
            assert str(late) == "late"
        assert set(taken(client, "end", sub_queue=ServiceBusSubQueue.DEAD_LETTER)) == {"dead"}
        with client.get_subscription_receiver("news", "too") as receiver:
            assert [str(message) for message in receiver.receive_messages(5, max_wait_time=3)] == ["paper"]
        with client.get_queue_receiver("steps", session_id="a") as session:
            assert session.session.get_state() == b"half way"
            assert [str(message) for message in session.receive_messages(5, max_wait_time=3)] == ["step"]
        send(client, "once", ServiceBusMessage("again", message_id="one"))
        assert set(taken(client, "once")) == {"first"}
        send_keyed(client, "new-")
        # Those of the backup and the new ones, over the hole between them.
        seen = peeked(client, "spread")
        assert seen.keys() == {f"{new}{number}" for new in ("s", "new-") for number in range(40)}
        fresh = {number for body, number in seen.items() if body.startswith("new-")}
        assert not fresh & lost_numbers
        assert all(number & ((1 << COUNT_BITS) - 1) > COUNTS_LEFT_OUT for number in fresh)
        assert taken(client, "spread") == seen
        send(client, "through", ServiceBusMessage("forwarded"))
        later = taken(client, "end")
        assert later.keys() == {"forwarded"}
        assert not set(later.values()) & end_numbers


@pytest.mark.slow
@pytest.mark.usefixtures("sweeping")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_server_that_is_killed_during_a_backup_keeps_everything_and_the_half_backup_is_refused(
    tmp_path: Path,
) -> None:
    backups = tmp_path / "backups"
    server = start(tmp_path / "live", "--backup-to", str(backups))
    with server, client_of(server) as client:
        large = [ServiceBusMessage(bytes(200_000)) for _ in range(4)]
        with client.get_queue_sender("spread") as sender:
            for _ in range(60):
                for message in large:
                    sender.send_messages(message)
        with Traffic(server) as traffic:
            traffic.wait_for(50)
            caller = threading.Thread(target=lambda: CliRunner().invoke(main, ["backup"], env=environment))
            environment = {"DUOBUS_CONNECTION_STRING": server.connection_string}
            caller.start()
            pause = threading.Event()
            while not list(backups.glob("*/stores/*")):
                pause.wait(0.001)
            server.kill()
            caller.join()
    acknowledged = set(traffic.acknowledged)
    (half,) = backups.iterdir()
    assert "holds no whole backup" in duobus("restore", "--from", str(half), "--data", str(tmp_path / "no"), status=1)
    assert not (tmp_path / "no").exists()
    with server, client_of(server) as client:
        assert acknowledged <= taken(client, "end").keys()
        (status,) = duobus("backup", server=server)
    duobus("restore", "--from", str(backups / status["backup"]), "--data", str(tmp_path / "yes"))


@pytest.mark.slow
def test_a_server_that_is_told_to_stop_gives_a_backup_up_and_stops(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    with start(tmp_path / "live", "--backup-to", str(backups)) as server:
        with client_of(server) as client, client.get_queue_sender("spread") as sender:
            for _ in range(200):
                sender.send_messages(ServiceBusMessage(bytes(200_000)))
        environment = {"DUOBUS_CONNECTION_STRING": server.connection_string}
        caller = threading.Thread(target=lambda: CliRunner().invoke(main, ["backup"], env=environment))
        caller.start()
        pause = threading.Event()
        while not list(backups.glob("*/stores/*")):
            pause.wait(0.001)
        assert server.terminate() == 0
        caller.join()
    assert "The server was stopped" in server.log_path.read_text()
    assert list(backups.glob("*/backup.json")) == []


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a server that does not run, with one message in ``end`` and certificates."""
    folder = tmp_path_factory.mktemp("stopped")
    with start(folder, "--tls-self-signed") as server, client_of(server) as client:
        send(client, "end", ServiceBusMessage("kept"))
    return folder / "data"


def test_a_server_that_does_not_run_is_backed_up_by_the_command_itself(stopped: Path, tmp_path: Path) -> None:
    (status,) = duobus("backup", "--data", str(stopped), "--to", str(tmp_path / "copy"))
    assert status["state"] == "done"
    names = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    assert {"backup.json", "catalog.db", "stores/store-3.db", "tls/ca-key.pem"} <= names
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "copy").rglob("*"))
    duobus("restore", "--from", str(tmp_path / "copy"), "--data", str(tmp_path / "data"))
    assert (tmp_path / "data/tls/ca.pem").read_bytes() == (stopped / "tls/ca.pem").read_bytes()
    with start(tmp_path, data=tmp_path / "data") as server, client_of(server) as client:
        assert set(taken(client, "end")) == {"kept"}
        # It was not told where to put backups, and while it runs nobody else copies.
        assert "Start it with --backup-to" in duobus("backup", server=server, status=1)
        assert "Start it with --backup-to" in duobus("backup", "--data", str(tmp_path / "data"), status=1)
        words = ("backup", "--data", str(tmp_path / "data"), "--to", str(tmp_path / "other"))
        assert "leave --to out" in duobus(*words, status=1)


@pytest.mark.parametrize("name", ["catalog.db", "stores/store-2.db", "tls/ca-key.pem", "backup.json"])
def test_a_backup_with_a_flipped_bit_or_without_a_file_is_refused(stopped: Path, tmp_path: Path, name: str) -> None:
    backup, data = tmp_path / "copy", tmp_path / "data"
    duobus("backup", "--data", str(stopped), "--to", str(backup))
    whole = (backup / name).read_bytes()
    (backup / name).write_bytes(whole[:50] + bytes([whole[50] ^ 16]) + whole[51:])
    duobus("restore", "--from", str(backup), "--data", str(data), status=1)
    (backup / name).write_bytes(whole[: len(whole) // 2])
    duobus("restore", "--from", str(backup), "--data", str(data), status=1)
    (backup / name).unlink()
    duobus("restore", "--from", str(backup), "--data", str(data), status=1)
    assert not data.exists()


def test_nothing_is_restored_over_anything_nor_backed_up_over_it(stopped: Path, tmp_path: Path) -> None:
    backup = tmp_path / "copy"
    duobus("backup", "--data", str(stopped), "--to", str(backup))
    full = tmp_path / "full"
    shutil.copytree(stopped, full)
    assert "is not empty" in duobus("restore", "--from", str(backup), "--data", str(full), status=1)
    assert "is not empty" in duobus("backup", "--data", str(stopped), "--to", str(backup), status=1)
    assert "no data folder" in duobus("backup", "--data", str(tmp_path), "--to", str(tmp_path / "x"), status=1)
    assert "--to needs --data" in duobus("backup", "--to", str(full), status=2)
    assert "No server runs on" in duobus("backup", "--data", str(full), status=6)


def test_what_is_in_memory_only_has_no_backup(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["serve", "--ephemeral", "--backup-to", str(tmp_path)])
    assert "--backup-to and --ephemeral exclude each other" in result.output
