"""SessionWriter: the links of one AMQP session that hold sessions of one queue, written to and settled together.

A client may hold thousands of sessions, each with a link of its own, and a turn has one or two messages for each. What
belongs to no link in particular is done once for all of them: one pass over the transfers of a turn, one settlement
for a disposition's whole range, one disposition back. Whatever has metadata goes to the link whose delivery it is.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from duobus.amqp import ACCEPTED, DeliveryState, Rejected, Session, send_shared
from duobus.broker import COMPLETE, Queue, SessionDeliveryBatch, SessionGroup, SettleBatch, lock_lost
from duobus.errors import MessageLockLost
from duobus.gateway.amqp.deliveries import Stretch, split
from duobus.gateway.amqp.links.outgoing_link import WRITTEN_BYTES, head_maker_of, write_outcome
from duobus.gateway.amqp.mapping import HeadMaker, Rest
from duobus.gateway.amqp.pacing import SlowStart
from duobus.model.metering import OPERATION_BYTES, RECEIVE, SETTLE, operations_of

if TYPE_CHECKING:
    from duobus.amqp import Link
    from duobus.gateway.amqp.deliveries import Deliveries, DeliveryRun
    from duobus.gateway.amqp.links.session_link import SessionLink
    from duobus.gateway.amqp.peer import Peer


_PAYLOAD: Final = attrgetter("payload")


class _WriteBuffer:
    """What is written in one go: messages of any number of fragments and links.

    Attributes:
        links: The links with the number of each, in order.
        endpoints, untils: Link and end of lock of each message.
        runs: What has consecutive locks: (batch, first lock, number).
        heads, payloads: Of each message, as far as it was added.
        number: How many those are.
    """

    __slots__ = ("endpoints", "heads", "links", "number", "payloads", "runs", "untils")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin the next one."""
        self.links: list[tuple[Link, int]] = []
        self.endpoints: list[SessionLink] = []
        self.untils: list[int] = []
        self.runs: list[tuple[SessionDeliveryBatch, int, int]] = []
        self.heads: list[bytes] = []
        self.payloads: list[Rest] = []
        self.number = 0

    def add(self, maker: HeadMaker, batch: SessionDeliveryBatch, start: int, end: int) -> None:
        """Add these messages of a batch; their links, endpoints and ends of locks are there already."""
        many = end - start
        if not many:
            return
        messages = batch.messages if many == len(batch.messages) else batch.messages[start:end]
        untils = self.untils if not self.number else self.untils[self.number :]
        heads, payloads = maker.heads_until(
            messages, batch.handle.number, batch.prefix, batch.first_lock + start, untils
        )
        self.heads += heads
        self.payloads += payloads
        self.runs.append((batch, batch.first_lock + start, many))
        self.number += many


class SessionWriter(SessionGroup):
    """What the links of one AMQP session that hold sessions of one queue share.

    Attributes:
        queue: Whose sessions they hold.
        links: How many there are.
        pace: At which each of them asks for messages: what shows on one that the client reads holds for all.
    """

    __slots__ = (
        "_awaiting",
        "_deliveries",
        "_heads",
        "_is_waiting",
        "_owed",
        "_owing",
        "_peer",
        "_session",
        "links",
        "pace",
        "queue",
    )

    def __init__(self, peer: Peer, session: Session, queue: Queue, deliveries: Deliveries) -> None:
        super().__init__()
        self._peer = peer
        self._session = session
        self._deliveries = deliveries
        self._is_waiting = False
        # Settlements whose outcome the client waits for, and the links that wait until none of theirs is among them.
        self._owed: dict[SettleBatch, None] = {}
        self._awaiting: dict[SessionLink, None] = {}
        # The links that these belong to; None: to be found out, once for all that ask.
        self._owing: set[SessionLink] | None = None
        self.queue = queue
        self.links = 0
        self.pace = SlowStart()
        self.entity_changed()

    def entity_changed(self) -> None:
        """Take from the queue's properties what deliveries are made with."""
        self._heads = head_maker_of(self.queue)(self.queue.description.default_message_time_to_live_ms, locks=True)

    def wake(self) -> None:
        """See Mailbox."""
        if not self._is_waiting:
            self._is_waiting = True
            self._peer.schedule(self)

    def deliver_answers(self) -> None:
        """Write what the broker settled or handed out; called once a turn."""
        self._is_waiting = False
        released, self.ready = self.ready, []
        outcomes = [item for item in released if isinstance(item, SettleBatch)]
        if outcomes:
            self._answer(outcomes)
        batches = [item for item in released if isinstance(item, SessionDeliveryBatch)]
        if batches:
            batches = self._write_all(batches)
        if batches:
            # Before what came meanwhile. It goes on when the socket takes more, or has got what was written.
            self.ready = [*batches, *self.ready]
            self.is_held = True
            if self._peer.can_write:
                self.wake()
        elif self.is_held:
            self.go_on()

    # -- deliveries ---------------------------------------------------------------------------------------------

    def _write_all(self, batches: list[SessionDeliveryBatch]) -> list[SessionDeliveryBatch]:
        """Write what is as usual; what has to wait for anything but the socket waits at its link.

        Returns:
            What the socket has no room for.
        """
        letter = _WriteBuffer()
        for index, batch in enumerate(batches):
            messages = batch.messages
            # So many at a time, then the output's size is looked at again.
            stretch = max(1, WRITTEN_BYTES // max(map(len, map(_PAYLOAD, messages))))
            if letter.number + len(messages) > stretch:
                self._post(letter)
            if not letter.number and not self._peer.has_room:
                return batches[index:]
            may_write = self._session.can_write(letter.number + len(messages))
            start = at = 0
            for part, (lock, number, until_ms) in enumerate(batch.parts):
                endpoint: SessionLink = lock.owner.mailbox  # type: ignore[attr-defined]  # a SessionReceiver's
                end = at + number
                if end - start > stretch and at > start:
                    letter.add(self._heads, batch, start, at)
                    self._post(letter)
                    start = at
                    if not self._peer.has_room:
                        return [batch.behind(part, at), *batches[index + 1 :]]
                link = endpoint.takes(number) if may_write and number <= stretch else None
                if link is not None:
                    letter.links.append((link, number))
                    if number == 1:
                        letter.endpoints.append(endpoint)
                        letter.untils.append(until_ms)
                    else:
                        letter.endpoints += [endpoint] * number
                        letter.untils += [until_ms] * number
                else:
                    letter.add(self._heads, batch, start, at)
                    endpoint.keep(batch.batch_of(at, number, until_ms))
                    start = end
                at = end
            letter.add(self._heads, batch, start, at)
        self._post(letter)
        return []

    def _post(self, letter: _WriteBuffer) -> None:
        """Write the messages of a letter in one go, and empty it."""
        number = letter.number
        if not number:
            return
        payloads = letter.payloads
        self.pace.wrote()
        tags = [(batch.prefix, first_lock, many) for batch, first_lock, many in letter.runs]
        first_id = send_shared(self._session, letter.links, tags, letter.heads, payloads)
        at = 0
        for batch, first_lock, many in letter.runs:
            endpoints = letter.endpoints[at : at + many]
            self._deliveries.add(self, batch.handle, batch.prefix, first_id + at, first_lock, many, endpoints)
            at += many
        size = sum(map(len, payloads))
        operations = number
        if size > OPERATION_BYTES and max(map(len, payloads)) > OPERATION_BYTES:
            operations = sum(operations_of(len(payload)) for payload in payloads)
        self._peer.meter(self.queue, RECEIVE, number, size, operations)
        letter.clear()

    def distribute(self) -> None:
        """Leave what waits for the socket to the links whose it is: one of them goes, and takes its own along."""
        ready, self.ready = self.ready, []
        for item in ready:
            if not isinstance(item, SessionDeliveryBatch):
                self.ready.append(item)
                continue
            at = 0
            for lock, number, until_ms in item.parts:
                lock.owner.mailbox.keep(item.batch_of(at, number, until_ms))  # type: ignore[attr-defined]
                at += number

    # -- settlement ---------------------------------------------------------------------------------------------

    def settle(self, found: list[Stretch], state: DeliveryState | None, *, settled: bool) -> None:
        """Settle deliveries of these links; what is not a plain completion is each link's own matter."""
        if state is not ACCEPTED and state is not None:
            for link, stretches in split(found).items():
                link.settle(stretches, state, settled=settled)
            return
        commands: dict[tuple[int, bytes], SettleBatch] = {}
        number_of_all = 0
        for run, first_id, first_lock, number in found:
            key = (id(run.handle), run.prefix)
            command = commands.get(key)
            if command is None:
                command = commands[key] = SettleBatch(
                    run.handle,
                    self.queue.source_no,
                    None if settled else self,
                    prefix=run.prefix,
                    outcome=COMPLETE,
                    ranges=[],
                )
            command.ranges.append((first_lock, number))
            command.answer_to.append((first_id, run))
            number_of_all += number
        if self.pace.on_progress():
            self._peer.allow_output()
        self._owing = None
        for command in commands.values():
            if not settled:
                self._owed[command] = None
            self.queue.settle(command)
        self._peer.meter(self.queue, SETTLE, number_of_all, 0, number_of_all)

    def _answer(self, commands: list[SettleBatch]) -> None:
        done: list[tuple[int, int]] = []
        for command in commands:
            stretches = _stretches_of(command)
            if command.error is None and not command.lost:
                done += [(first_id, first_id + number - 1) for _, first_id, _, number in stretches]
            else:
                self._answer_singly(command, stretches, done)
        if not self._peer.is_gone:
            write_outcome(self._session, done, ACCEPTED)
        for command in commands:
            del self._owed[command]
        self._owing = None
        if self._awaiting:
            awaiting, self._awaiting = self._awaiting, {}
            for link in awaiting:
                link.is_even()

    def owes(self, link: SessionLink) -> bool:
        """Whether the client waits for an outcome of this link's; if so ``is_even`` is called when that may be over."""
        owing = self._owing
        if owing is None:
            owing = self._owing = {
                owner
                for command in self._owed
                for run, _, first_lock, number in _stretches_of(command)
                for owner in run.links_of(first_lock, number)
            }
        if link in owing:
            self._awaiting[link] = None
        return link in owing

    def _answer_singly(self, command: SettleBatch, stretches: list[Stretch], done: list[tuple[int, int]]) -> None:
        """Some of it was refused: each link knows what to say of its own."""
        lost = set(command.lost)
        for link, own in split(stretches).items():
            gone: list[tuple[int, int]] = []
            for _, first_id, first_lock, number in own:
                for offset in range(number):
                    is_lost = command.error is not None or first_lock + offset in lost
                    (gone if is_lost else done).append((first_id + offset, first_id + offset))
            if gone:
                error = command.error or lock_lost()
                if isinstance(error, MessageLockLost):
                    error = link.lost_error(error)
                if not self._peer.is_gone:
                    write_outcome(self._session, gone, Rejected(self._peer.error(error, self.queue.path)))


def _stretches_of(command: SettleBatch) -> list[tuple[DeliveryRun, int, int, int]]:
    return [
        (run, first_id, first_lock, number)
        for (first_id, run), (first_lock, number) in zip(command.answer_to, command.ranges, strict=True)
    ]


def session_writer_of(peer: Peer, session: Session, queue: Queue, deliveries: Deliveries) -> SessionWriter:
    """The session writer of an AMQP session for a queue, which one more link uses from now on."""
    writer = deliveries.writers.get(queue)
    if writer is None:
        writer = deliveries.writers[queue] = SessionWriter(peer, session, queue, deliveries)
    writer.links += 1
    return writer


def leave(writer: SessionWriter, deliveries: Deliveries) -> None:
    """One of its links is gone."""
    writer.links -= 1
    if not writer.links:
        deliveries.writers.pop(writer.queue, None)
