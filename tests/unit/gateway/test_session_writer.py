"""What links share that hold sessions of one queue, by itself: whose settlement is whose."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from duobus.amqp import ACCEPTED, Modified, Rejected
from duobus.broker import QueuedMessage
from duobus.broker.delivery.session_groups import SessionDeliveryBatch
from duobus.errors import QuotaExceeded, ServiceBusError
from duobus.gateway.amqp.deliveries import Deliveries
from duobus.gateway.amqp.links import session_writer
from duobus.gateway.amqp.links.outgoing_link import WRITTEN_BYTES
from duobus.gateway.amqp.links.session_writer import SessionWriter, leave, session_writer_of
from duobus.gateway.amqp.pacing import ASKED_MAX
from duobus.model.metering import RECEIVE, SETTLE

PREFIX = b"\0\x01lifesa"


class Link:
    """One of the links."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.even = 0
        self.settled: list[Any] = []

    def settle(self, stretches: Any, state: Any, *, settled: bool) -> None:
        self.settled.append(([stretch[1:] for stretch in stretches], state, settled))

    def lost_error(self, error: ServiceBusError) -> ServiceBusError:
        return QuotaExceeded(f"{self.name}: {type(error).__name__}")

    def is_even(self) -> None:
        self.even += 1


class Named(SimpleNamespace):
    """A queue, which is itself and no other."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Room:
    """A session group with seven deliveries of two links: a, a, b, b, b, a, a."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, Any]] = []
        self.commands: list[Any] = []
        self.metered: list[Any] = []
        self.deliveries = Deliveries()
        self.queue: Any = Named(
            path="q",
            source_no=0,
            settle=self.commands.append,
            description=SimpleNamespace(default_message_time_to_live_ms=None, max_message_size_bytes=1 << 20),
        )
        self.peer: Any = SimpleNamespace(
            is_gone=False,
            meter=lambda queue, *what: self.metered.append(what),
            error=lambda error, path: error,
            allow_output=lambda: None,
        )
        self.session: Any = SimpleNamespace(
            disposition=lambda role, first, last, state, settled: self.told.append((first, last, state))
        )
        self.writer = session_writer_of(self.peer, self.session, self.queue, self.deliveries)
        self.a, self.b = Link("a"), Link("b")
        self.owners = [self.a, self.a, self.b, self.b, self.b, self.a, self.a]
        handle: Any = SimpleNamespace()
        self.deliveries.add(self.writer, handle, PREFIX, 10, 100, 7, self.owners)

    def settle(self, first: int, last: int, state: Any = ACCEPTED, *, settled: bool = False) -> None:
        self.writer.settle(self.deliveries.settle(first, last), state, settled=settled)

    def answer(self, error: ServiceBusError | None = None, lost: tuple[int, ...] = ()) -> list[tuple[int, int, str]]:
        for command in self.commands:
            command.error, command.lost = error, list(lost)
        self.writer._answer(self.commands)
        self.commands.clear()
        return [
            (first, last, str(state.error) if isinstance(state, Rejected) else "accepted")
            for first, last, state in self.told
        ]


@pytest.mark.parametrize("state", [ACCEPTED, None])
def test_a_completion_over_many_links_is_one_command(state: Any) -> None:
    room = Room()
    room.settle(11, 14, state)
    (command,) = room.commands
    assert (command.ranges, command.reply) == ([(101, 4)], room.writer)
    assert room.metered == [(SETTLE, 4, 0, 4)]
    assert (room.a.settled, room.b.settled) == ([], [])
    assert room.writer.owes(room.a)  # type: ignore[arg-type]
    assert room.writer.owes(room.b)  # type: ignore[arg-type]
    assert room.answer() == [(11, 14, "accepted")]
    assert (room.a.even, room.b.even) == (1, 1)
    assert not room.writer.owes(room.a)  # type: ignore[arg-type]


def test_the_connection_may_keep_more_once_its_client_has_shown_that_it_reads_all() -> None:
    room = Room()
    allowed: list[int] = []
    room.peer.allow_output = lambda: allowed.append(room.writer.pace.asked)
    for first in range(10, 17):
        room.writer.pace.wrote()
        room.settle(first, first)
    assert allowed == [ASKED_MAX]


def test_any_other_outcome_is_each_links_own_matter() -> None:
    room = Room()
    state = Modified(None, True, None)
    room.settle(11, 15, state, settled=True)
    assert room.commands == []
    assert room.a.settled == [([(11, 101, 1), (15, 105, 1)], state, True)]
    assert room.b.settled == [([(12, 102, 3)], state, True)]


def test_only_the_links_of_what_is_owed_wait_for_it() -> None:
    room = Room()
    room.settle(12, 13)
    assert room.writer.owes(room.b)  # type: ignore[arg-type]
    assert not room.writer.owes(room.a)  # type: ignore[arg-type]
    quiet = Room()
    quiet.settle(10, 16, settled=True)
    assert quiet.commands[0].reply is None
    assert not quiet.writer.owes(quiet.a)  # type: ignore[arg-type]


def test_lost_locks_are_told_by_their_links_and_the_others_are_settled() -> None:
    room = Room()
    room.settle(10, 16)
    assert room.answer(lost=(101, 103, 104)) == [
        (11, 11, "a: MessageLockLost"),
        (13, 14, "b: MessageLockLost"),
        (10, 10, "accepted"),
        (12, 12, "accepted"),
        (15, 16, "accepted"),
    ]


def test_a_range_over_what_was_settled_before_is_metered_by_what_is_left() -> None:
    room = Room()
    room.settle(12, 13)
    room.settle(10, 16)
    assert room.metered == [(SETTLE, 2, 0, 2), (SETTLE, 5, 0, 5)]
    assert [command.ranges for command in room.commands] == [[(102, 2)], [(100, 2), (104, 3)]]
    assert room.answer() == [(10, 16, "accepted")]


def test_a_settlement_that_fails_is_refused_to_each_link() -> None:
    room = Room()
    room.settle(11, 12)
    assert room.answer(QuotaExceeded("full")) == [(11, 11, "full"), (12, 12, "full")]
    gone = Room()
    gone.settle(11, 12)
    gone.peer.is_gone = True
    assert gone.answer(QuotaExceeded("full")) == []


def test_what_waits_for_the_socket_goes_to_the_links_whose_it_is_and_outcomes_stay() -> None:
    room = Room()
    kept: list[tuple[str, int, list[str], int]] = []

    def lock_of(name: str) -> Any:
        def keep(batch: Any) -> None:
            kept.append((name, batch.first_lock, batch.messages, batch.locked_until_ms))

        return SimpleNamespace(owner=SimpleNamespace(mailbox=SimpleNamespace(keep=keep)))

    handle: Any = SimpleNamespace()
    messages: Any = ["1", "2", "3"]
    outcome: Any = object()
    parts = [(lock_of("a"), 2, 50), (lock_of("b"), 1, 60)]
    room.writer.ready = [
        outcome,
        SessionDeliveryBatch(handle, PREFIX, 100, messages, parts),
        SessionDeliveryBatch(handle, PREFIX, 200, messages, parts),
    ]
    room.writer.distribute()
    assert room.writer.ready == [outcome]
    assert kept == [
        ("a", 100, ["1", "2"], 50),
        ("b", 102, ["3"], 60),
        ("a", 200, ["1", "2"], 50),
        ("b", 202, ["3"], 60),
    ]


@pytest.mark.parametrize("gets_stuck", [False, True])
def test_large_messages_of_many_links_are_written_a_quarter_of_a_mebibyte_at_a_time(
    monkeypatch: pytest.MonkeyPatch, gets_stuck: bool
) -> None:
    """The socket's room is looked at in between, and what it has none for waits."""
    room = Room()
    room.peer.has_room, room.peer.can_write = True, False
    room.session.can_write = lambda number: True
    written: list[tuple[list[str], list[tuple[bytes, int, int]], list[bytes]]] = []

    def write(session: Any, links: Any, tags: Any, heads: Any, payloads: Any) -> int:
        written.append(([link for link, number in links for _ in range(number)], tags, list(payloads)))
        room.peer.has_room = not gets_stuck
        return 100 * len(written)

    monkeypatch.setattr(session_writer, "send_shared", write)

    def lock_of(name: str) -> Any:
        return SimpleNamespace(owner=SimpleNamespace(mailbox=SimpleNamespace(takes=lambda number: name)))

    texts = [bytes([65 + index]) * (WRITTEN_BYTES * 2 // 5) for index in range(5)]
    messages = [QueuedMessage(count, text, 5) for count, text in enumerate(texts, 1)]
    handle: Any = SimpleNamespace(number=1)
    batch = SessionDeliveryBatch(handle, PREFIX, 200, messages, [(lock_of(name), 1, 9) for name in "abcde"])
    room.writer.ready = [batch]
    room.writer.deliver_answers()
    every = [
        (["a", "b"], [(PREFIX, 200, 2)], texts[:2]),
        (["c", "d"], [(PREFIX, 202, 2)], texts[2:4]),
        (["e"], [(PREFIX, 204, 1)], texts[4:]),
    ]
    assert written == (every[:1] if gets_stuck else every)
    left: Any = room.writer.ready
    assert [(one.first_lock, one.messages, len(one.parts)) for one in left] == (
        [(202, messages[2:], 3)] if gets_stuck else []
    )
    assert room.writer.is_held is gets_stuck


def test_a_session_writer_is_there_as_long_as_one_of_its_links() -> None:
    room = Room()
    assert session_writer_of(room.peer, room.session, room.queue, room.deliveries) is room.writer
    leave(room.writer, room.deliveries)
    assert room.deliveries.writers == {room.queue: room.writer}
    leave(room.writer, room.deliveries)
    assert room.deliveries.writers == {}
    assert isinstance(room.writer, SessionWriter)


def test_batches_that_are_too_large_together_are_written_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room()
    room.peer.has_room, room.peer.can_write = True, True
    room.session.can_write = lambda number: True
    written: list[list[bytes]] = []

    def write(session: Any, links: Any, tags: Any, heads: Any, payloads: list[bytes]) -> int:
        written.append(list(payloads))
        return 100 * len(written)

    monkeypatch.setattr(session_writer, "send_shared", write)
    lock: Any = SimpleNamespace(owner=SimpleNamespace(mailbox=SimpleNamespace(takes=lambda number: "a")))
    handle: Any = SimpleNamespace(number=1)
    half = b"x" * (WRITTEN_BYTES // 2)
    room.writer.ready = [
        SessionDeliveryBatch(handle, PREFIX, 200 + first, [QueuedMessage(1, half, 5)] * 2, [(lock, 2, 9)])
        for first in (0, 2)
    ]
    room.writer.deliver_answers()
    assert written == [[half, half], [half, half]]
    # Each of them is two operations of 64 KiB.
    assert room.metered == [(RECEIVE, 2, WRITTEN_BYTES, 4)] * 2


def test_nothing_is_written_while_the_socket_has_no_room_and_all_of_it_when_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = Room()
    room.peer.has_room, room.peer.can_write = False, False
    room.session.can_write = lambda number: True
    written: list[list[bytes]] = []

    def write(session: Any, links: Any, tags: Any, heads: Any, payloads: list[bytes]) -> int:
        written.append(list(payloads))
        return 100

    monkeypatch.setattr(session_writer, "send_shared", write)
    lock: Any = SimpleNamespace(owner=SimpleNamespace(mailbox=SimpleNamespace(takes=lambda number: "a")))
    handle: Any = SimpleNamespace(number=1)
    batch = SessionDeliveryBatch(handle, PREFIX, 200, [QueuedMessage(1, b"x", 5)], [(lock, 1, 9)])
    room.writer.ready = [batch]
    room.writer.deliver_answers()
    assert (written, room.writer.ready, room.writer.is_held) == ([], [batch], True)
    room.peer.has_room = True
    room.writer.deliver_answers()
    assert (written, room.writer.ready, room.writer.is_held) == ([[b"x"]], [], False)


def test_what_the_window_has_no_room_for_waits_at_its_link_and_is_not_taken_there() -> None:
    room = Room()
    room.peer.has_room, room.peer.can_write = True, True
    asked: list[int] = []
    room.session.can_write = lambda number: bool(asked.append(number))  # type: ignore[func-returns-value]
    kept: list[Any] = []
    taken: list[int] = []
    mailbox = SimpleNamespace(takes=taken.append, keep=kept.append)
    lock: Any = SimpleNamespace(owner=SimpleNamespace(mailbox=mailbox))
    handle: Any = SimpleNamespace(number=1)
    messages = [QueuedMessage(count, b"x", 5) for count in (1, 2, 3)]
    room.writer.ready = [SessionDeliveryBatch(handle, PREFIX, 200, messages, [(lock, 2, 9), (lock, 1, 8)])]
    room.writer.deliver_answers()
    assert (asked, taken) == ([3], [])
    found = [(one.first_lock, one.messages, one.locked_until_ms) for one in kept]
    assert found == [(200, messages[:2], 9), (202, messages[2:], 8)]
    assert (room.writer.ready, room.writer.is_held) == ([], False)
