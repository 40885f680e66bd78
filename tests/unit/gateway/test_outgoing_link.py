"""A link on which a client receives, by itself: stand-ins have the places of connection, queue and broker."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from duobus.amqp import ACCEPTED, DETACHED, HELD, RELEASED, Modified, Rejected
from duobus.amqp import Error as AmqpError
from duobus.broker import ABANDON, COMPLETE, DEAD_LETTER, DEAD_LETTER_OUTCOME, DEFER, MAIN, QueuedMessage, lock_lost
from duobus.codec import Symbol
from duobus.errors import NotAllowed, QuotaExceeded, ServiceBusError
from duobus.gateway.amqp.deliveries import Deliveries
from duobus.gateway.amqp.links.outgoing_link import UNSENT_BYTES_MAX, WRITTEN_BYTES, OutgoingLink
from duobus.gateway.amqp.mapping import HeadMaker
from duobus.gateway.amqp.pacing import ASKED_FIRST, ASKED_MAX
from duobus.gateway.waits import REST_S
from duobus.model.batches import DeliveryBatch
from duobus.model.metering import EMPTY_RECEIVE, OPERATION_BYTES, RECEIVE, SETTLE

PREFIX = b"\0\x01lifesa"


class Line:
    """The engine's side of the link."""

    def __init__(self) -> None:
        self.credit = 0
        self.window = 1 << 30
        self.drain = self.echo = self.is_held = self.holds_detach = False
        self.state: Any = None
        self.sent: list[tuple[int, int, bool]] = []
        self.flows = self.drains = self.detaches = 0
        self.next_id = 0
        self.told: list[tuple[int, int, Any]] = []
        self.session = SimpleNamespace(
            disposition=lambda role, first, last, state, settled: self.told.append((first, last, state))
        )

    def sendable(self) -> int:
        return min(self.credit, self.window)

    def send_run(self, prefix: bytes, first_lock: int, heads: list[bytes], payloads: list[bytes], settled: bool) -> int:
        assert len(heads) == len(payloads) <= self.sendable()
        first = self.next_id
        self.next_id += len(payloads)
        self.credit -= len(payloads)
        self.window -= len(payloads)
        self.sent.append((first_lock, len(payloads), settled))
        return first

    def flow(self) -> None:
        self.flows += 1

    def drained(self) -> None:
        self.drains += 1
        self.credit = 0
        self.drain = False

    def answer_detach(self) -> None:
        self.detaches += 1
        self.is_held = False


class Receiver:
    """What the broker knows of the link: how much is wanted of it, and how much is granted."""

    def __init__(self) -> None:
        self.wanted = self.granted = 0
        self.asked: list[int] = []
        self.is_closed = False
        self.gate: Any = None

    def request(self, number: int) -> None:
        self.wanted = number
        self.asked.append(number)

    def close(self) -> None:
        self.is_closed = True
        self.wanted = 0


class Room:
    """A link with everything around it."""

    def __init__(self, *, removing: bool = False, size_max: int = 1 << 10) -> None:
        self.line: Any = Line()
        self.receiver: Any = Receiver()
        self.deliveries = Deliveries()
        self.looked = self.allowed = 0
        self.metered: list[tuple[Any, ...]] = []
        self.settled: list[Any] = []
        self.unlocked: list[tuple[bytes, list[tuple[int, int]]]] = []
        self.lost: list[int] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        about = SimpleNamespace(default_message_time_to_live_ms=None, max_message_size_bytes=size_max)
        self.queue: Any = SimpleNamespace(
            description=about, source_no=0, path="q", fragments=[], settle=self.settled.append
        )
        self.handle: Any = SimpleNamespace(number=1, unlock=self._unlock)
        self.peer: Any = SimpleNamespace(
            throttle="the gate",
            schedule=self._look,
            allow_output=self._allow,
            meter=lambda queue, *what: self.metered.append(what),
            error=lambda error, path: error,
            has_room=True,
            can_write=True,
            is_gone=False,
            server=SimpleNamespace(loop=SimpleNamespace(call_later=lambda s, call: self.timers.append((s, call)))),
        )
        self.link = OutgoingLink(
            self.peer,
            self.line,
            self.queue,
            ("q",),
            sub_queue=MAIN,
            is_removing=removing,
            deliveries=self.deliveries,
            receiver=self.receiver,
        )

    def _look(self, link: OutgoingLink) -> None:
        self.looked += 1

    def _allow(self) -> None:
        self.allowed += 1

    def _unlock(self, source_no: int, prefix: bytes, ranges: Any, *, counted: bool) -> list[int]:
        assert (source_no, prefix, counted) == (0, PREFIX, False)
        self.unlocked.append((prefix, list(ranges)))
        return self.lost

    def hand_out(self, *payloads: bytes, first_lock: int = 100) -> None:
        messages = [QueuedMessage(count, payload, 5) for count, payload in enumerate(payloads, 1)]
        self.link.ready.append(DeliveryBatch(self.handle, PREFIX, first_lock, messages, 9))

    def delivered(self, number: int = 4, first_lock: int = 100) -> None:
        """Hand messages out that are on the wire at once."""
        self.line.credit += number
        self.hand_out(*[b"x"] * number, first_lock=first_lock)
        self.link.deliver_answers()
        self.metered.clear()

    def settle(self, first: int, last: int, state: Any, *, settled: bool = False) -> None:
        self.link.settle(self.deliveries.settle(first, last), state, settled=settled)

    def answer(self, command: Any, error: ServiceBusError | None = None, lost: tuple[int, ...] = ()) -> None:
        command.error, command.lost = error, list(lost)
        self.link.ready.append(command)
        self.link.deliver_answers()

    def told(self) -> list[tuple[int, int, str]]:
        found = []
        for first, last, state in self.line.told:
            error = getattr(state, "error", None)
            found.append((first, last, type(error).__name__ if error is not None else type(state).__name__))
        self.line.told.clear()
        return found


# -- credit ----------------------------------------------------------------------------------------------------


def test_credit_becomes_a_request_of_what_the_client_may_have_at_a_time() -> None:
    room = Room()
    assert (room.receiver.gate, room.line.holds_detach) == ("the gate", True)
    for credit, asked in ((5, 5), (ASKED_FIRST, ASKED_FIRST), (5000, ASKED_FIRST)):
        room.line.credit = credit
        room.link.flow()
        assert room.receiver.wanted == asked
    assert (room.line.flows, room.looked) == (0, 0)


def test_who_reads_may_have_twice_as_many_each_time() -> None:
    room = Room()
    for asked in (ASKED_FIRST, 64, 128, 256, 512, ASKED_MAX, ASKED_MAX):
        room.line.credit = 5000
        room.link.flow()
        assert room.receiver.wanted == asked
        room.hand_out(b"x")
        room.link.deliver_answers()
    # From then on the connection may keep as much as anybody's.
    assert room.allowed == 1


def test_an_echo_is_answered_by_a_flow_and_a_drain_by_what_ends_it() -> None:
    room = Room()
    room.line.credit, room.line.echo = 5, True
    room.link.flow()
    assert room.line.flows == 1
    room.line.drain = True
    room.link.flow()
    assert room.line.flows == 1


def test_credit_that_is_taken_back_gives_messages_back_that_wait_for_the_window() -> None:
    room = Room()
    room.line.credit, room.line.window = 6, 0
    room.hand_out(b"a", b"b", b"c", first_lock=100)
    room.hand_out(b"d", b"e", b"f", first_lock=200)
    room.link.deliver_answers()
    assert (room.link.unsent, room.line.sent) == (6, [])
    room.line.credit = 2
    room.link.flow()
    assert room.unlocked == [(PREFIX, [(200, 3)]), (PREFIX, [(102, 1)])]
    assert room.link.unsent == 2
    assert room.receiver.wanted == 0
    room.line.window = 9
    room.link.deliver_answers()
    assert (room.line.sent, room.link.unsent) == ([(100, 2, False)], 0)


def test_what_was_removed_is_kept_for_the_next_credit() -> None:
    room = Room(removing=True)
    room.line.credit, room.line.window = 2, 0
    room.hand_out(b"a", b"b")
    room.link.deliver_answers()
    room.line.credit = 0
    room.link.flow()
    assert (room.unlocked, room.link.unsent) == ([], 2)
    room.line.drain = True
    room.link.flow()
    room.link.deliver_answers()
    assert room.line.drains == 1
    room.line.credit, room.line.window = 2, 9
    room.link.flow()
    room.link.deliver_answers()
    assert room.line.sent == [(100, 2, True)]
    assert len(room.deliveries) == 0


def test_large_messages_that_wait_for_a_slow_client_bring_no_more_into_memory() -> None:
    room = Room(size_max=100 << 20)
    room.line.credit, room.line.window = 50, 0
    half = b"x" * (UNSENT_BYTES_MAX // 2)
    room.hand_out(half)
    room.link.flow()
    assert room.receiver.wanted == ASKED_FIRST - 1
    room.hand_out(half, b"more")
    room.link.deliver_answers()
    assert room.receiver.wanted == 0
    room.link.flow()
    assert room.receiver.wanted == 0


def test_messages_are_written_a_quarter_of_a_mebibyte_at_a_time() -> None:
    room = Room(size_max=1 << 20)
    room.line.credit = 9
    third = b"x" * (WRITTEN_BYTES // 3)
    room.hand_out(*[third] * 5, b"x" * (2 * WRITTEN_BYTES), b"y")
    room.link.deliver_answers()
    assert room.line.sent == [(100, 3, False), (103, 2, False), (105, 1, False), (106, 1, False)]


def test_nothing_is_written_while_the_socket_has_no_room_and_the_rest_goes_on() -> None:
    room = Room()
    room.line.credit = 9
    room.peer.has_room = False
    room.hand_out(b"a", b"b")
    room.link.deliver_answers()
    assert (room.line.sent, room.link.unsent, room.looked) == ([], 2, 1)
    room.peer.can_write = False
    room.link.deliver_answers()
    assert room.looked == 1
    room.peer.has_room = room.peer.can_write = True
    room.line.window = 1
    room.link.deliver_answers()
    assert (room.line.sent, room.link.unsent, room.looked) == ([(100, 1, False)], 1, 1)


def test_a_client_with_more_credit_is_asked_for_again_after_a_rest() -> None:
    room = Room()
    room.line.credit = 500
    room.link.flow()
    room.receiver.wanted = ASKED_FIRST // 2 + 1
    room.link.deliver_answers()
    assert room.timers == []
    room.receiver.wanted = ASKED_FIRST // 2
    room.link.deliver_answers()
    room.link.deliver_answers()
    ((after_s, ask),) = room.timers
    assert after_s == REST_S
    ask()
    assert room.receiver.wanted == ASKED_FIRST
    room.receiver.wanted = 0
    room.link.deliver_answers()
    assert len(room.timers) == 2
    room.link.close()
    room.timers[-1][1]()
    assert room.receiver.wanted == 0


# -- drain -----------------------------------------------------------------------------------------------------


def drained(room: Room) -> bool:
    # A drain waits for a rest between two questions, too.
    while room.timers:
        room.timers.pop(0)[1]()
    room.line.drain = True
    room.link.flow()
    before = room.line.drains
    room.link.deliver_answers()
    return bool(room.line.drains > before)


def test_a_drain_that_brought_nothing_is_an_empty_receive() -> None:
    room = Room()
    room.line.credit = 5
    assert drained(room)
    assert room.metered == [(EMPTY_RECEIVE, 1, 0, 1, MAIN)]
    assert room.receiver.wanted == 0
    # Without credit nothing had been asked for.
    room.metered.clear()
    assert drained(room)
    assert room.metered == []


def test_a_drain_after_messages_is_no_empty_receive_and_the_next_one_is() -> None:
    room = Room()
    room.line.credit = 5
    room.hand_out(b"a")
    room.link.deliver_answers()
    assert drained(room)
    assert [entry[0] for entry in room.metered] == [RECEIVE]
    room.line.credit = 5
    assert drained(room)
    assert [entry[0] for entry in room.metered] == [RECEIVE, EMPTY_RECEIVE]


def test_a_drain_waits_for_what_is_lent_for_settlements_and_for_what_is_not_written() -> None:
    room = Room()
    room.delivered(2)
    room.line.credit = 5
    room.receiver.granted = 1
    assert not drained(room)
    room.receiver.granted = 0
    room.settle(0, 0, ACCEPTED)
    room.link.deliver_answers()
    assert room.line.drains == 0
    room.line.window = 0
    room.hand_out(b"a")
    room.answer(room.settled[0])
    assert (room.line.drains, room.told()) == (0, [(0, 0, "Accepted")])
    room.line.window = 1
    room.link.deliver_answers()
    assert room.line.drains == 1


# -- deliveries ------------------------------------------------------------------------------------------------


def test_what_is_written_is_metered_by_messages_bytes_and_operations() -> None:
    room = Room(size_max=1 << 20)
    room.line.credit = 9
    room.hand_out(b"a", b"bb")
    room.link.deliver_answers()
    room.hand_out(b"x" * (OPERATION_BYTES + 1), b"y")
    room.link.deliver_answers()
    small = b"z" * (OPERATION_BYTES // 2 + 1)
    room.hand_out(small, small)
    room.link.deliver_answers()
    assert room.metered == [
        (RECEIVE, 2, 3, 2, MAIN),
        (RECEIVE, 2, OPERATION_BYTES + 2, 3, MAIN),
        (RECEIVE, 2, 2 * len(small), 2, MAIN),
    ]


@pytest.mark.parametrize("sub_queue", [MAIN, DEAD_LETTER])
def test_the_life_of_the_queue_is_told_of_messages_that_it_holds_for(sub_queue: int) -> None:
    room = Room()
    room.queue.description.default_message_time_to_live_ms = 60_000
    link = OutgoingLink(
        room.peer,
        room.line,
        room.queue,
        ("q",),
        sub_queue=sub_queue,
        is_removing=False,
        deliveries=room.deliveries,
        receiver=room.receiver,
    )
    message = QueuedMessage(1, b"x", 5)
    (head,), _ = link._heads.heads([message], 1, PREFIX, 7, 9)
    (wanted,), _ = HeadMaker(60_000 if sub_queue == MAIN else None, locks=True).heads([message], 1, PREFIX, 7, 9)
    assert head == wanted


def test_an_empty_batch_says_only_that_nothing_was_there() -> None:
    room = Room()
    room.line.credit = 1
    room.link.wake()
    room.link.wake()
    assert (room.looked, room.link.is_waiting) == (1, True)
    room.hand_out()
    room.link.deliver_answers()
    assert (room.line.sent, room.link.unsent, room.link.is_waiting) == ([], 0, False)


def test_messages_that_are_there_are_counted_over_all_fragments() -> None:
    room = Room()
    fragments = [SimpleNamespace(available=lambda source_no, sub, n=n: n) for n in (3, -2, 4)]
    room.queue.fragments = [*(SimpleNamespace(fragment=one) for one in fragments), SimpleNamespace(fragment=None)]
    assert room.link.available() == 7


# -- settlement ------------------------------------------------------------------------------------------------


REJECTED = Rejected(
    AmqpError(
        Symbol("com.microsoft:dead-letter"),
        "the description of the error",
        {Symbol("DeadLetterReason"): "why", Symbol("DeadLetterErrorDescription"): "how", Symbol("more"): 5},
    )
)


@pytest.mark.parametrize(
    ("state", "outcome", "detail", "answer"),
    [
        (ACCEPTED, COMPLETE, None, "Accepted"),
        (None, COMPLETE, None, "Accepted"),
        (Modified(True, False, {Symbol("a"): 1}), ABANDON, ({"a": 1}, None, None), "Modified"),
        (Modified(None, None, None), ABANDON, None, "Modified"),
        (Modified(None, True, {Symbol("a"): 1}), DEFER, ({"a": 1}, None, None), "Modified"),
        (Rejected(None), DEAD_LETTER_OUTCOME, (None, None, None), "Rejected"),
        (REJECTED, DEAD_LETTER_OUTCOME, ({"more": 5}, "why", "how"), "Rejected"),
        (
            Rejected(AmqpError(Symbol("com.microsoft:dead-letter"), "text", None)),
            DEAD_LETTER_OUTCOME,
            ({}, None, "text"),
            "Rejected",
        ),
        (
            Rejected(AmqpError(Symbol("my:error"), None, {Symbol("DeadLetterErrorDescription"): 7})),
            DEAD_LETTER_OUTCOME,
            ({}, "my:error", "7"),
            "Rejected",
        ),
        (
            Rejected(AmqpError(Symbol("my:error"), None, {Symbol("DeadLetterReason"): "mine"})),
            DEAD_LETTER_OUTCOME,
            ({}, "mine", None),
            "Rejected",
        ),
    ],
)
def test_an_outcome_says_what_becomes_of_messages(state: Any, outcome: int, detail: Any, answer: str) -> None:
    room = Room()
    room.delivered(3)
    room.settle(0, 1, state)
    (command,) = room.settled
    assert (command.outcome, command.ranges, command.prefix) == (outcome, [(100, 2)], PREFIX)
    assert (command.reply, room.link.owed, room.link.owes) == (room.link, 1, True)
    found = command.detail
    assert (None if found is None else (found.properties, found.reason, found.description)) == detail
    assert room.metered == [(SETTLE, 2, 0, 2, MAIN)]
    room.answer(command)
    assert (room.told(), room.link.owes) == ([(0, 1, answer)], False)


def test_messages_of_several_stretches_are_one_command_and_their_outcomes_one_range() -> None:
    room = Room()
    room.delivered(2, first_lock=100)
    room.delivered(2, first_lock=500)
    room.settle(0, 3, ACCEPTED)
    (command,) = room.settled
    assert (command.ranges, command.answer_to) == ([(100, 2), (500, 2)], [0, 2])
    room.answer(command)
    assert room.told() == [(0, 3, "Accepted")]


def test_outcomes_are_never_told_over_ids_between() -> None:
    room = Room()
    room.line.next_id = 0xFFFFFFFE
    room.delivered(5)
    room.settle(0xFFFFFFFE, 0, ACCEPTED)
    room.settle(2, 2, ACCEPTED)
    for command in room.settled:
        command.error, command.lost = None, []
        room.link.ready.append(command)
    room.link.deliver_answers()
    assert room.told() == [(2, 2, "Accepted"), (0xFFFFFFFE, 0, "Accepted")]


def test_what_was_settled_by_the_client_is_not_answered() -> None:
    room = Room()
    room.delivered(2)
    room.settle(0, 1, ACCEPTED, settled=True)
    (command,) = room.settled
    assert (command.reply, room.link.owes, room.told()) == (None, False, [])


def test_an_outcome_that_nobody_knows_is_refused_at_once() -> None:
    for settled in (False, True):
        room = Room()
        room.delivered(2)
        room.settle(0, 1, object(), settled=settled)
        assert room.settled == []
        assert room.told() == ([] if settled else [(0, 1, "NotImplementedYet")])


def test_released_messages_go_back_at_once_and_a_lost_lock_is_told() -> None:
    for settled in (False, True):
        room = Room()
        room.delivered(4)
        room.lost = [101]
        room.settle(0, 2, RELEASED, settled=settled)
        assert room.unlocked == [(PREFIX, [(100, 3)])]
        told = [(0, 0, "Released"), (2, 2, "Released"), (1, 1, "MessageLockLost")]
        assert room.told() == ([] if settled else told)
        assert room.settled == []


def test_a_settlement_that_failed_is_told_with_its_error_and_a_lost_lock_apart() -> None:
    room = Room()
    room.delivered(4)
    room.settle(0, 0, ACCEPTED)
    room.settle(1, 3, ACCEPTED)
    one, other = room.settled
    room.answer(one, QuotaExceeded("full"))
    assert room.told() == [(0, 0, "QuotaExceeded")]
    assert room.link.owes
    room.answer(other, lost=(102,))
    assert room.told() == [(2, 2, "MessageLockLost"), (1, 1, "Accepted"), (3, 3, "Accepted")]
    assert not room.link.owes


def test_nobody_is_told_when_the_connection_is_gone() -> None:
    room = Room()
    room.delivered(2)
    room.settle(0, 1, ACCEPTED)
    room.peer.is_gone = True
    room.answer(room.settled[0], lock_lost())
    assert room.told() == []


def test_a_transaction_gets_the_commands_and_what_to_answer() -> None:
    room = Room()
    room.delivered(3)
    found = room.deliveries.settle(0, 1, mark=False)
    (command,), state = room.link.settlements(found, Modified(None, True, None))
    assert (command.outcome, command.ranges, command.reply, room.settled) == (DEFER, [(100, 2)], None, [])
    assert isinstance(state, Modified)
    assert state.undeliverable_here
    room.link.answer(found, state)
    assert room.told() == [(0, 1, "Modified")]
    with pytest.raises(NotAllowed, match="Release outside of it"):
        room.link.settlements(found, RELEASED)


# -- the end ---------------------------------------------------------------------------------------------------


def test_a_link_that_ends_gives_back_what_the_client_never_saw() -> None:
    room = Room()
    room.line.credit, room.line.window = 5, 2
    room.hand_out(b"a", b"b", b"c", b"d")
    room.link.deliver_answers()
    room.hand_out(b"e", first_lock=300)
    room.link.close()
    assert room.receiver.is_closed
    assert room.unlocked == [(PREFIX, [(102, 2)]), (PREFIX, [(300, 1)])]
    # What it saw keeps its locks, but nobody can settle it here any more.
    assert len(room.deliveries) == 0
    removing = Room(removing=True)
    removing.hand_out(b"a")
    removing.link.close()
    assert removing.unlocked == []


@pytest.mark.parametrize("state", [HELD, DETACHED, None])
@pytest.mark.parametrize("wanted", [0, 5])
@pytest.mark.parametrize("sent", [0, 1])
def test_a_client_that_detaches_without_a_message_has_received_nothing(state: Any, wanted: int, sent: int) -> None:
    room = Room()
    room.line.credit = 5
    if sent:
        room.hand_out(b"a")
        room.link.deliver_answers()
    room.metered.clear()
    room.receiver.wanted = wanted
    room.line.state = state
    room.link.close()
    is_empty = state is not None and wanted and not sent
    assert room.metered == ([(EMPTY_RECEIVE, 1, 0, 1, MAIN)] if is_empty else [])


def test_a_detach_is_answered_behind_the_outcomes_that_are_owed() -> None:
    room = Room()
    room.delivered(2)
    room.settle(0, 0, ACCEPTED)
    room.settle(1, 1, ACCEPTED)
    room.line.is_held = True
    room.link.close()
    assert room.line.detaches == 0
    one, other = room.settled
    room.answer(one)
    assert room.line.detaches == 0
    room.answer(other)
    assert (room.line.detaches, room.told()) == (1, [(0, 0, "Accepted"), (1, 1, "Accepted")])
    quiet = Room()
    quiet.line.is_held = True
    quiet.link.close()
    assert quiet.line.detaches == 1
