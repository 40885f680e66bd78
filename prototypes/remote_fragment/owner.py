"""The owner's side: other servers use the fragments of this one, over one connection for each of them.

Locks are given to a connection. When the connection ends, what its front has not settled is given back, counted, as the
messages of a client are whose connection ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from duobus.codec.decoder import decode
from duobus.errors import StoreUnavailable
from duobus.fragment.message import SUB_QUEUES
from duobus.fragment.send import Run
from duobus.fragment.settlement import SettleBatch, SettleDetail
from duobus.model.batches import DeliveryBatch, Mailbox, SendBatch
from prototypes.remote_fragment.protocol import (
    VERSION,
    Answer,
    Delivered,
    FragmentKey,
    FramedConnection,
    Hello,
    Send,
    Settle,
    Take,
    Told,
    Unlock,
    error_as_pair,
)

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle

SOURCE: Final = 0
#: Ranges of locks of one fragment that a connection may hold before those are left out that are over.
RANGES_MAX: Final = 256


class FragmentService:
    """The fragments of this server that others may use.

    Attributes:
        handles: By key.
        connections: Those of the fronts.
    """

    def __init__(self) -> None:
        self.handles: dict[FragmentKey, FragmentHandle] = {}
        self.connections: set[FrontConnection] = set()

    def offered(self) -> None:
        """See credit_scheduler.AvailabilityWatcher: messages for which no receiver of this server waits."""
        for connection in self.connections:
            connection.tell_soon()


class FrontConnection(FramedConnection, Mailbox):
    """The connection of one front; also the mailbox of what the front asked for."""

    def __init__(self, service: FragmentService) -> None:
        FramedConnection.__init__(self)
        Mailbox.__init__(self)
        self._service = service
        self._told: dict[FragmentKey, list[int] | None] = {}
        self._given: dict[tuple[FragmentKey, bytes], list[tuple[int, int]]] = {}
        self._is_telling = False

    def heard(self, message: Any) -> None:
        """See FramedConnection."""
        if isinstance(message, Hello):
            if message.version != VERSION:
                self.abort()
                return
            self._service.connections.add(self)
            self._told.clear()
            self.tell_soon()
            return
        handle = self._service.handles.get(message.fragment)
        if isinstance(message, Send):
            self._send(handle, message)
        elif isinstance(message, Settle):
            self._settle(handle, message)
        elif isinstance(message, Take):
            self._take(handle, message)
        elif isinstance(message, Unlock) and handle is not None:
            handle.unlock(SOURCE, message.prefix, message.ranges, counted=message.is_counted)

    # -- requests -----------------------------------------------------------------------------------------------

    def _send(self, handle: FragmentHandle | None, message: Send) -> None:
        if handle is None:
            self._refuse(message.number)
            return
        batch = SendBatch(message.number, message.payloads, True, self)
        batch.extra, batch.atomic, batch.ping = message.metadata, message.is_atomic, message.is_ping
        handle.submit(Run(handle, SOURCE, batch, None, None))

    def _settle(self, handle: FragmentHandle | None, message: Settle) -> None:
        if handle is None:
            self._refuse(message.number)
            return
        command = SettleBatch(
            handle, SOURCE, self, prefix=message.prefix, outcome=message.outcome, ranges=message.ranges
        )
        command.answer_to = [message.number]
        if message.has_detail:
            properties = None if message.properties is None else decode(message.properties)[0]
            command.detail = SettleDetail(properties, message.reason, message.description)
        handle.submit(command)

    def _refuse(self, number: int) -> None:
        error = StoreUnavailable("The fragment is not at this server any more. Try again in a few seconds.")
        self.say(Answer(number, error_as_pair(error)))

    def _take(self, handle: FragmentHandle | None, message: Take) -> None:
        taker = Taker(self, message)
        try:
            if handle is not None:
                handle.take(SOURCE, message.sub_queue, message.credit, taker)  # type: ignore[arg-type]
                return
        except StoreUnavailable:
            # The lease has ended this moment.
            pass
        taker.deliver(DeliveryBatch(None, b"", 0, [], 0), message.credit)

    # -- answers ------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """See Mailbox: a commit is durable, or something was refused."""
        ready, self.ready = self.ready, []
        for command in ready:
            if isinstance(command, SettleBatch):
                answer = Answer(command.answer_to[0], error_as_pair(command.error), command.lost)
            else:
                answer = Answer(command.batch.first_delivery_id, error_as_pair(command.error))
            self.say(answer)

    def give(self, request: Take, batch: DeliveryBatch) -> None:
        """Messages for a front."""
        messages, key = batch.messages, request.fragment
        if messages and not request.is_removing:
            self._note_given(key, batch)
            if self.is_gone:
                self._give_back()
        fragment = None if batch.fragment is None else batch.fragment.fragment
        # What is there and cannot be given (messages that are being read from the store) is told when it can be.
        left = 0 if fragment is None or not messages else max(0, fragment.available(SOURCE, request.sub_queue))
        told = self._told.get(key)
        if told is not None:
            told[request.sub_queue] = left
        self.say(
            Delivered(
                request.number,
                left,
                batch.prefix,
                batch.first_lock,
                batch.locked_until_ms,
                [message.count for message in messages],
                [message.enqueued_ms for message in messages],
                [message.payload for message in messages],
                column([message.deliveries for message in messages]),
                column([message.state for message in messages]),
                column([message.metadata for message in messages]),
            )
        )

    def _note_given(self, key: Any, batch: DeliveryBatch) -> None:
        ranges = self._given.setdefault((key, batch.prefix), [])
        ranges.append((batch.first_lock, len(batch.messages)))
        if len(ranges) > RANGES_MAX:
            fragment = batch.fragment.fragment
            held = fragment.sources[SOURCE].locks if fragment is not None else {}
            ranges[:] = [(first, n) for first, n in ranges if any(lock in held for lock in range(first, first + n))]

    # -- what is available --------------------------------------------------------------------------------------

    def tell_soon(self) -> None:
        """Say at the end of this turn what is available, where the front does not know it."""
        if not self._is_telling and not self.is_gone:
            self._is_telling = True
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._is_telling = False
        for key, handle in self._service.handles.items():
            fragment = handle.fragment
            now = None
            if fragment is not None:
                now = [max(0, fragment.available(SOURCE, sub_queue)) for sub_queue in range(SUB_QUEUES)]
            if self._told.get(key, ()) != now:
                self._told[key] = now
                self.say(Told(key, None if now is None else list(now)))
        for key in [key for key in self._told if key not in self._service.handles]:
            del self._told[key]
            self.say(Told(key, None))

    # -- the end ------------------------------------------------------------------------------------------------

    def lost(self) -> None:
        """See FramedConnection."""
        self._service.connections.discard(self)
        self._give_back()

    def _give_back(self) -> None:
        given, self._given = self._given, {}
        for (key, prefix), ranges in given.items():
            handle = self._service.handles.get(key)
            if handle is not None:
                handle.unlock(SOURCE, prefix, ranges, counted=True)


class Taker:
    """What ``FragmentHandle.take`` knows of a receiver."""

    __slots__ = ("_connection", "_request", "removing")

    def __init__(self, connection: FrontConnection, request: Take) -> None:
        self._connection = connection
        self._request = request
        self.removing = request.is_removing

    def deliver(self, batch: DeliveryBatch, granted: int) -> None:
        """See Receiver."""
        del granted
        self._connection.give(self._request, batch)


def column(values: list[Any]) -> list[Any] | None:
    """A column of a Delivered; None when every value is the default."""
    return values if any(values) else None
