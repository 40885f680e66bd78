"""OutgoingLink: a client receives. Credit becomes a standing request, what the broker hands out becomes transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duobus.amqp import ACCEPTED, DETACHED, HELD, RELEASED, DeliveryState, Link, Modified, Rejected, Session
from duobus.broker import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER_OUTCOME,
    DEFER,
    MAIN,
    FragmentHandle,
    Queue,
    QueuedMessage,
    SessionReceiver,
    SettleBatch,
    SettleDetail,
    Subscription,
    lock_lost,
)
from duobus.errors import MessageLockLost, NotAllowed, NotImplementedYet, ServiceBusError
from duobus.gateway.amqp.entity_status import demand_receiving
from duobus.gateway.amqp.links.link import Claim, Endpoint
from duobus.gateway.amqp.mapping import CopyHeadMaker, HeadMaker
from duobus.gateway.amqp.pacing import SlowStart
from duobus.gateway.waits import REST_S
from duobus.model.batches import DeliveryBatch, Mailbox
from duobus.model.descriptions import Right
from duobus.model.metering import EMPTY_RECEIVE, OPERATION_BYTES, RECEIVE, SETTLE, operations_of

if TYPE_CHECKING:
    from duobus.gateway.amqp.deliveries import Deliveries, DeliveryRun
    from duobus.gateway.amqp.peer import Peer

#: How many bytes of messages are written before the output's size is looked at again.
WRITTEN_BYTES = 1 << 18
#: Payload bytes of large messages that wait for a slow client; beyond, its credit brings no more into memory.
UNSENT_BYTES_MAX = 4 << 20
#: Of an entity that allows messages beyond this, the bytes are counted; a thousand smaller ones are bounded enough.
COUNTED_FROM = 1 << 20

DEAD_LETTER_REASON = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION = "DeadLetterErrorDescription"

#: The answer to a disposition names the outcome that was asked for (AMQP 1.0 part 3, 3.4).
_ANSWERS: dict[int, DeliveryState] = {
    COMPLETE: ACCEPTED,
    ABANDON: Modified(None, None, None),
    DEFER: Modified(None, True, None),
    DEAD_LETTER_OUTCOME: Rejected(None),
}


def head_maker_of(queue: Queue) -> type[HeadMaker]:
    """What makes the heads of messages of a queue; those of a subscription are copies."""
    return CopyHeadMaker if isinstance(queue, Subscription) else HeadMaker


class OutgoingLink(Mailbox, Endpoint):
    """One link on which a client receives from a queue or one of its sub-queues.

    Attributes:
        link: The engine's side of it.
        owed: Settlements whose outcome the client waits for, those apart that are shared with other links.
    """

    __slots__ = (
        "_counts_bytes",
        "_deliveries",
        "_draining",
        "_heads",
        "_is_asked",
        "_is_over",
        "_pace",
        "_peer",
        "_receiver",
        "_rests",
        "_sent_since_drain",
        "_size_max",
        "_sub_queue",
        "_unsent",
        "_unsent_number",
        "is_removing",
        "is_waiting",
        "link",
        "owed",
        "queue",
        "segments",
    )

    queue: Queue
    is_entity = True

    def __init__(
        self,
        peer: Peer,
        link: Link,
        queue: Queue,
        segments: tuple[str, ...],
        *,
        sub_queue: int,
        is_removing: bool,
        deliveries: Deliveries,
        receiver: SessionReceiver | None = None,
    ) -> None:
        super().__init__()
        self._peer = peer
        self.link = link
        link.holds_detach = True
        self.queue = queue
        self.segments = segments
        self.is_removing = is_removing
        self.is_waiting = False
        self._deliveries = deliveries
        # Batches that credit was granted for but that are not on the wire yet: (batch, offset of the first unsent).
        self._unsent: list[tuple[DeliveryBatch, int]] = []
        self._unsent_number = 0
        self._pace = SlowStart()
        # More will be asked for in a moment; or never again.
        self._rests = self._is_over = False
        self.owed = 0
        self._draining = self._is_asked = False
        self._sent_since_drain = 0
        self._sub_queue = sub_queue
        self._receiver = receiver or queue.open_receiver(sub_queue, self, removing=is_removing)
        self._receiver.gate = peer.throttle
        self.entity_changed()

    def demand_enabled(self) -> None:
        """Raise the error of a queue that does not allow this link any more."""
        demand_receiving(self.queue, self._sub_queue)

    @property
    def sub_queue(self) -> int:
        """Where it receives from: the entity itself, or its dead letters."""
        return self._sub_queue

    def entity_changed(self) -> None:
        """Take from the queue's properties what deliveries are made with."""
        about = self.queue.description
        default_ttl = about.default_message_time_to_live_ms if self._sub_queue == MAIN else None
        self._heads = head_maker_of(self.queue)(default_ttl, locks=not self.is_removing)
        self._size_max = about.max_message_size_bytes
        self._counts_bytes = self._size_max > COUNTED_FROM

    def wake(self) -> None:
        """See Mailbox."""
        if not self.is_waiting:
            self.is_waiting = True
            self._peer.schedule(self)

    @property
    def owes(self) -> bool:
        """Whether settlements are on their way to a store, and their outcomes not told yet."""
        return self.owed > 0

    @property
    def unsent(self) -> int:
        """Messages that lie here and wait for the window, the socket or credit."""
        return self._unsent_number

    def needs(self) -> tuple[Claim, ...]:
        """See Endpoint."""
        return ((self.segments, (Right.LISTEN,)),)

    def session_flow(self) -> None:
        """The client takes more on the session of the link."""
        self.wake()

    def resume(self) -> None:
        """The client's socket takes more again: write what waits for the window, the socket or credit."""
        if self._unsent_number:
            self.wake()

    def available(self) -> int:
        """Messages that the fragments could give to this link now."""
        source_no, sub_queue = self.queue.source_no, self._sub_queue
        present = (handle.fragment for handle in self.queue.fragments)
        return sum(max(0, one.available(source_no, sub_queue)) for one in present if one is not None)

    # -- credit -------------------------------------------------------------------------------------------------

    def flow(self) -> None:
        """The client changed its credit or wants to drain."""
        if self.link.drain:
            # Python's SDK takes its credit back as it drains: what stood until then has ended with nothing (I59).
            self._draining = True
            self._is_asked = self.link.credit + self._receiver.wanted + self._receiver.granted > 0
        self.proved()
        if self.ready:
            self.ready = self._take_ready()
        if self._unsent_number > self.link.credit:
            self._give_back_surplus()
        self._ask()
        if self._draining or self._unsent_number:
            self.wake()
        if self.link.echo and not self._draining:
            self.link.flow()

    def proved(self) -> None:
        """The client has shown that it reads what it is sent."""
        if self._pace.on_progress():
            self._peer.allow_output()

    def _ask(self) -> None:
        # What was handed out in this turn has used up credit, too; asked for twice, it would wait here for more.
        if self.ready:
            self.ready = self._take_ready()
        number = max(0, min(self.link.credit, self._pace.asked) - self._unsent_number)
        self._receiver.request(0 if self._counts_bytes and self._holds_much() else number)

    def _ask_on(self) -> None:
        if self._pace.is_full:
            self._ask()
        elif not self._rests:
            self._rests = True
            self._peer.server.loop.call_later(REST_S, self._ask_later)

    def _ask_later(self) -> None:
        self._rests = False
        if not self._is_over:
            self._ask()
            if self._draining:
                self.wake()

    def _holds_much(self) -> bool:
        """Whether large messages wait to be written already; asked of entities that allow such messages."""
        size: int = sum(message.size for batch, offset in self._unsent for message in batch.messages[offset:])
        return size > UNSENT_BYTES_MAX

    def _give_back_surplus(self) -> None:
        """Credit was taken back while messages waited for the window: they are not this client's any more."""
        while self._unsent_number > self.link.credit and not self.is_removing:
            batch, offset = self._unsent.pop()
            number = min(len(batch.messages) - offset, self._unsent_number - self.link.credit)
            keep = len(batch.messages) - number
            if keep > offset:
                kept = DeliveryBatch(
                    batch.fragment, batch.prefix, batch.first_lock, batch.messages[:keep], batch.locked_until_ms
                )
                self._unsent.append((kept, offset))
            self._unsent_number -= number
            self._unlock(batch, keep, number)

    def _unlock(self, batch: DeliveryBatch, offset: int, number: int) -> None:
        """Give messages of a batch back that the client never saw."""
        handle, ranges = batch.fragment, [(batch.first_lock + offset, number)]
        handle.unlock(self.queue.source_no, batch.prefix, ranges, counted=False)

    def _answer_drain(self) -> None:
        """Answer a drain, if nothing that was asked for is under way any more (AMQP 1.0 part 2, 2.6.7).

        Outcomes go first: the JavaScript SDK drains, closes the link, and waits for settlements until it times out.
        """
        # Removed messages that wait without credit cannot be given back; they go out with the next credit.
        nothing_waits = not self._unsent or (self.is_removing and not self.link.credit)
        # What ``_ask`` got at once lies in the mailbox: it is looked at before the drain is answered.
        nothing_waits = nothing_waits and not self.ready and not self._rests
        if nothing_waits and not self._receiver.granted and not self.owes:
            self._draining = False
            if self._is_asked and not self._sent_since_drain:
                self._peer.meter(self.queue, EMPTY_RECEIVE, 1, 0, 1, self._sub_queue)
            self._sent_since_drain = 0
            self._receiver.request(0)
            self.link.drained()

    # -- deliveries ---------------------------------------------------------------------------------------------

    def deliver_answers(self) -> None:
        """Write what the broker handed out or settled; called once a turn."""
        self.is_waiting = False
        if self.ready and (outcomes := self._take_ready()):
            self._answer_settlements(outcomes)
        if self._counts_bytes and self._receiver.wanted and self._holds_much():
            self._receiver.request(0)
        self.pump()

    def _take_ready(self) -> list[SettleBatch]:
        """Put what was handed out with the unsent, and return the settlements that are done."""
        ready, self.ready = self.ready, []
        outcomes: list[SettleBatch] = []
        for item in ready:
            if isinstance(item, DeliveryBatch):
                if item.messages:
                    self._unsent.append((item, 0))
                    self._unsent_number += len(item.messages)
            else:
                outcomes.append(item)
        return outcomes

    def pump(self) -> None:
        """Write as many deliveries as window and socket allow."""
        link = self.link
        peer = self._peer
        while self._unsent and peer.has_room:
            batch, offset = self._unsent[0]
            number = min(len(batch.messages) - offset, link.sendable())
            if number <= 0:
                break
            if number * self._size_max > WRITTEN_BYTES:
                number = _fitting(batch.messages, offset, number)
            messages = batch.messages if number == len(batch.messages) else batch.messages[offset : offset + number]
            self._write(batch, messages, batch.first_lock + offset)
            if offset + number == len(batch.messages):
                self._unsent.pop(0)
            else:
                self._unsent[0] = (batch, offset + number)
            self._unsent_number -= number
        if self._unsent and peer.can_write and not peer.has_room:
            # Goes on once this much is handed to the socket.
            self.wake()
        elif not self._unsent:
            asked = self._receiver.wanted + self._receiver.granted
            if link.credit > asked and asked <= self._pace.asked // 2:
                # There is more credit than was asked for at a time.
                self._ask_on()
        if self._draining:
            self._answer_drain()

    def _write(self, batch: DeliveryBatch, messages: list[QueuedMessage], first_lock: int) -> None:
        handle: FragmentHandle = batch.fragment
        heads, payloads = self._heads.heads(messages, handle.number, batch.prefix, first_lock, batch.locked_until_ms)
        first_id = self.link.send_run(batch.prefix, first_lock, heads, payloads, self.is_removing)
        if not self.is_removing:
            self._deliveries.add(self, handle, batch.prefix, first_id, first_lock, len(messages))
        self._sent_since_drain += len(messages)
        self._pace.wrote()
        size = sum(map(len, payloads))
        operations = len(payloads)
        if size > OPERATION_BYTES and max(map(len, payloads)) > OPERATION_BYTES:
            operations = sum(operations_of(len(payload)) for payload in payloads)
        self._peer.meter(self.queue, RECEIVE, len(payloads), size, operations, self._sub_queue)

    # -- settlement ---------------------------------------------------------------------------------------------

    def settle(
        self, found: list[tuple[DeliveryRun, int, int, int]], state: DeliveryState | None, *, settled: bool
    ) -> None:
        """Settle deliveries of this link: (run, first delivery-id, first lock, number) of each stretch."""
        self.proved()
        if state is RELEASED:
            self._release(found, settled=settled)
            return
        outcome = COMPLETE if state is ACCEPTED else outcome_of(state)
        if outcome is None:
            if not settled:
                error = NotImplementedYet("This outcome is not supported by this version of the broker.")
                self._answer(_ids(found), Rejected(self._peer.error(error, self.queue.path)))
            return
        commands = self._commands(found, outcome, state, None if settled else self)
        if not settled:
            self.owed += len(commands)
        for command in commands:
            self.queue.settle(command)
        number = sum(entry[3] for entry in found)
        self._peer.meter(self.queue, SETTLE, number, 0, number, self._sub_queue)

    def _commands(
        self,
        found: list[tuple[DeliveryRun, int, int, int]],
        outcome: int,
        state: DeliveryState | None,
        reply: OutgoingLink | None,
    ) -> list[SettleBatch]:
        """One command per fragment."""
        detail = None if outcome == COMPLETE else _detail_of(state)
        commands: dict[tuple[int, bytes], SettleBatch] = {}
        for run, first_id, first_lock, number in found:
            key = (id(run.handle), run.prefix)
            command = commands.get(key)
            if command is None:
                command = commands[key] = SettleBatch(
                    run.handle, self.queue.source_no, reply, prefix=run.prefix, outcome=outcome, ranges=[]
                )
                command.detail = detail
            command.ranges.append((first_lock, number))
            command.answer_to.append(first_id)
        return list(commands.values())

    def settlements(
        self, found: list[tuple[DeliveryRun, int, int, int]], state: DeliveryState | None
    ) -> tuple[list[SettleBatch], DeliveryState]:
        """The commands that settle deliveries of this link, for a transaction, and the outcome to answer with.

        Raises:
            NotAllowed: An outcome that changes nothing in the store, so that it can be no part of a transaction.
        """
        outcome = outcome_of(state)
        if outcome is None:
            raise NotAllowed("A transaction completes, abandons, defers or dead-letters. Release outside of it.")
        return self._commands(found, outcome, state, None), _ANSWERS[outcome]

    def answer(self, found: list[tuple[DeliveryRun, int, int, int]], state: DeliveryState) -> None:
        """Tell the client what became of deliveries of this link."""
        self._answer(_ids(found), state)

    def _release(self, found: list[tuple[DeliveryRun, int, int, int]], *, settled: bool) -> None:
        done: list[tuple[int, int]] = []
        gone: list[tuple[int, int]] = []
        for run, first_id, first_lock, number in found:
            ranges = [(first_lock, number)]
            lost = set(run.handle.unlock(self.queue.source_no, run.prefix, ranges, counted=False))
            for offset in range(number):
                delivery_id = first_id + offset
                (gone if first_lock + offset in lost else done).append((delivery_id, delivery_id))
        if not settled:
            self._answer(done, RELEASED)
            self._answer_lost(gone)

    def _answer_lost(self, gone: list[tuple[int, int]]) -> None:
        """Say of these deliveries that their locks are lost."""
        if gone:
            self._answer(gone, Rejected(self._peer.error(self.lost_error(lock_lost()), self.queue.path)))

    def lost_error(self, error: ServiceBusError) -> ServiceBusError:
        """What to say of a lock that is lost."""
        return error

    def _answer_settlements(self, commands: list[SettleBatch]) -> None:
        self.owed -= len(commands)
        done: dict[int, list[tuple[int, int]]] = {}
        for command in commands:
            ranges = [
                (first_id, first_id + number - 1)
                for first_id, (_, number) in zip(command.answer_to, command.ranges, strict=True)
            ]
            if command.error is not None:
                error = command.error
                if isinstance(error, MessageLockLost):
                    error = self.lost_error(error)
                self._answer(ranges, Rejected(self._peer.error(error, self.queue.path)))
            elif command.lost:
                self._answer_partly(command, done.setdefault(command.outcome, []))
            else:
                done.setdefault(command.outcome, []).extend(ranges)
        for outcome, ranges in done.items() if not self._peer.is_gone else ():
            write_outcome(self.link.session, ranges, _ANSWERS[outcome])
        if self.link.is_held and not self.owes:
            self.link.answer_detach()

    def _answer_partly(self, command: SettleBatch, done: list[tuple[int, int]]) -> None:
        lost = set(command.lost)
        gone: list[tuple[int, int]] = []
        for first_id, (first_lock, number) in zip(command.answer_to, command.ranges, strict=True):
            for offset in range(number):
                (gone if first_lock + offset in lost else done).append((first_id + offset, first_id + offset))
        self._answer_lost(gone)

    def _answer(self, ranges: list[tuple[int, int]], state: DeliveryState) -> None:
        """See ``write_outcome``."""
        if not self._peer.is_gone:
            write_outcome(self.link.session, ranges, state)

    # -- the end ------------------------------------------------------------------------------------------------

    def ask_no_more(self) -> None:
        """The connection is gone; ``close`` follows."""
        self._is_over = True
        self._receiver.close()

    def close(self) -> None:
        """The link is gone: what was never written goes back uncounted; what was keeps its locks.

        Outcomes that are still owed are told all the same; a client that detached hears our answer after them.
        """
        if self.link.state in (HELD, DETACHED) and self._receiver.wanted and not self._sent_since_drain:
            self._peer.meter(self.queue, EMPTY_RECEIVE, 1, 0, 1, self._sub_queue)
        self.ask_no_more()
        self._answer_settlements(self._take_ready())
        while self._unsent:
            batch, offset = self._unsent.pop(0)
            if not self.is_removing:
                self._unlock(batch, offset, len(batch.messages) - offset)
        self._deliveries.forget(self)


def write_outcome(session: Session, ranges: list[tuple[int, int]], state: DeliveryState) -> None:
    """Dispositions to the client, neighbours merged, never over ids in between (AMQP 1.0 part 2, 2.7.6)."""
    if not ranges:
        return
    ranges.sort()
    first, last = ranges[0]
    for start, end in ranges[1:]:
        if start == last + 1:
            last = end
        else:
            session.disposition(False, first & 0xFFFFFFFF, last & 0xFFFFFFFF, state, True)
            first, last = start, end
    session.disposition(False, first & 0xFFFFFFFF, last & 0xFFFFFFFF, state, True)


def _fitting(messages: list[QueuedMessage], offset: int, number: int) -> int:
    """How many of these messages, at least one, have WRITTEN_BYTES together."""
    size = 0
    for index in range(offset, offset + number):
        size += messages[index].size
        if size > WRITTEN_BYTES:
            return max(1, index - offset)
    return number


def _ids(found: list[tuple[DeliveryRun, int, int, int]]) -> list[tuple[int, int]]:
    return [(first_id, first_id + number - 1) for _, first_id, _, number in found]


def outcome_of(state: DeliveryState | None) -> int | None:
    """Return what a receiver's state asks for; None for what is not supported."""
    # A receiver that settles without a state means accepted.
    if state is ACCEPTED or state is None:
        return COMPLETE
    if isinstance(state, Modified):
        # Only undeliverable-here decides; Python says delivery-failed true, JavaScript null (AMQP 1.0 part 3, 3.4).
        return DEFER if state.undeliverable_here else ABANDON
    if isinstance(state, Rejected):
        return DEAD_LETTER_OUTCOME
    return None


def _detail_of(state: DeliveryState | None) -> SettleDetail | None:
    if isinstance(state, Modified) and state.message_annotations:
        return SettleDetail(_properties(state.message_annotations), None, None)
    if isinstance(state, Rejected):
        error = state.error
        if error is None:
            return SettleDetail(None, None, None)
        info = dict(error.info or {})
        reason = info.pop(DEAD_LETTER_REASON, None)
        description = info.pop(DEAD_LETTER_DESCRIPTION, None)
        if error.condition != "com.microsoft:dead-letter" and reason is None:
            # A plain client's rejection: its condition is the reason (AMQP 1.0 part 3, 3.4).
            reason = str(error.condition)
        if description is None:
            description = error.description
        return SettleDetail(_properties(info), _text(reason), _text(description))
    return None


def _properties(annotations: dict[Any, Any]) -> dict[str, Any]:
    """Keys arrive as symbols and become strings (AMQP 1.0 part 3, 3.4)."""
    return {str(key): value for key, value in annotations.items()}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
