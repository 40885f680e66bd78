"""Queue: what clients use of an entity: send to it, receive from it, and settle.

A link finds its queue once, when it attaches; the hot path never looks anything up by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from duobus.broker.delivery.credit_scheduler import CreditScheduler, Receiver
from duobus.broker.delivery.session_acceptor import SessionAcceptor, SessionReceiver, SessionWaiter, give
from duobus.broker.entities import claims as claiming
from duobus.broker.entities import purge as clearing
from duobus.broker.entities.claims import Claimed, ClaimSummary, Freed
from duobus.broker.entities.message_ids import identify
from duobus.broker.entities.placement import Placement, slot_of, string_key
from duobus.broker.entities.purge import PurgeResult
from duobus.broker.fragment_handle import FragmentHandle
from duobus.codec import tag_counter
from duobus.errors import (
    ArgumentInvalid,
    MessageLockLost,
    MessageNotFound,
    NotAllowed,
    QuotaExceeded,
    ServiceBusError,
    SessionCannotBeLocked,
    StoreUnavailable,
)
from duobus.fragment.message import DEAD_LETTER, MAIN, NEVER, TRANSFER_DEAD_LETTER, QueuedMessage
from duobus.fragment.peek import ENVELOPE_BYTES
from duobus.fragment.purge import CancelScheduled
from duobus.fragment.receive import TakeDeferred
from duobus.fragment.send import Run
from duobus.fragment.sessions.sessions import SessionLock
from duobus.fragment.sessions.states import STATE_BYTES_MAX, SetSessionState
from duobus.fragment.settlement import SettleBatch
from duobus.fragment.source import Source, SourceSettings
from duobus.model.address import sharded_entity_of
from duobus.model.batches import DeliveryBatch, Mailbox, Refusal, SendBatch
from duobus.model.descriptions import QueueDescription
from duobus.model.metadata import MessageMetadata

if TYPE_CHECKING:
    from duobus.clock import BrokerTime

#: A sequence number is fragment number (16 bits), then count (Azure: message sequencing).
COUNT_BITS = 48
COUNT_MASK = (1 << COUNT_BITS) - 1

#: A queue is source 0 of each of its fragments.
SOURCE = 0
#: Sessions that are looked at in one go: a millisecond or two.
SESSIONS_AT_ONCE = 10_000


class LastUse:
    """When a queue was last used.

    Attributes:
        limit_ms: For how long it may be idle; None is for ever.
        last_ms: Broker time of its last use, or of the instant from which its idleness is counted.
        accessed_ms: Broker time of its last use since the server's start; 0 for none.
    """

    __slots__ = ("_time", "accessed_ms", "last_ms", "limit_ms")

    def __init__(self, limit_ms: int | None, time: BrokerTime, accessed_ms: int = 0) -> None:
        self.limit_ms = limit_ms
        self._time = time
        self.last_ms = time.now_ms()
        self.accessed_ms = accessed_ms

    def note(self) -> None:
        """It is used now."""
        self.last_ms = self.accessed_ms = self._time.now_ms()

    def end(self) -> None:
        """Another one takes its place."""


class Queue:
    """A queue of any number of fragments.

    Attributes:
        entity_id: The catalog's id.
        namespace: Name of its namespace.
        description: Its properties.
        fragments: In order of message.
        source_no: The source that it is in each of them.
        placement: Which of them a message goes to.
        schedulers: Sub-queue to the credit scheduler of its receivers.
        acceptor: Where those wait who want the next available session; None when it requires no sessions.
        idle: Since when nobody uses it, when that matters; else None.
        is_deleted: It is gone for clients; whoever still holds it has to let go.
        has_moved: Another server has it now; the same.
        is_leaving: It is about to be another server's: nothing new is taken in.
        is_shard: It is a part of an entity that lies in several stores.
    """

    __slots__ = (
        "_by_number",
        "_claiming",
        "acceptor",
        "description",
        "entity_id",
        "fragments",
        "has_moved",
        "idle",
        "is_deleted",
        "is_leaving",
        "is_shard",
        "namespace",
        "placement",
        "schedulers",
        "source_no",
    )

    #: What it is called in texts.
    kind = "queue"
    #: Its messages are in shards, each an entity of its own.
    is_sharded = False

    def __init__(
        self,
        entity_id: int,
        namespace: str,
        description: QueueDescription,
        fragments: Sequence[FragmentHandle],
        source_no: int = SOURCE,
    ) -> None:
        self.entity_id = entity_id
        self.namespace = namespace
        self.description = description
        self.fragments = list(fragments)
        self.source_no = source_no
        self.is_shard = sharded_entity_of(description.name.lower()) is not None
        self.placement = Placement(self.fragments)
        self.schedulers = {sub: CreditScheduler(source_no, sub) for sub in (MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER)}
        self.idle: LastUse | None = None
        self.is_deleted = False
        self.has_moved = False
        self.is_leaving = False
        self._claiming = claiming.Turns()
        self._by_number = {handle.number: handle for handle in self.fragments}
        self.acceptor = SessionAcceptor(source_no, self.fragments) if description.requires_session else None
        for handle in self.fragments:
            handle.schedulers = {(source_no, sub): scheduler for sub, scheduler in self.schedulers.items()}
            if self.acceptor is not None:
                handle.schedulers[source_no, MAIN] = self.acceptor

    @property
    def path(self) -> str:
        """The queue's name in the spelling of its creator."""
        return self.description.name

    @property
    def is_partitioned(self) -> bool:
        """Whether the queue has several fragments, so that keys matter for placement.

        The one fragment that a shard of a sharded queue has is one of several, too.
        """
        return len(self.fragments) > 1 or self.is_shard

    @property
    def partitions(self) -> int:
        """How many fragments it has, for as long as it exists."""
        return len(self.fragments)

    @property
    def top(self) -> Queue:
        """The top-level entity of which it is all, or a part."""
        return self

    @property
    def looks_for_keys(self) -> bool:
        """Whether a message's keys matter, so that none may be passed over."""
        return self.is_partitioned

    def settings(self) -> dict[int, SourceSettings]:
        """What the fragments need to know of the description, per source."""
        about = self.description
        return {
            self.source_no: SourceSettings(
                lock_duration_ms=about.lock_duration_ms,
                max_delivery_count=about.max_delivery_count,
                default_ttl_ms=about.default_message_time_to_live_ms,
                dead_letter_on_expiration=about.dead_lettering_on_message_expiration,
                duplicate_window_ms=about.duplicate_detection_history_time_window_ms
                if about.requires_duplicate_detection
                else None,
                # Of each fragment, so that a partitioned entity of 16 has 16 times the chosen size (I33).
                max_bytes=about.max_size_in_megabytes << 20,
                redelivery_delay_ms=about.redelivery_delay_ms or 0,
                redelivery_delay_maximum_ms=about.redelivery_delay_maximum_ms,
                delayed_abandon=about.delayed_abandon,
                requires_session=about.requires_session,
                forwards=about.forward_to is not None,
            )
        }

    def change(self, description: QueueDescription) -> None:
        """Take on new properties: for what is sent, locked and renewed from now on; held locks stay."""
        self.description = description
        settings = self.settings()
        for handle in self.fragments:
            handle.change_settings(settings)

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, batch: SendBatch) -> None:
        """Store messages; Runs and Refusals come to ``batch.reply``, after the commit that holds them is durable."""
        try:
            self.prepare(batch)
        except ServiceBusError as error:
            self._refuse(batch, error)
            return
        self._store(batch)

    def send_via(self, batch: SendBatch) -> None:
        """Store messages that are for another entity; see ``via.address``. Answers come as to ``send``."""
        try:
            self._note_use()
        except ServiceBusError as error:
            self._refuse(batch, error)
            return
        self._store(batch)

    @staticmethod
    def _refuse(batch: SendBatch, error: ServiceBusError) -> None:
        batch.reply.ready.append(Refusal(batch, None, error))
        batch.reply.wake()

    def _store(self, batch: SendBatch) -> None:
        runs, refused = self.placement.split(batch)
        for indices, error in refused:
            batch.reply.ready.append(Refusal(batch, indices, error))
        if refused:
            batch.reply.wake()
        for handle, indices, is_keyless in runs:
            handle.submit(Run(handle, self.source_no, batch, indices, self.placement if is_keyless else None))

    def prepare(self, batch: SendBatch) -> None:
        """What comes before the question of where messages go: they are a use of the queue, and get their identity."""
        self._note_use()
        if self.description.requires_duplicate_detection and not batch.ping:
            identify(batch, is_partitioned=self.is_partitioned)

    def demand_all_online(self) -> None:
        """Raise StoreUnavailable unless every fragment is there: management acts on all of them or none (I31)."""
        for handle in self.fragments:
            if not handle.online:
                raise handle.unavailable()

    def demand_session(self, metadata: MessageMetadata | None, *, is_ping: bool) -> None:
        """Refuse a message that belongs to no session, where every message must.

        Raises:
            NotAllowed: It has no session id.
        """
        if self.acceptor is None or is_ping or (metadata is not None and metadata.session_id is not None):
            return
        raise NotAllowed(f"The {self.kind} '{self.path}' requires sessions. Set the session id of the message.")

    def cancel_scheduled(self, numbers: Iterable[int], reply: Mailbox) -> int:
        """Cancel scheduled messages; one CancelScheduled per fragment comes to ``reply``. Returns how many will."""
        commands = self.cancellations(numbers, reply)
        for command in commands:
            command.handle.submit(command)
        return len(commands)

    def cancellations(self, numbers: Iterable[int], reply: Mailbox | None) -> list[CancelScheduled]:
        """What cancels scheduled messages when it is submitted: one command per fragment."""
        self._note_use()
        by_fragment = self._by_fragment(numbers, "scheduled")
        return [CancelScheduled(handle, self.source_no, counts, reply) for handle, counts in by_fragment]

    def fragment_of_count(self, count: int) -> FragmentHandle | None:
        """See Destination."""
        del count
        return None

    # -- receiving ----------------------------------------------------------------------------------------------

    def open_receiver(self, sub_queue: int, mailbox: Mailbox, *, removing: bool) -> Receiver:
        """Add a receiver without credit; DeliveryBatches come to ``mailbox``."""
        self._note_use()
        return self.schedulers[sub_queue].open(mailbox, removing=removing)

    def settle(self, command: SettleBatch) -> None:
        """Settle locked messages; the command comes back to its ``reply`` when it is durable."""
        if self.acceptor is not None and command.handle.fragment is not None:
            command.handle.sessions.claim(command)
        command.handle.submit(command)

    def find_lock(self, token: bytes) -> tuple[FragmentHandle, bytes, int]:
        """The fragment, prefix and lock counter of a 16 byte lock token.

        Raises:
            MessageLockLost: The token names no fragment of this queue.
        """
        handle = self._by_number.get(int.from_bytes(token[:2], "big"))
        counter = tag_counter(token)
        if handle is None or counter < 0:
            raise MessageLockLost("The lock token is not one of this entity. Receive the message again.")
        return handle, token[:8], counter

    def lock_deferred(
        self, sub_queue: int, numbers: Iterable[int], holder: SessionReceiver | None = None
    ) -> list[DeliveryBatch]:
        """Lock deferred messages by sequence number; those of a session for its holder.

        Raises:
            MessageNotFound: One of them is not deferred (or not of that session); none stays locked.
            SessionLockLost: The holder has lost its session.
            StoreUnavailable: A fragment is away.
        """
        self._note_use()
        if holder is not None:
            counts = self._counts_in(holder.handle, numbers)
            return [holder.handle.sessions.lock_deferred(holder.lock, counts)]
        batches: list[DeliveryBatch] = []
        try:
            for handle, counts in self._by_fragment(numbers, "deferred"):
                batches.append(handle.lock_deferred(self.source_no, sub_queue, counts))
        except Exception:
            for batch in batches:
                ranges = [(batch.first_lock, len(batch.messages))]
                batch.fragment.unlock(self.source_no, batch.prefix, ranges, counted=False)
            raise
        return batches

    def remove_deferred(
        self, sub_queue: int, numbers: Iterable[int], reply: Mailbox, holder: SessionReceiver | None = None
    ) -> int:
        """Receive deferred messages in receive-and-delete mode; returns how many TakeDeferred come to ``reply``."""
        self._note_use()
        if holder is not None:
            counts = self._counts_in(holder.handle, numbers)
            holder.handle.submit(TakeDeferred(holder.handle, self.source_no, sub_queue, counts, reply, holder.lock))
            return 1
        by_fragment = self._by_fragment(numbers, "deferred")
        for handle, counts in by_fragment:
            handle.submit(TakeDeferred(handle, self.source_no, sub_queue, counts, reply))
        return len(by_fragment)

    # -- sessions -----------------------------------------------------------------------------------------------

    def accept_session(self, session_id: str, receiver: SessionReceiver) -> None:
        """Lock a session by name for a receiver, whether it has messages or not.

        Raises:
            SessionCannotBeLocked: Another receiver has it.
            StoreUnavailable: The fragment where it belongs is away.
        """
        self._note_use()
        handle = self.placement.keyed(string_key(session_id))
        if not give(handle, self.source_no, session_id, receiver):
            raise SessionCannotBeLocked(
                f"The session '{session_id}' of '{self.path}' is locked by another receiver. Wait until it is free, or "
                "accept another."
            )

    def wait_for_session(self, waiter: SessionWaiter) -> None:
        """Queue up for the next available session.

        Raises:
            StoreUnavailable: All of the queue is away.
        """
        assert self.acceptor is not None
        self._note_use()
        self.acceptor.join(waiter)

    def set_session_state(self, handle: FragmentHandle, lock: SessionLock, state: bytes | None, reply: Mailbox) -> None:
        """Set or clear the state of a session that is held; a SetSessionState comes to ``reply`` when it is durable.

        Raises:
            QuotaExceeded: It is too large.
        """
        if state is not None and len(state) > STATE_BYTES_MAX:
            raise QuotaExceeded(
                f"The session state has {len(state)} bytes; at most {STATE_BYTES_MAX} are allowed. Keep less in it."
            )
        handle.submit(SetSessionState(handle, lock, state, reply))

    def sessions_in_use(self) -> Iterator[str]:
        """Ids of the sessions that have active messages or a state, of the fragments that are there."""
        return chain.from_iterable(self.lists_of_sessions(None))

    def sessions_set_since(self, instant_ms: int) -> Iterator[str]:
        """Ids of the sessions whose state was set after an instant, of the fragments that are there."""
        return chain.from_iterable(self.lists_of_sessions(instant_ms))

    def lists_of_sessions(self, since_ms: int | None) -> Iterator[list[str]]:
        """The same, list by list, between which others may have a turn; None: those that have messages or a state."""
        for source in list(self._sources()):
            found = source.sessions
            if found is not None:
                if since_ms is None:
                    yield from found.with_anything(source.locks, SESSIONS_AT_ONCE)
                else:
                    yield from found.set_since(since_ms, SESSIONS_AT_ONCE)

    def sessions_were_used(self) -> bool:
        """Whether somebody waits for a session or has one, or did since this was asked last."""
        if self.acceptor is None:
            return False
        was_used = self.acceptor.was_used or len(self.acceptor) > 0
        self.acceptor.was_used = False
        for source in self._sources():
            assert source.sessions is not None
            was_used = was_used or source.sessions.was_held
            source.sessions.was_held = source.sessions.has_holders
        return was_used

    @property
    def has_session_users(self) -> bool:
        """Whether somebody waits for a session, or has one."""
        if self.acceptor is None:
            return False
        return len(self.acceptor) > 0 or any(
            source.sessions is not None and source.sessions.has_holders for source in self._sources()
        )

    def _sources(self) -> Iterator[Source]:
        return (handle.fragment.sources[self.source_no] for handle in self.fragments if handle.fragment is not None)

    # -- looking ------------------------------------------------------------------------------------------------

    async def peek(
        self,
        sub_queue: int,
        first_number: int,
        limit: int,
        size: int = NEVER,
        session_id: str | None = None,
        partition_key: str | None = None,
    ) -> list[tuple[FragmentHandle, QueuedMessage]]:
        """Messages from a sequence number on, over all fragments that are there, in order of sequence number.

        A fragment that is away is passed over (PE20); ``size`` is the bytes at which no further message is looked for;
        ``session_id`` and ``partition_key``: only those that have them.

        Raises:
            StoreUnavailable: Nothing was found, and a fragment that may have something is away.
        """
        self._note_use()
        first_fragment, first_count = first_number >> COUNT_BITS, first_number & COUNT_MASK
        found: list[tuple[FragmentHandle, QueuedMessage]] = []
        away: StoreUnavailable | None = None
        numbers = sorted(self._by_number)
        if session_id is not None and self.acceptor is not None:
            numbers = [self._fragment_of(session_id).number]
        for number in numbers:
            handle = self._by_number[number]
            if number < first_fragment:
                continue
            first = first_count if number == first_fragment else 1
            try:
                if not handle.online:
                    raise handle.unavailable()
                wanted = limit - len(found)
                messages = await handle.peek(self.source_no, sub_queue, first, wanted, size, session_id, partition_key)
            except StoreUnavailable as error:
                away = error
                continue
            found += [(handle, message) for message in messages]
            size -= sum(message.size + ENVELOPE_BYTES for message in messages)
            if len(found) >= limit or size <= 0:
                break
        if away is not None and not found:
            raise away
        return found

    # -- removing without receiving -----------------------------------------------------------------------------

    async def batch_delete(self, sub_queue: int, limit: int, before_ms: int, session_id: str | None = None) -> int:
        """Remove available messages that were enqueued before an instant; how many. See ``clearing.batch_delete``."""
        self._note_use()
        handles = self.fragments if session_id is None else [self._fragment_of(session_id)]
        return await clearing.batch_delete(handles, self.source_no, sub_queue, limit, before_ms, session_id)

    async def purge(self, sub_queues: Sequence[int], is_time_over: Callable[[], bool]) -> PurgeResult:
        """Remove everything of these sub-queues that nobody holds. See ``clearing.purge``."""
        self._note_use()
        return await clearing.purge(self.fragments, self.source_no, sub_queues, is_time_over)

    # -- claims -------------------------------------------------------------------------------------------------

    async def claim(self, sub_queue: int, claim_id: str, messages: int, size: int) -> Claimed:
        """Defer available messages under an id, or tell which are deferred under it. See ``claiming.claim``."""
        self._note_use()
        async with self._claiming.turn((sub_queue, claim_id)):
            return await claiming.claim(self.fragments, self.source_no, sub_queue, claim_id, messages, size)

    async def settle_claim(self, sub_queue: int, claim_id: str, told: set[int] | None = None) -> Freed:
        """Remove the messages of a claim. See ``claiming.settle``."""
        self._note_use()
        async with self._claiming.turn((sub_queue, claim_id)):
            return await claiming.settle(self.fragments, self.source_no, sub_queue, claim_id, told)

    async def release_claim(self, sub_queue: int, claim_id: str, *, is_counted: bool) -> Freed:
        """Give the messages of a claim back to all receivers. See ``claiming.release``."""
        self._note_use()
        async with self._claiming.turn((sub_queue, claim_id)):
            return await claiming.release(self.fragments, self.source_no, sub_queue, claim_id, is_counted=is_counted)

    def claims(self, sub_queue: int, prefix: str) -> tuple[list[ClaimSummary], list[int]]:
        """The open claims whose ids begin with a prefix. See ``claiming.summaries``."""
        return claiming.summaries(self.fragments, self.source_no, sub_queue, prefix)

    def waiting(self, sub_queue: int) -> int:
        """Messages that a claim would find now, of the fragments there."""
        return claiming.waiting(self.fragments, self.source_no, sub_queue)

    def _fragment_of(self, session_id: str) -> FragmentHandle:
        """The one fragment where all of a session lies, there or not (I25)."""
        return self.fragments[slot_of(string_key(session_id), len(self.fragments))]

    def _note_use(self) -> None:
        if self.idle is not None:
            self.idle.note()

    def _counts_in(self, handle: FragmentHandle, numbers: Iterable[int]) -> list[int]:
        """The counts of sequence numbers that must all lie in one fragment: that of a session."""
        (found, counts), *others = self._by_fragment(numbers, "deferred")
        if others or found is not handle:
            raise MessageNotFound("The session does not have all of these deferred messages.")
        return counts

    def _by_fragment(self, numbers: Iterable[int], word: str) -> list[tuple[FragmentHandle, list[int]]]:
        by_number: dict[int, list[int]] = {}
        seen: set[int] = set()
        for number in numbers:
            if number in seen:
                raise ArgumentInvalid(f"The sequence number {number} is given twice.")
            seen.add(number)
            by_number.setdefault(number >> COUNT_BITS, []).append(number & COUNT_MASK)
            if number >> COUNT_BITS not in self._by_number:
                raise MessageNotFound(f"No {word} message has the sequence number {number}.")
        return [(self._by_number[number], counts) for number, counts in by_number.items()]

    def numbers(self) -> tuple[list[int], int]:
        """Messages per kind (active, dead-letter, transfer, deferred, scheduled) and bytes, of the fragments there."""
        totals = [0] * 5
        size = 0
        for handle in self.fragments:
            if handle.fragment is not None:
                source = handle.fragment.sources[self.source_no]
                totals = [a + b for a, b in zip(totals, source.numbers, strict=True)]
                size += source.bytes
        return totals, size

    def locked(self) -> int:
        """Messages that receivers hold locked, of the fragments there."""
        return sum(len(source.locks) for source in self._sources())


__all__ = ["COUNT_BITS", "COUNT_MASK", "SOURCE", "Queue"]
