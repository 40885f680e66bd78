"""What earlier commits kept on disk, with every feature in use, is all there for today's code, and works (I65).

The files in ``formats`` were written by those commits' own code: ``tools/make_formats.py`` says how. The server runs at
the time at which they were written, so that nothing has expired since.
"""

from __future__ import annotations

import asyncio
import json
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    _servicebus_session,
)
from azure.servicebus._common import message, utils
from azure.servicebus.exceptions import ServiceBusAuthorizationError
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.clock import Clock, Entropy
from duobus.ha.aio import OutboxSender
from duobus.ha.deduplication import SeenMessages
from duobus.ha.outbox.queue import Outbox
from duobus.server.cluster_server import ClusterServer
from duobus.server.composition import Server
from duobus.server.monitoring.metering_writer import MeteringWriter
from duobus.server.settings import Settings, load_settings
from duobus.storage.postgres.address import catalog_place
from duobus.telemetry.metering_log import MeteringLog
from duobus.testing.postgres_server import PostgresServer
from kits.postgres import running_postgres
from kits.server_contents import QUEUE_RULE, SENDS, SESSION_QUEUES, AdminEndpoint, client_of, one, survey, text
from tools.archives import unpack

FORMATS: Final = Path(__file__).parent / "formats"
FILES: Final = sorted(path.name.partition(".")[0] for path in FORMATS.glob("*.tar.xz"))
FOLDERS: Final = [name for name in FILES if not name.endswith("-postgres")]
DUMPS: Final = [name for name in FILES if name.endswith("-postgres")]
LIMIT_S: Final = 60.0
#: Of the database that tools/make_formats.py dumps: the same wherever it is.
ADDRESS: Final = "postgresql:///postgres"
#: Messages by entity and kind of use.
METERED: Final = {
    ("plain", "send"): 16,
    ("plain", "receive"): 7,
    ("plain", "settle"): 6,
    ("parted", "send"): 12,
    ("once", "send"): 6,
    ("large", "send"): 1,
    ("steps", "send"): 9,
    ("news", "send"): 7,
    ("way", "send"): 4,
}
RECEIVED: Final = ServiceBusReceiveMode.RECEIVE_AND_DELETE

T = TypeVar("T")

pytestmark = [
    pytest.mark.slow,
    # The SDK leaves sockets to the collector when a server ends.
    pytest.mark.filterwarnings(
        r"ignore:Exception ignored in.{0,2}<socket\.socket:pytest.PytestUnraisableExceptionWarning"
    ),
]


class PastClock(Clock):
    """Today's clocks, set back to when something was written, and moved on from there."""

    def __init__(self, began_ms: int) -> None:
        self._behind_ms = super().now_ms() - began_ms
        self.moved_ms = 0

    def now_ms(self) -> int:
        """Return wall clock time as it was."""
        return super().now_ms() - self._behind_ms + self.moved_ms

    def monotonic_ms(self) -> int:
        """Return monotonic time, moved as far."""
        return super().monotonic_ms() + self.moved_ms

    def boot(self) -> tuple[str, int] | None:
        """Return a start of the machine that is this test's own.

        A folder that was written since this machine's last start would otherwise tell how long ago that really was,
        and everything in it would have expired.
        """
        return "of this test", self.monotonic_ms()


class Running:
    """A server in this process, in a thread and a loop of its own."""

    def __init__(self, settings: Settings, clock: PastClock) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="server", daemon=True)
        self._thread.start()
        self._clock = clock
        self.server: Server = self.wait(self._make(settings, clock))
        self.connection_string = self._address(self.server.port("amqp"), "RootManageSharedAccessKey", "SAS_KEY_VALUE")
        self.admin = AdminEndpoint(f"http://localhost:{self.server.port('http')}")
        # A server that shares a catalog opens stores when it has their leases.
        deadline = time.monotonic() + LIMIT_S
        while set(json.loads(self.admin.call("GET", "health"))["stores"].values()) != {"open"}:
            assert time.monotonic() < deadline, self.admin.call("GET", "health")
            time.sleep(0.02)

    async def _make(self, settings: Settings, clock: PastClock) -> Server:
        kind = Server if settings.join is None else ClusterServer
        # Tokens, connections and leases are of today.
        server = kind(settings, Clock(), Entropy(), broker_clock=clock)
        await server.start()
        return server

    def _address(self, port: int | None, rule: str, key: str) -> str:
        return (
            f"Endpoint=sb://localhost:{port};SharedAccessKeyName={rule};SharedAccessKey={key};"
            "UseDevelopmentEmulator=true;"
        )

    def address_by(self, rule: str, key: str) -> str:
        return self._address(self.server.port("amqp"), rule, key)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(LIMIT_S)

    def advance(self, by: timedelta) -> None:
        """Move broker time; what is due by then has been done."""
        self._clock.moved_ms += int(by.total_seconds() * 1000)
        self.wait(self.server.unit.time_moved())

    def stop(self) -> None:
        async def stop() -> None:
            # Clients of a test do not wait for the server's close.
            for peer in list(self.server.amqp.peers):
                peer.abort()
            await self.server.stop()

        self.wait(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()


@contextmanager
def running(clock: PastClock, **options: Any) -> Iterator[Running]:
    chosen: dict[str, Any] = {"emulator": True, "port": 0, "tls_port": 0, "http_port": 0, "stores": 2}
    with pytest.MonkeyPatch.context() as patch:
        # The SDK compares the end of a lock with its own time.
        for module in (utils, message, _servicebus_session):
            patch.setattr(module, "utc_now", lambda: datetime.fromtimestamp(clock.now_ms() / 1000, UTC))
        server = Running(load_settings(Settings(**chosen | options)), clock)
        try:
            yield server
        finally:
            server.stop()


def unpacked(name: str, folder: Path) -> dict[str, Any]:
    """Unpack a file; what its maker found."""
    with tarfile.open(FORMATS / f"{name}.tar.xz") as tar:
        unpack(tar, folder)
    found: dict[str, Any] = json.loads((folder / "found.json").read_text("utf-8"))
    # The message that was locked when the server was killed, or the backup made, is back from a second delivery.
    locked = found["messages"]["plain"][2]
    assert (locked["body"], locked["delivery_count"]) == ("[b'plain 5']", "1")
    locked["delivery_count"] = "2"
    return found


def demand_same(server: Running, expected: dict[str, Any]) -> None:
    """Everything that was found then is found now. What later code says beside it is its own affair."""
    with client_of(server.connection_string) as client:
        found = survey(client, server.admin)
    assert found["states"] == expected["states"]
    assert found["entities"].keys() == expected["entities"].keys()
    different = []
    for place, messages in expected["messages"].items():
        now = found["messages"][place]
        assert len(now) == len(messages), place
        for number, (then, here) in enumerate(zip(messages, now, strict=True)):
            different += differences(f"{place} {number}", then, here)
    for name, about in expected["entities"].items():
        different += differences(name, about, found["entities"][name])
    assert not different, "\n".join(different)


def differences(what: str, then: dict[str, str], now: dict[str, str]) -> list[str]:
    """What is not as it was."""
    return [f"{what}: {name} was {then[name]}, is {now.get(name)}" for name in then if now.get(name) != then[name]]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_data_folder_of_an_earlier_commit_has_everything_and_works(name: str, tmp_path: Path) -> None:
    expected = unpacked(name, tmp_path)
    clock = PastClock(expected["at_ms"])
    for _ in range(2):
        with running(clock, data=tmp_path / "data") as server:
            demand_same(server, expected)
    with running(clock, data=tmp_path / "data") as server:
        use(server, expected)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_backup_of_an_earlier_commit_is_restored_whole(name: str, tmp_path: Path) -> None:
    expected = unpacked(name, tmp_path)
    (backup,) = (tmp_path / "backups").iterdir()
    words = ["restore", "--from", str(backup), "--data", str(tmp_path / "restored"), "--json"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    with running(PastClock(expected["at_ms"]), data=tmp_path / "restored") as server:
        demand_same(server, expected)


@pytest.mark.parametrize("name", DUMPS)
def test_a_database_of_an_earlier_commit_has_everything_and_works(name: str, tmp_path: Path) -> None:
    expected = unpacked(name, tmp_path)
    clock = PastClock(expected["at_ms"])
    with running_postgres(durable=True) as postgres, pytest.MonkeyPatch.context() as patch:
        # The catalog has an address without the server, which libpq takes from here.
        for variable, value in (("PGHOST", "127.0.0.1"), ("PGPORT", str(postgres.port)), ("PGUSER", "postgres")):
            patch.setenv(variable, value)
        load(postgres, (tmp_path / "dump.sql").read_text("utf-8"))
        options = {"data": tmp_path / "server", "join": catalog_place(ADDRESS)}
        for _ in range(2):
            with running(clock, **options) as server:
                demand_same(server, expected)
        with running(clock, **options) as server:
            use(server, expected)


def load(postgres: PostgresServer, statements: str) -> None:
    """Run what pg_dump wrote; lines with a backslash are psql's own."""
    postgres.execute("\n".join(line for line in statements.splitlines() if not line.startswith("\\")))


@pytest.mark.parametrize("name", FOLDERS)
def test_what_was_metered_and_audited_by_an_earlier_commit_is_kept(name: str, tmp_path: Path) -> None:
    expected = unpacked(name, tmp_path)
    (audit,) = (tmp_path / "data" / "audit").iterdir()
    written = audit.read_text("utf-8")
    clock = PastClock(expected["at_ms"])
    with running(clock, data=tmp_path / "data") as server:
        writer = MeteringWriter(server.server.metering, tmp_path / "data", clock)
        writer.begin()
    asyncio.run(writer.close())
    assert audit.read_text("utf-8").startswith(written)
    # The minutes that were running when the server was killed are in the log now.
    totals: Counter[tuple[str, str]] = Counter()
    for record in MeteringLog(tmp_path / "data" / "metering").read():
        # What is sent on uses no key.
        assert record.namespace == "sbemulatorns"
        assert record.key in ("RootManageSharedAccessKey", "")
        totals[record.entity, record.kind] += record.messages
    assert METERED.items() <= totals.items(), totals


class Sink:
    """Stands in for the SDK's sender, and keeps what it is given."""

    entity_name = "orders"

    def __init__(self) -> None:
        self.taken: list[Any] = []

    async def send_messages(self, message: Any, **_: Any) -> None:
        self.taken += message if isinstance(message, list) else [message]

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("name", FOLDERS)
def test_an_outbox_of_an_earlier_commit_sends_what_it_holds(name: str, tmp_path: Path) -> None:
    unpacked(name, tmp_path)
    sink = Sink()

    async def flush() -> None:
        with Outbox(tmp_path / "outbox.db") as outbox:
            (aside,) = outbox.set_aside()
            assert "too large" in aside.reason
            async with OutboxSender(lambda: sink, outbox) as sender:  # type: ignore[arg-type,return-value]
                assert await sender.flush()
                assert len(sink.taken) == 3
                outbox.try_again()
                assert await sender.flush()

    asyncio.run(asyncio.wait_for(flush(), LIMIT_S))
    raws = [getattr(message, "raw_amqp_message", message) for message in sink.taken]
    assert [b"".join(raw.body) for raw in raws] == [b"kept 0", b"kept 1", b"kept 2", b"too large"]
    assert [raw.properties.group_id for raw in raws] == ["a", "a", "a", "z"]
    assert raws[1].application_properties == {"number": 1, "bytes": b"\0\xff"}
    assert (raws[1].properties.message_id, raws[1].properties.subject) == ("1", "s")


@pytest.mark.parametrize("name", FOLDERS)
def test_ids_that_an_earlier_commit_has_seen_are_known(name: str, tmp_path: Path) -> None:
    unpacked(name, tmp_path)
    with SeenMessages(tmp_path / "seen.db") as seen:
        assert len(seen) == 3
        assert seen.result("with a result") == b"\0result"
        assert all(name in seen for name in ("done", "done too", "with a result"))
        assert "another" not in seen
        seen.record("another")
    with SeenMessages(tmp_path / "seen.db") as seen:
        assert len(seen) == 4


# -- using ------------------------------------------------------------------------------------------------------------


def use(server: Running, expected: dict[str, Any]) -> None:
    """Do with what was found whatever one does with it."""
    with client_of(server.connection_string) as client:
        receive_plain(client, expected)
        receive_sessions(client)
        send_duplicates(client)
        send_further(client)
    with client_of(server.address_by(*SENDS)) as client:
        with client.get_queue_sender("bought") as sender:
            sender.send_messages(text("by a rule"))
        with pytest.raises(ServiceBusAuthorizationError), client.get_queue_receiver("bought"):
            pass
    with client_of(server.address_by(*QUEUE_RULE)) as client, client.get_queue_receiver("made") as receiver:
        receiver.complete_message(one(receiver))
    assert "idle" in server.admin.entries("$Resources/Queues")
    server.advance(timedelta(hours=7))
    assert "idle" not in server.admin.entries("$Resources/Queues")
    with client_of(server.connection_string) as client:
        with client.get_queue_receiver("plain", receive_mode=RECEIVED) as receiver:
            assert bodies(receiver) == ["soon"]
        with client.get_queue_receiver("expiring", sub_queue="deadletter", receive_mode=RECEIVED) as receiver:
            assert sorted(bodies(receiver)) == ["expiring 0", "expiring 1"]


def bodies(receiver: ServiceBusReceiver, number: int = 100) -> list[str]:
    """What there is to receive."""
    found: list[str] = []
    while len(found) < number and (batch := receiver.receive_messages(number - len(found), max_wait_time=1)):
        found += [str(message) for message in batch]
    return found


def receive_plain(client: ServiceBusClient, expected: dict[str, Any]) -> None:
    with client.get_queue_receiver("plain", receive_mode=RECEIVED) as receiver:
        found = bodies(receiver, 8)
        assert found[:6] == [*(f"plain {number}" for number in range(5, 10)), "rich"], found
        assert len(found) == 8
        deferred = receiver.receive_deferred_messages(expected["deferred"])
        assert [str(message) for message in deferred] == ["plain 1", "plain 2"]
    with client.get_queue_sender("plain") as sender:
        sender.cancel_scheduled_messages([expected["soon"][1], *expected["later"]])
    with client.get_queue_receiver("plain", sub_queue="deadletter") as receiver:
        first = one(receiver)
        assert (first.dead_letter_reason, first.dead_letter_error_description) == ("a reason", "and why")
        receiver.complete_message(first)


def receive_sessions(client: ServiceBusClient) -> None:
    for queue, sessions in SESSION_QUEUES.items():
        for name in sessions:
            with client.get_queue_receiver(queue, session_id=name, receive_mode=RECEIVED) as receiver:
                expected = [f"{queue} {name} {number}" for number in range(3)]
                assert bodies(receiver, 3) == (expected[2:] if name == sessions[1] else expected)
                receiver.session.set_state(None)


def send_duplicates(client: ServiceBusClient) -> None:
    for queue in ("once", "parted-once"):
        with client.get_queue_sender(queue) as sender:
            for number in range(7):
                sender.send_messages(ServiceBusMessage(f"again {number}", message_id=f"id-{number}"))
        with client.get_queue_receiver(queue, receive_mode=RECEIVED) as receiver:
            found = bodies(receiver)
            assert len(found) == 6, found
            assert [body for body in found if body.startswith("again")] == ["again 6"]
    with client.get_topic_sender("news") as sender:
        sender.send_messages(text("news 2"))


def send_further(client: ServiceBusClient) -> None:
    with client.get_queue_sender("way") as sender:
        sender.send_messages(text("new way"))
    with client.get_queue_receiver("end", receive_mode=RECEIVED) as receiver:
        assert bodies(receiver, 4) == ["way 1", "way 2", "way 3", "new way"]
    about = {"number": 2, "color": "red", "zero": 0}
    with client.get_topic_sender("news") as sender:
        sender.send_messages(text("new news", session_id="s1", application_properties=about))
    with client.get_subscription_receiver("news", "acted", receive_mode=RECEIVED) as receiver:
        found = receiver.receive_messages(4, max_wait_time=5)
        while len(found) < 4:
            found += receiver.receive_messages(4 - len(found), max_wait_time=5)
        assert [str(message) for message in found] == ["news 0", "news 2", "news 3", "new news"]
        assert found[3].subject == "changed"
        assert found[3].application_properties == {b"number": 2, b"added": 5, b"zero": 0, b"RuleName": b"even"}
    with client.get_subscription_receiver("news", "sessions", session_id="s1", receive_mode=RECEIVED) as receiver:
        assert bodies(receiver, 4) == ["news 1", "news 3", "news 5", "new news"]
    with client.get_queue_receiver("copies", receive_mode=RECEIVED) as receiver:
        found = bodies(receiver, 8)
        assert (len(found), found[6:]) == (8, ["b" * 9000, "new news"])
    with client.get_queue_receiver("large", receive_mode=RECEIVED) as receiver:
        assert bodies(receiver, 1) == ["large " * 400_000]
    with client.get_queue_receiver("bought", receive_mode=RECEIVED) as receiver:
        assert bodies(receiver) == ["committed", "committed"]
    with client.get_queue_receiver("parted", receive_mode=RECEIVED) as receiver:
        found = bodies(receiver, 12)
        for key in range(5):
            mine = [body for body in found if int(body.split()[1]) % 5 == key]
            assert mine == sorted(mine, key=lambda body: int(body.split()[1]))
        assert len(found) == 12
