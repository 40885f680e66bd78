"""The synchronous twins: up to date, and at work against a real broker (decision 0016)."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import threading
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

from duobus.concurrency import sync as tasks
from duobus.ha.deduplication import SeenMessages
from duobus.ha.errors import SendsFailed
from duobus.ha.events import Event, OutboxWaits, Recognised, RolesSwapped
from duobus.ha.outbox.queue import Outbox
from duobus.ha.sdk import prompt_client
from duobus.ha.sync import (
    ActiveReplicationSender,
    IdempotentReceiver,
    OutboxSender,
    OverlappedSender,
    PassiveReplicationSender,
    ReplicatedReceiver,
)
from duobus.testing.server import ServerProcess
from kits.pair import Bus, body

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 60.0
real = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_twins", ROOT / "tools" / "make_twins.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def client(server: ServerProcess) -> ServiceBusClient:
    return prompt_client(ServiceBusClient.from_connection_string(server.connection_string, retry_total=0))


def drained(server: ServerProcess, queue: str) -> list[str]:
    found: list[str] = []
    with client(server) as sdk, sdk.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver:
        while messages := receiver.receive_messages(100, max_wait_time=0.5):
            found += [body(message) for message in messages]
    return found


def test_the_twins_are_what_make_twins_writes(tool: ModuleType) -> None:
    assert tool.stale() == [], "run make twins"


def test_no_twin_awaits_anything(tool: ModuleType) -> None:
    asynchronous = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    for path in files(tool):
        tree = ast.parse(path.read_text())
        assert [node for node in ast.walk(tree) if isinstance(node, asynchronous)] == [], path.name


def test_a_twin_has_the_names_of_its_source(tool: ModuleType) -> None:
    for path in files(tool):
        if path.name != "__init__.py":
            package = f"duobus.{path.parents[1].name}"
            source, twin = (importlib.import_module(f"{package}.{side}.{path.stem}") for side in ("aio", "sync"))
            assert public(source) == public(twin), path.name


def files(tool: ModuleType) -> list[Path]:
    return [path for package in tool.PACKAGES for path in sorted(tool.target_of(package).glob("*.py"))]


def public(module: ModuleType) -> set[str]:
    return {
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    } - {"Cancelled"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("async def f(x):\n    return await x  # why\n", "def f(x):\n    return x  # why\n"),
        ("async with a as b:\n    pass\n", "with a as b:\n    pass\n"),
        ("x: Callable[[], Coroutine[Any, Any, list[int]]]\n", "x: Callable[[], list[int]]\n"),
        (
            "async def __aenter__(s):\n    return await (await a.b()).c('é')\n",
            "def __enter__(s):\n    return (a.b()).c('é')\n",
        ),
        ("from azure.servicebus.aio import A\n", "from azure.servicebus import A\n"),
        ("from duobus.ha.aio import tasks\n", "from duobus.ha.sync import tasks\n"),
    ],
)
def test_what_is_asynchronous_is_taken_out_and_all_else_stays(tool: ModuleType, source: str, expected: str) -> None:
    assert tool.twin_of(source, "m.py").split("\n", 1)[1] == expected


@pytest.mark.parametrize("source", ["import asyncio\n", "async def f(x):\n    return [i async for i in x]\n"])
def test_what_has_no_synchronous_form_is_refused(tool: ModuleType, source: str) -> None:
    with pytest.raises(tool.TwinError, match=r"m\.py:"):
        tool.twin_of(source, "m.py")


def test_a_task_that_is_cancelled_ends_at_what_it_waits_for() -> None:
    begun, ended = tasks.Signal(), tasks.Signal()

    def work() -> None:
        try:
            begun.set()
            tasks.sleep(LIMIT_S)
        finally:
            ended.set()

    task = tasks.spawn(work)
    assert begun.wait(LIMIT_S)
    task.cancel()
    assert ended.wait(LIMIT_S / 2)
    task.ended()


def test_an_event_that_nobody_sets_is_waited_for_as_long_as_asked() -> None:
    assert not tasks.Signal().wait(0.01)


def test_functions_run_side_by_side_and_errors_are_answers() -> None:
    meeting = threading.Barrier(2, timeout=LIMIT_S)

    def fail() -> None:
        meeting.wait()
        raise OSError("away")

    one, two = tasks.together(meeting.wait, fail)
    assert isinstance(one, int)
    assert isinstance(two, OSError)
    assert tasks.together() == []


def test_a_call_that_never_returns_is_left_and_those_left_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "LEFT_MAX", 2)
    back = threading.Event()
    assert tasks.within(LIMIT_S, lambda: 5) == 5
    with pytest.raises(OSError, match="away"):
        tasks.within(LIMIT_S, partial(raising, OSError("away")))
    for _ in range(2):
        with pytest.raises(TimeoutError):
            tasks.within(0.01, partial(back.wait, LIMIT_S))
    with pytest.raises(TimeoutError, match="2 calls of the SDK have not come back"):
        tasks.within(LIMIT_S, lambda: 5)
    back.set()
    for thread in threading.enumerate():
        if thread.name == "duobus call":
            thread.join(LIMIT_S)
    assert tasks.within(LIMIT_S, lambda: 6) == 6


def raising(error: Exception) -> None:
    raise error


class Events(list[Event]):
    """What was told; wait for something of it."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self.changed:
            self.append(event)
            self.changed.notify_all()

    def wait(self, kind: type[Event]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: any(isinstance(event, kind) for event in self), LIMIT_S)


class TestOverTheWire:
    pytestmark = real

    def test_an_outbox_sends_from_threads_what_it_took_while_the_broker_was_away(
        self, bus: Bus, tmp_path: Path
    ) -> None:
        events = Events()
        with Outbox(tmp_path / "outbox.db", retry_first_ms=50, retry_last_ms=200) as outbox, client(bus.primary) as sdk:
            bus.primary.kill()
            with OutboxSender(lambda: sdk.get_queue_sender(bus.orders), outbox, on_event=events) as sender:
                for number in range(5):
                    sender.send_messages(ServiceBusMessage(str(number)))
                events.wait(OutboxWaits)
                bus.primary.start()
                assert sender.flush(LIMIT_S)
            assert outbox.depth.set_aside == 0
        assert list(dict.fromkeys(drained(bus.primary, bus.orders))) == list("01234")

    def test_sends_are_overlapped_and_a_failed_one_is_told(self, bus: Bus) -> None:
        with client(bus.primary) as sdk:
            with OverlappedSender(lambda: sdk.get_queue_sender(bus.orders), in_flight=4) as sender:
                for number in range(20):
                    sender.send(ServiceBusMessage(str(number)))
            lost = OverlappedSender(lambda: sdk.get_queue_sender("nowhere"))
            lost.send(ServiceBusMessage("x"))
            with pytest.raises(SendsFailed):
                lost.flush()
            lost.close()
        assert sorted(drained(bus.primary, bus.orders), key=int) == [str(number) for number in range(20)]

    def test_both_kinds_of_replication_and_each_message_is_handed_out_once(self, bus: Bus, tmp_path: Path) -> None:
        events = Events()
        with client(bus.primary) as one, client(bus.secondary) as two, SeenMessages(tmp_path / "seen.db") as seen:

            def senders() -> list[Any]:
                return [one.get_queue_sender(bus.orders), two.get_queue_sender(bus.backlogs[0])]

            with ActiveReplicationSender(senders()) as active:
                active.send_messages(ServiceBusMessage("both"))
            bus.primary.kill()
            with PassiveReplicationSender(senders(), on_event=events) as passive:
                passive.send_messages(ServiceBusMessage("either"))
            events.wait(RolesSwapped)
            bus.primary.start()
            receivers = [one.get_queue_receiver(bus.orders), two.get_queue_receiver(bus.backlogs[0])]
            with ReplicatedReceiver(receivers, seen) as receiver:
                done: list[str] = []
                while messages := receiver.receive_messages(10, max_wait_time=1.5):
                    for message in messages:
                        done.append(body(message))
                        receiver.complete_message(message)
        assert sorted(done) == ["both", "either"]

    def test_work_is_done_once(self, bus: Bus, tmp_path: Path) -> None:
        done: list[str] = []
        events = Events()

        def work(message: ServiceBusReceivedMessage) -> bytes | None:
            done.append(body(message))
            return None

        with client(bus.primary) as sdk, SeenMessages(tmp_path / "seen.db") as seen:
            with sdk.get_queue_sender(bus.orders) as sender:
                for _ in range(2):
                    sender.send_messages(ServiceBusMessage("a", message_id="m"))
            with IdempotentReceiver(sdk.get_queue_receiver(bus.orders), seen, on_event=events) as receiver:
                while len(done) + len(events) < 2:
                    receiver.process(work, 2, max_wait_time=5)
        assert done == ["a"]
        assert [type(event) for event in events] == [Recognised]
        assert drained(bus.primary, bus.orders) == []
