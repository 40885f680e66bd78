"""Forwarder: moves messages from one sub-queue of one fragment to the entity that they are forwarded to.

Messages are taken from the fragment and made up into batches, one for each fragment of the destination. Within one
store a batch is one commit: removed here and stored there. Between stores it is two: it is accepted there, with an
entry in the destination's forward dedup, and only then removed here. A crash between the two lets it come again, and
the forward dedup leaves out what it knows (I14).

Each fragment of the destination has a destination queue with one batch on its way at a time, so that the order of a
key stays and a fragment that is away or full holds no other fragment up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from duobus.broker.entities import destination as ends
from duobus.broker.entities.queue import SOURCE
from duobus.broker.forwarding.batches import (
    NOBODY,
    DestinationQueue,
    ForwardBatch,
    InDoubtQuery,
    InFlightBatch,
    forward_batch_of,
    origin_of,
)
from duobus.errors import EntityDisabled, EntityNotFound, QuotaExceeded, ServerBusy, ServiceBusError, StoreUnavailable
from duobus.fragment import forward_dedup, transfer
from duobus.fragment.commands import Group
from duobus.fragment.forward_dedup import QueryForwarded, RecordForwarded
from duobus.fragment.message import MAIN, TRANSFER, QueuedMessage
from duobus.fragment.send import Run
from duobus.fragment.transfer import DeadLetterTransfer, RemoveTransferred
from duobus.model.batches import SMALL_BYTES, SendBatch, is_ping
from duobus.model.descriptions import DISABLED, RECEIVE_DISABLED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duobus.broker.entities.destination import Destination, ForwardSource
    from duobus.broker.entities.placement import Placement
    from duobus.broker.forwarding.service import ForwardingService
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.broker.message_broker import MessageBroker
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import Source
    from duobus.model.metadata import MessageMetadata

#: Messages, and their bytes, that are taken at once: a part of a commit, so that others have room in it.
FORWARD_BATCH_MESSAGES_MAX: Final = 500
FORWARD_BATCH_BYTES_MAX: Final = 512 << 10
#: Messages, and their bytes, that a forwarder holds: those on their way, and those for fragments that do not take them
#: now.
FORWARDER_MESSAGES_MAX: Final = 10_000
FORWARDER_BYTES_MAX: Final = 16 << 20
#: Batches that wait behind the one on its way.
QUEUED_BATCHES_MAX: Final = 2

#: Pauses before the next attempt: the first, and the longest of its doublings.
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 5.0
#: How long a destination may be missing, disabled or full before messages go to the transfer dead-letter queue.
TIMEOUT_MS: Final = 10 * 60_000


class Forwarder:
    """Forwarding from one sub-queue of one fragment.

    Attributes:
        handle: The fragment.
        source_no: Of the source of it.
        channel: MAIN, DEAD_LETTER or TRANSFER.
        path: Of the destination.
        is_closed: It takes no further messages.
    """

    __slots__ = (
        "_aside",
        "_delay_s",
        "_entity",
        "_in_flight",
        "_is_paused",
        "_is_pumping",
        "_last_refusal_s",
        "_life",
        "_loop",
        "_origin",
        "_question",
        "_queues",
        "_refused_since",
        "_service",
        "_size",
        "_taken",
        "_timer",
        "_unresolved",
        "channel",
        "handle",
        "is_closed",
        "path",
        "source_no",
    )

    def __init__(
        self,
        service: ForwardingService,
        entity: ForwardSource,
        source_no: int,
        handle: FragmentHandle,
        channel: int,
        path: str,
    ) -> None:
        self.handle = handle
        self.source_no = source_no
        self.channel = channel
        self.path = path
        self.is_closed = False
        self._service = service
        self._origin = entity
        self._loop = asyncio.get_running_loop()
        self._life: Fragment | None = None
        self._entity: Destination | None = None
        self._queues: dict[FragmentHandle, DestinationQueue] = {}
        self._in_flight: dict[InFlightBatch, None] = {}
        # Messages whose destination may have them already, and cannot be asked now.
        self._aside: list[QueuedMessage] = []
        # Count to the fragment that may have taken it, of flights that began in an earlier life of ours.
        self._unresolved: dict[int, FragmentHandle] = {}
        self._taken = 0
        self._size = 0
        self._is_pumping = False
        self._is_paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._delay_s = RETRY_FIRST_S
        self._last_refusal_s = 0.0
        # What the destination is asked now.
        self._question: InDoubtQuery | None = None
        # Since when a fragment of the destination (None: all of it) has refused everything, in broker time.
        self._refused_since: dict[FragmentHandle | None, int] = {}

    @property
    def namespace(self) -> str:
        """Of its two ends."""
        return self._origin.namespace

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing and waits for nothing."""
        return not self._taken and not self._in_flight and self._timer is None

    # -- taking -------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Take what there is and send it on."""
        if self._is_pumping or self._is_paused or self.is_closed:
            return
        self._is_pumping = True
        try:
            while not self._is_paused and self._step():
                pass
        finally:
            self._is_pumping = False

    def _step(self) -> bool:
        """Take the messages of one batch; False when there is nothing to do now."""
        fragment = self._present()
        if fragment is None:
            return False
        source = fragment.sources[self.source_no]
        if source.in_doubt_below and self.channel == MAIN:
            self._resolve(fragment, source)
        if self._is_choked():
            return False
        if self.channel != TRANSFER and self._origin.description.status in (DISABLED, RECEIVE_DISABLED):
            return False
        try:
            entity = ends.find(self._service.namespace_of(self._origin), self.path)
        except ServiceBusError as error:
            return self._without_destination(fragment, source, error)
        if entity is not self._entity:
            self._give_all_back()
            self._entity = entity
        self._refused_since.pop(None, None)
        messages = self._take(fragment, source)
        good = self._sorted_out(fragment, source, messages)
        if good:
            self._send_on(fragment, source, entity, good)
        return bool(messages)

    def _present(self) -> Fragment | None:
        """The fragment, in which everything has happened that is due; None while it is away."""
        try:
            fragment, _ = self.handle.present()
        except StoreUnavailable:
            return None
        if fragment is not self._life:
            # Its memory was lost, and with it whatever was taken.
            for in_flight in self._in_flight:
                if not in_flight.is_known:
                    self._unresolved.update(
                        (message.count, in_flight.queue.handle) for message in in_flight.forward_batch.messages
                    )
            self._life = fragment
            self._queues = {}
            self._aside = []
            self._question = None
            self._taken = self._size = 0
        return fragment

    def _is_choked(self) -> bool:
        """Whether it holds enough: in all, or for a fragment that does take messages."""
        if self._taken >= FORWARDER_MESSAGES_MAX or self._size >= FORWARDER_BYTES_MAX:
            return True
        return any(
            len(queue.forward_batches) >= QUEUED_BATCHES_MAX and not queue.is_waiting for queue in self._queues.values()
        )

    def _take(self, fragment: Fragment, source: Source) -> list[QueuedMessage]:
        limit = min(FORWARD_BATCH_MESSAGES_MAX, FORWARDER_MESSAGES_MAX - self._taken)
        if self.channel == TRANSFER:
            messages = transfer.take_transfers(source, self.path.lower(), limit, FORWARD_BATCH_BYTES_MAX)
        else:
            messages = transfer.take(source, self.channel, limit, FORWARD_BATCH_BYTES_MAX)
        self._taken += len(messages)
        self._size += sum([len(message.payload) for message in messages])
        # What lies in the store only is read ahead.
        self.handle.follow_up(fragment, [])
        return messages

    def _without_destination(self, fragment: Fragment, source: Source, error: ServiceBusError) -> bool:
        """The destination is missing or disabled: wait, and then give up."""
        self._give_all_back()
        if self.channel == TRANSFER:
            waits = self.path.lower() in source.transfers
        else:
            waits = transfer.has_available(source, self.channel) or source.tail_count > 0
        if not waits:
            self._refused_since.pop(None, None)
            return False
        # What was sent via this entity to one that does not exist is given up at once.
        is_final = self.channel == TRANSFER and isinstance(error, EntityNotFound)
        if not is_final and not (ends.is_retriable(error) and self._is_overdue(None)):
            self._later(is_pause=True)
            return False
        messages = self._take(fragment, source)
        self._dead_letter(self._sorted_out(fragment, source, messages), ends.reason_of(error), str(error))
        return bool(messages)

    # -- what earlier lives may have sent -----------------------------------------------------------------------

    def _resolve(self, fragment: Fragment, source: Source) -> None:
        """Have the destination say which messages of earlier lives it has (``fragment/forward_dedup.py``)."""
        if self._question is not None:
            return
        if not source.numbers[MAIN]:
            self._settle(fragment, ())
            return
        try:
            entity = ends.locate(self._service.namespace_of(self._origin), self.path)
        except EntityNotFound:
            # It is gone with all that it had.
            self._settle(fragment, ())
            return
        except ServiceBusError:
            self._later(is_pause=False)
            return
        origin = origin_of(self.handle, self.source_no)
        if self._service.remote_entities is not None:
            self._service.remote_entities.arrived(origin, fragment.epoch)
        # Slots of a sharded queue have the handle of their shard.
        handles = list(dict.fromkeys(entity.fragments))
        question = self._question = InDoubtQuery(self, fragment, len(handles))
        for handle in handles:
            handle.submit(QueryForwarded(handle, SOURCE, question, origin=origin))

    def resolved(self, question: InDoubtQuery) -> None:
        """The destination has answered, or somebody else that it cannot."""
        if question is not self._question or not question.is_current:
            return
        self._question = None
        if self.is_closed:
            return
        errors = [ask.error for ask in question.ready if ask.error is not None]
        if not errors:
            self._settle(question.life, [count for ask in question.ready for count in ask.taken])
        elif all(isinstance(error, EntityNotFound) for error in errors):
            self._settle(question.life, ())
        else:
            self._later(is_pause=False)
            return
        self.retry()

    def _settle(self, fragment: Fragment, taken: Iterable[int]) -> None:
        now_ms = self.handle.now_ms_if_leased()
        if now_ms is not None:
            forward_dedup.settle_in_doubt(fragment, fragment.sources[self.source_no], taken, now_ms)
            self.handle.note_deadline(fragment)

    def _sorted_out(self, fragment: Fragment, source: Source, messages: list[QueuedMessage]) -> list[QueuedMessage]:
        """Those that go on; the destination has some of the others already, and some may have to expire instead."""
        if self.channel != MAIN or not (source.in_doubt_below or source.elsewhere):
            return messages
        now_ms = self.handle.now_ms_if_leased()
        there: list[QueuedMessage] = []
        rest: list[QueuedMessage] = []
        for message in messages:
            if message.count in source.elsewhere:
                there.append(message)
            elif now_ms is None or forward_dedup.withheld(fragment, source, message, now_ms):
                self._aside.append(message)
            else:
                rest.append(message)
        if there:
            self._let_go(there)
            self.handle.submit(RemoveTransferred(self.handle, self.source_no, None, there))
        return rest

    # -- making batches -----------------------------------------------------------------------------------------

    def _send_on(self, fragment: Fragment, source: Source, entity: Destination, messages: list[QueuedMessage]) -> None:
        number, path, life_ms = self.handle.number, self._origin.path, source.settings.default_ttl_ms
        good: list[QueuedMessage] = []
        pings: list[QueuedMessage] = []
        payloads: list[bytes] = []
        all_metadata: list[MessageMetadata] = []
        for message in messages:
            metadata = transfer.onward(message, number, path, life_ms)
            if transfer.hops_of(metadata) > transfer.HOPS_MAX:
                self._dead_letter([message], transfer.HOPS_EXCEEDED, transfer.HOPS_TEXT)
                continue
            payload = transfer.onward_payload(message)
            if len(payload) <= SMALL_BYTES and is_ping(payload):
                pings.append(message)
                continue
            why = ends.fault(entity, payload, metadata)
            if why is not None:
                self._dead_letter([message], *why)
                continue
            good.append(message)
            payloads.append(payload)
            all_metadata.append(metadata)
        if pings:
            # They end here: nobody is ever given one.
            self._let_go(pings)
            self.handle.submit(RemoveTransferred(self.handle, self.source_no, None, pings))
        if not good:
            return
        batch = SendBatch(0, payloads, False, NOBODY)
        batch.extra = dict(enumerate(all_metadata))
        if entity.is_partitioned:
            keys = [ends.key_of(metadata) for metadata in all_metadata]
            batch.keys = keys if any(key is not None for key in keys) else None
        entity.prepare(batch)
        self._route(fragment, entity, good, batch)

    def _route(self, fragment: Fragment, entity: Destination, messages: list[QueuedMessage], batch: SendBatch) -> None:
        """Part messages by the fragment where they go."""
        if not entity.is_partitioned:
            self._put(entity.fragments[0], ForwardBatch(messages, batch, is_keyless=False))
            return
        in_doubt = self._service.in_doubt_below(self.handle, self.source_no, fragment)
        by_handle: dict[FragmentHandle, list[int]] = {}
        keyless: list[int] = []
        for index, message in enumerate(messages):
            fixed = ends.fixed_fragment(entity, None if batch.keys is None else batch.keys[index], message.count)
            if fixed is not None:
                by_handle.setdefault(fixed, []).append(index)
            elif message.count >= in_doubt:
                keyless.append(index)
            elif (known := self._remembered(entity, message.count)) is not None:
                by_handle.setdefault(known, []).append(index)
            elif all(handle.online for handle in entity.fragments):
                keyless.append(index)
            else:
                # An earlier life may have sent it to the one that is away.
                self._aside.append(message)
                self._later(is_pause=False)
        for handle, indices in by_handle.items():
            self._put(handle, forward_batch_of(messages, batch, indices, is_keyless=False))
        if keyless:
            try:
                handle = entity.placement.keyless(batch.bytes_total)
            except StoreUnavailable:
                self._later(is_pause=True)
                self._give_back([messages[index] for index in keyless])
                return
            self._put(handle, forward_batch_of(messages, batch, keyless, is_keyless=True))

    def _remembered(self, entity: Destination, count: int) -> FragmentHandle | None:
        """The fragment of the destination that has taken a message already, or is about to."""
        if count in self._unresolved:
            return self._unresolved[count]
        origin = origin_of(self.handle, self.source_no)
        for handle in entity.fragments:
            if handle.fragment is not None and handle.fragment.sources[SOURCE].dedup.has(origin, count):
                return handle
        return None

    def _put(self, handle: FragmentHandle, forward_batch: ForwardBatch) -> None:
        queue = self._queues.get(handle)
        if queue is None:
            queue = self._queues[handle] = DestinationQueue(handle)
        queue.forward_batches.append(forward_batch)
        self._let_out(queue)

    # -- on the way ---------------------------------------------------------------------------------------------

    def _let_out(self, queue: DestinationQueue) -> None:
        """Send the next batch of a destination queue, if none is on its way."""
        life = self._life
        if queue.is_busy or queue.is_waiting or not queue.forward_batches or life is None:
            return
        if not queue.handle.online:
            queue.is_waiting = True
            self._later(is_pause=False)
            return
        forward_batch = queue.forward_batches.popleft()
        queue.is_busy = True
        entity = self._entity
        assert entity is not None
        in_flight = InFlightBatch(self, queue, forward_batch, life)
        self._in_flight[in_flight] = None
        handle = queue.handle
        group = self._group(in_flight, entity.placement if forward_batch.is_keyless else None)
        if handle.store is self.handle.store:
            if not self._may_be_known(handle):
                del group.members[0]
            group.members.insert(0, RemoveTransferred(self.handle, self.source_no, None, forward_batch.messages))
        handle.submit(group)

    def _group(self, in_flight: InFlightBatch, placement: Placement | None = None) -> Group:
        """What the destination is to do with a batch: check whether it has the messages, and accept them."""
        handle, forward_batch = in_flight.queue.handle, in_flight.forward_batch
        run = Run(handle, SOURCE, forward_batch.batch, None, placement)
        return Group([self._record(handle, forward_batch, run), run], in_flight)

    def _record(self, handle: FragmentHandle, forward_batch: ForwardBatch, run: Run) -> RecordForwarded:
        counts = [message.count for message in forward_batch.messages]
        return RecordForwarded(handle, SOURCE, origin=origin_of(self.handle, self.source_no), counts=counts, run=run)

    def _may_be_known(self, handle: FragmentHandle) -> bool:
        """Whether it took messages of ours when one of us was in another store, and has not forgotten them."""
        return handle.fragment is not None and bool(
            handle.fragment.sources[SOURCE].dedup.known.get(origin_of(self.handle, self.source_no))
        )

    def answered(self, in_flight: InFlightBatch, answer: Group | RemoveTransferred) -> None:
        """One of the commits of a batch is durable, or was refused."""
        queue = in_flight.queue
        is_here = in_flight.life is self._life and in_flight.life is self.handle.fragment
        if isinstance(answer, RemoveTransferred):
            self._end(in_flight, is_gone=is_here and answer.error is None)
        else:
            in_flight.is_known = True
            queue.is_busy = False
            for message in in_flight.forward_batch.messages if self._unresolved else ():
                self._unresolved.pop(message.count, None)
            if answer.error is None:
                self._accepted(in_flight, is_here=is_here)
            else:
                del self._in_flight[in_flight]
                if is_here:
                    self._refused(queue, in_flight.forward_batch, answer.error)
        if self._queues.get(queue.handle) is queue:
            self._let_out(queue)
        self.pump()

    def _accepted(self, in_flight: InFlightBatch, *, is_here: bool) -> None:
        self._refused_since.pop(in_flight.queue.handle, None)
        if in_flight.queue.handle.store is self.handle.store:
            self._end(in_flight, is_gone=is_here)
            return
        self._service.note_dedup(in_flight.queue.handle)
        if is_here:
            self.handle.submit(
                RemoveTransferred(self.handle, self.source_no, in_flight, in_flight.forward_batch.messages)
            )
        else:
            # Its memory was lost meanwhile: the message is there again, and the forward dedup knows it.
            del self._in_flight[in_flight]

    def _end(self, in_flight: InFlightBatch, *, is_gone: bool) -> None:
        del self._in_flight[in_flight]
        if is_gone:
            self._let_go(in_flight.forward_batch.messages)

    # -- refusals -----------------------------------------------------------------------------------------------

    def _refused(self, queue: DestinationQueue, forward_batch: ForwardBatch, error: ServiceBusError) -> None:
        """It is certain that a batch was not accepted."""
        if self.is_closed or self._queues.get(queue.handle) is not queue:
            self._give_back(forward_batch.messages)
            return
        is_temporary = isinstance(error, ServerBusy) or type(error).transient
        if (
            not is_temporary
            and len(forward_batch.messages) > 1
            and not isinstance(error, (EntityDisabled, EntityNotFound))
        ):
            # There may be room for some, or nothing may be wrong with the others.
            half = len(forward_batch.messages) // 2
            for indices in (range(half, len(forward_batch.messages)), range(half)):
                part = forward_batch_of(
                    forward_batch.messages, forward_batch.batch, list(indices), is_keyless=forward_batch.is_keyless
                )
                queue.forward_batches.appendleft(part)
            return
        if not is_temporary and (not ends.is_retriable(error) or self._is_overdue(queue.handle)):
            self._dead_letter(forward_batch.messages, ends.reason_of(error), str(error))
            return
        if forward_batch.is_keyless and not isinstance(error, QuotaExceeded):
            self._later(is_pause=True)
            self._give_back(forward_batch.messages)
            return
        queue.forward_batches.appendleft(forward_batch)
        queue.is_waiting = True
        self._later(is_pause=False)

    def _is_overdue(self, who: FragmentHandle | None) -> bool:
        now_ms = self.handle.now_ms_if_leased()
        return now_ms is not None and now_ms - self._refused_since.setdefault(who, now_ms) >= TIMEOUT_MS

    def _dead_letter(self, messages: list[QueuedMessage], reason: str, description: str) -> None:
        """Messages that cannot go on are to be found in the transfer dead-letter queue."""
        source = None if self._life is None else self._life.sources.get(self.source_no)
        if source is not None and self.channel == MAIN and (source.in_doubt_below or source.elsewhere):
            doubtful = [message for message in messages if forward_dedup.is_in_doubt(source, message.count)]
            if doubtful:
                # They may be at the destination, or are; they are taken again when that is known.
                messages = [message for message in messages if not forward_dedup.is_in_doubt(source, message.count)]
                self._aside += doubtful
                self._later(is_pause=True)
        if messages:
            self._let_go(messages)
            command = DeadLetterTransfer(
                self.handle, self.source_no, None, messages, reason=reason, description=description
            )
            self.handle.submit(command)

    def _let_go(self, messages: Iterable[QueuedMessage]) -> None:
        for message in messages:
            self._taken -= 1
            self._size -= len(message.payload)

    def _give_back(self, messages: list[QueuedMessage]) -> None:
        """Put messages back into their fragment."""
        fragment = self.handle.fragment
        now_ms = self.handle.now_ms_if_leased()
        if not messages or fragment is None or fragment is not self._life or now_ms is None:
            return
        self._let_go(messages)
        self.handle.follow_up(
            fragment, transfer.give_back(fragment, fragment.sources[self.source_no], messages, now_ms)
        )

    def _give_all_back(self) -> None:
        """Everything that is not on its way goes back, so that its life can end and it can take another way."""
        messages, self._aside = self._aside, []
        for queue in list(self._queues.values()):
            for forward_batch in queue.forward_batches:
                messages += forward_batch.messages
            queue.forward_batches.clear()
            queue.is_waiting = False
            if not queue.is_busy:
                del self._queues[queue.handle]
        self._give_back(messages)

    # -- again --------------------------------------------------------------------------------------------------

    def _later(self, *, is_pause: bool) -> None:
        """Try again in a while; ``is_pause``: and take nothing until then."""
        self._is_paused = self._is_paused or is_pause
        if self._timer is not None or self.is_closed:
            return
        now_s = self._loop.time()
        again = now_s - self._last_refusal_s < 2 * RETRY_MAX_S
        self._delay_s = min(self._delay_s * 2, RETRY_MAX_S) if again else RETRY_FIRST_S
        self._last_refusal_s = now_s
        self._timer = self._loop.call_later(self._delay_s, self.retry)

    def retry(self) -> None:
        """Try everything again that waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_paused = False
        if not self.is_closed:
            self._is_pumping = True
            try:
                self._give_all_back()
            finally:
                self._is_pumping = False
        self.pump()

    def stranded(self, broker: MessageBroker) -> list[tuple[InFlightBatch, Group]]:
        """What was on its way into a store that this server has lost: nobody here knows whether it is there.

        Each with what would be submitted for it now.
        """
        return [
            (in_flight, self._group(in_flight))
            for in_flight in self._in_flight
            if in_flight.queue.handle.broker is broker and not in_flight.is_known
        ]

    def halt(self) -> None:
        """Take no more."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Take no more, and give back what is not on its way."""
        self.halt()
        self._give_all_back()
