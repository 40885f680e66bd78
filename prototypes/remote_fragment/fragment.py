"""RemoteFragment: the handle of a fragment that another server owns, with the verbs of ``FragmentHandle``.

``Queue``, ``Placement`` and ``CreditScheduler`` use a RemoteFragment beside the handles of this server's own fragments
and do not know the difference. The locks are the owner's: this side holds the numbers of locks, and nothing else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from duobus.broker import admission
from duobus.codec.encoder import encode
from duobus.errors import MessageLockLost, NotImplementedYet, OperationTimeout, ServiceBusError, StoreUnavailable
from duobus.fragment.message import SUB_QUEUES, QueuedMessage
from duobus.fragment.send import Run
from duobus.fragment.settlement import SettleBatch
from duobus.model.batches import DeliveryBatch
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
    error_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duobus.broker.delivery.credit_scheduler import Receiver
    from duobus.fragment.commands import Command

#: An owner that has not answered for so long, in seconds, gets nothing that can go elsewhere.
LATE_S: Final = 1.0
AWAY: Final = "The server of this part of the queue cannot be reached at present. Try again in a few seconds."
IN_DOUBT: Final = (
    "The server of this part of the queue went away before it had answered: the messages may be stored or not. Send "
    "them again."
)


class Mirror:
    """What this server knows of a fragment that is elsewhere: the part of ``Fragment`` that credit and placement read.

    Attributes:
        told: What the owner has said is available, per sub-queue.
        asked: Credit that was granted to the owner since, and not answered.
    """

    __slots__ = ("asked", "told")

    def __init__(self) -> None:
        self.told = [0] * SUB_QUEUES
        self.asked = [0] * SUB_QUEUES

    def available(self, source_no: int, sub_queue: int) -> int:
        """See Fragment. The order of one connection makes the subtraction right, but see README.md."""
        del source_no
        return self.told[sub_queue] - self.asked[sub_queue]

    def has_room(self, size: int) -> bool:
        """See Fragment. The owner refuses what has no room; a keyless message does not go elsewhere then."""
        del size
        return True


class RemoteStore:
    """How the store of a remote fragment is; see StoreView. All stores of one owner have one connection."""

    def __init__(self, store_id: int) -> None:
        self.store_id = store_id
        self.disk: object = store_id
        self.connection: OwnerConnection | None = None

    @property
    def state(self) -> str:
        """See StoreView."""
        return "open" if self.connection is not None and not self.connection.is_gone else "away"

    @property
    def is_late(self) -> bool:
        """See StoreView."""
        return self.connection is None or self.connection.is_late

    def unavailable(self) -> StoreUnavailable:
        """See StoreView."""
        return StoreUnavailable(AWAY)


class RemoteFragment:
    """See the module; the attributes are those of FragmentHandle.

    Attributes:
        fragment: What is known of the fragment while its owner can be reached and has its store; else None.
        key: How the protocol names the fragment.
    """

    #: No message broker of this server has it.
    broker = None

    def __init__(self, key: FragmentKey, store: RemoteStore) -> None:
        self.key = key
        self.entity_id, self.number = key
        self.store = store
        self.fragment: Mirror | None = None
        self.home = self
        self.parts: dict[int, Any] = {}
        self.schedulers: dict[tuple[int, int], Any] = {}
        self.message, self.messages = 0, 1
        self.waiting = self.waiting_bytes = 0

    @property
    def online(self) -> bool:
        """See FragmentHandle."""
        return self.fragment is not None

    def part(self, source_no: int) -> RemoteFragment:
        """See FragmentHandle."""
        del source_no
        return self

    def unavailable(self, store: Any = None) -> StoreUnavailable:
        """See FragmentHandle."""
        error: StoreUnavailable = (store or self.store).unavailable()
        error.fragments = (self.slot, self.slot, self.slots)
        return error

    # -- verbs --------------------------------------------------------------------------------------------------

    def submit(self, command: Command) -> None:
        """See FragmentHandle: sends and settlements."""
        connection = self.store.connection
        if isinstance(command, Run):
            error: ServiceBusError | None = self.unavailable() if connection is None else admission.admit(command)
            if error is None and connection is not None:
                connection.send(command)
                return
        elif isinstance(command, SettleBatch):
            if connection is not None:
                connection.settle(command)
                return
            # Its next owner has recovered the fragment, and knows no lock of the time before.
            error = MessageLockLost("The server that held this lock is gone. Receive the message again.")
        else:
            error = NotImplementedYet(f"The prototype has no {type(command).__name__} for another server's fragment.")
        command.error = error
        command.finish()

    def take(self, source_no: int, sub_queue: int, credit: int, receiver: Receiver) -> None:
        """See FragmentHandle: the answer comes later."""
        del source_no
        connection = self.store.connection
        if connection is None or self.fragment is None:
            receiver.deliver(nothing(self), credit)
        else:
            connection.take(self, sub_queue, credit, receiver)

    def unlock(self, source_no: int, prefix: bytes, ranges: Sequence[tuple[int, int]], *, counted: bool) -> list[int]:
        """See FragmentHandle. The verb answers at once, so it cannot say which locks the owner had lost."""
        del source_no
        connection = self.store.connection
        if connection is None:
            return [lock for first, number in ranges for lock in range(first, first + number)]
        connection.say(Unlock(self.key, prefix, list(ranges), counted))
        return []

    def change_settings(self, settings: Any) -> None:
        """See FragmentHandle: the owner reads the catalog itself."""


def nothing(handle: RemoteFragment) -> DeliveryBatch:
    """The answer to a take when there is nothing."""
    return DeliveryBatch(handle, b"", 0, [], 0)


class OwnerConnection(FramedConnection):
    """The front's side of the connection to one owner.

    Sends are under way one group at a time, as a store has one commit under way: what clients send meanwhile goes
    together with the next group, and keyless messages turn to the next store when a group begins.

    Attributes:
        fragments: By key, what this connection is about.
    """

    def __init__(self, fragments: dict[FragmentKey, RemoteFragment]) -> None:
        super().__init__()
        self.fragments = fragments
        self._last = 0
        self._asked: dict[int, tuple[Command, float]] = {}
        self._takes: dict[int, tuple[RemoteFragment, Mirror, int, int, Receiver]] = {}
        self._waiting: list[Run] = []
        self._sends_under_way = 0
        self._is_scheduled = False

    @property
    def is_late(self) -> bool:
        """Whether the oldest question has had no answer for LATE_S."""
        oldest = next(iter(self._asked.values()), None)
        return oldest is not None and self._loop.time() - oldest[1] > LATE_S

    # -- requests -----------------------------------------------------------------------------------------------

    def ask_all(self) -> None:
        """Have the owner say anew what is available: a store has come to it."""
        self.say(Hello(VERSION))

    def _number(self) -> int:
        self._last += 1
        return self._last

    def send(self, run: Run) -> None:
        """Have messages stored, with the next group."""
        self._waiting.append(run)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._sends_under_way:
            self._is_scheduled = True
            self._loop.call_soon(self._send_group)

    def _send_group(self) -> None:
        self._is_scheduled = False
        if self.is_gone:
            return
        group, self._waiting = self._waiting, []
        for run in group:
            admission.note_left(run)
            if run.placement is not None:
                run.placement.commit_started(run.handle)
            batch, indices, number = run.batch, run.indices, self._number()
            payloads, extra = batch.payloads, batch.extra
            if indices is not None:
                payloads = [payloads[index] for index in indices]
                if extra is not None:
                    extra = {at: extra[index] for at, index in enumerate(indices) if index in extra}
            self._asked[number] = run, self._loop.time()
            self._sends_under_way += 1
            self.say(Send(number, run.handle.key, payloads, extra, batch.atomic, batch.ping))

    def settle(self, command: SettleBatch) -> None:
        """Have locked messages settled."""
        number = self._number()
        self._asked[number] = command, self._loop.time()
        request = Settle(number, command.handle.key, command.prefix, command.outcome, command.ranges)
        detail = command.detail
        if detail is not None:
            request.has_detail, request.reason, request.description = True, detail.reason, detail.description
            request.properties = encode(detail.properties) if detail.properties else None
        self.say(request)

    def take(self, handle: RemoteFragment, sub_queue: int, credit: int, receiver: Receiver) -> None:
        """Ask for messages."""
        number, mirror = self._number(), handle.fragment
        assert mirror is not None
        mirror.asked[sub_queue] += credit
        self._takes[number] = handle, mirror, sub_queue, credit, receiver
        self.say(Take(number, handle.key, sub_queue, credit, receiver.removing))

    # -- answers ------------------------------------------------------------------------------------------------

    def heard(self, message: Any) -> None:
        """See FramedConnection."""
        if isinstance(message, Answer):
            self._answered(message)
        elif isinstance(message, Delivered):
            self._delivered(message)
        elif isinstance(message, Told):
            self._told(message)
        elif not isinstance(message, Hello) or message.version != VERSION:
            self.abort()

    def _answered(self, answer: Answer) -> None:
        command, _ = self._asked.pop(answer.number)
        command.error = error_of(answer.error)
        if isinstance(command, SettleBatch):
            command.lost = answer.lost
        else:
            self._sends_under_way -= 1
            if self._waiting:
                self._schedule()
        command.finish()

    def _delivered(self, answer: Delivered) -> None:
        handle, mirror, sub_queue, credit, receiver = self._takes.pop(answer.number)
        mirror.told[sub_queue] = answer.available
        mirror.asked[sub_queue] -= credit
        messages = list(map(QueuedMessage, answer.counts, answer.payloads, answer.enqueued))
        for name, column in (
            ("deliveries", answer.deliveries),
            ("state", answer.states),
            ("metadata", answer.metadata),
        ):
            for message, value in zip(messages, column or (), strict=False):
                setattr(message, name, value)
        receiver.deliver(DeliveryBatch(handle, answer.prefix, answer.first_lock, messages, answer.until_ms), credit)
        offer(handle)

    def _told(self, message: Told) -> None:
        handle = self.fragments.get(message.fragment)
        if handle is None or handle.store.connection is not self:
            return
        if message.available is None:
            handle.fragment = None
            return
        if handle.fragment is None:
            handle.fragment = Mirror()
        handle.fragment.told = message.available
        offer(handle)

    # -- the end ------------------------------------------------------------------------------------------------

    def lost(self) -> None:
        """See FramedConnection: nobody here knows what became of what was asked."""
        for handle in self.fragments.values():
            if handle.store.connection is self:
                handle.fragment = None
        for handle in self.fragments.values():
            if handle.store.connection is self:
                handle.store.connection = None
        takes, self._takes = self._takes, {}
        for handle, _, _, credit, receiver in takes.values():
            receiver.deliver(nothing(handle), credit)
        asked, self._asked = self._asked, {}
        for command, _ in asked.values():
            if isinstance(command, SettleBatch):
                command.error = MessageLockLost("The server that held this lock is gone. Receive the message again.")
            else:
                command.error = OperationTimeout(IN_DOUBT)
            command.finish()
        waiting, self._waiting = self._waiting, []
        for run in waiting:
            admission.note_left(run)
            self._send_elsewhere(run)

    @staticmethod
    def _send_elsewhere(run: Run) -> None:
        """Messages that were never sent to the owner: those without a key go to another fragment."""
        try:
            if run.placement is None:
                raise run.handle.unavailable()
            run.handle = run.placement.keyless(run.share[1])
        except StoreUnavailable as error:
            run.error = error
            run.finish()
        else:
            run.handle.submit(run)


def offer(handle: Any) -> None:
    """Tell the credit schedulers of a fragment what is available there."""
    for (source_no, sub_queue), scheduler in handle.schedulers.items():
        if handle.fragment is not None and handle.fragment.available(source_no, sub_queue) > 0:
            scheduler.offer(handle)


async def connect(address: tuple[str, int], fragments: dict[FragmentKey, RemoteFragment]) -> OwnerConnection:
    """Connect to an owner.

    Raises:
        OSError: The owner cannot be reached.
    """
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: OwnerConnection(fragments), *address)
    return connection
