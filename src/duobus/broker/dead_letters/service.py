"""The dead-letter service: messages are looked through, moved, put back and removed, a chunk in one commit.

A chunk is at most CHUNK_MAX messages of one fragment. They are taken out of the reach of all receivers, not locked:
nothing depends on a lock that could end, and the client may go away. Within a store their removal and their arrival are
one commit: a crash leaves each of them on exactly one side. Between stores it is accepted there, with an entry in the
forward dedup, and then removed here (I14), as forwarding does it.

A move is no send: duplicate detection does not look at what is moved (it would drop a message whose id it remembers
from the first time), and what goes back to a subscription is not published again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from duobus.broker.dead_letters.results import Answer, MoveResult, give_back, number_of
from duobus.broker.entities import destination as ends
from duobus.broker.entities.queue import COUNT_BITS, SOURCE, Queue
from duobus.broker.entities.topic import COPIES_AT_ONCE
from duobus.broker.forwarding.batches import NOBODY, origin_of
from duobus.errors import ArgumentInvalid, EntityDisabled, NotAllowed, StoreUnavailable
from duobus.fragment import transfer
from duobus.fragment.commands import Command, Group
from duobus.fragment.forward_dedup import RecordForwarded
from duobus.fragment.message import DEAD_LETTER, FORWARDING, MAIN, TRANSFER_DEAD_LETTER, QueuedCopy, QueuedMessage
from duobus.fragment.send import Run
from duobus.fragment.transfer import InsertMessages, RemoveTransferred
from duobus.model.batches import TEXT as PING_TEXT
from duobus.model.batches import SendBatch, is_ping
from duobus.model.descriptions import ACTIVE, RECEIVE_DISABLED
from duobus.model.json.plan import CHUNK_MAX
from duobus.model.json.repair import Repair, resendable
from duobus.model.metadata import MessageMetadata

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.broker.scale_unit import ScaleUnit
    from duobus.fragment.fragment import Fragment

_SUB_QUEUES: Final = (DEAD_LETTER, TRANSFER_DEAD_LETTER)


class DeadLetterService:
    """Moves messages of one scale unit."""

    __slots__ = ("_unit",)

    def __init__(self, unit: ScaleUnit) -> None:
        self._unit = unit

    # -- away ---------------------------------------------------------------------------------------------------

    async def purge(
        self, queue: Queue, sub_queue: int, found: Sequence[tuple[FragmentHandle, QueuedMessage]]
    ) -> MoveResult:
        """Remove messages of one fragment, in one commit.

        Raises:
            ServiceBusError: They were not removed.
        """
        result = MoveResult()
        if found:
            fragment, slots = self._taken(queue, sub_queue, found, result)
            handle = found[0][0]
            await leave(queue, handle, fragment, slots, [])
            result.moved.update((number_of(handle, slot), None) for slot in slots)
        return result

    async def move(
        self,
        queue: Queue,
        sub_queue: int,
        found: Sequence[tuple[FragmentHandle, QueuedMessage]],
        target: str | None,
        repair: Repair,
        *,
        keeps_reason: bool,
    ) -> MoveResult:
        """Move dead letters of one fragment to an entity, in one commit per store.

        Args:
            queue: Where they are.
            sub_queue: DEAD_LETTER or TRANSFER_DEAD_LETTER.
            found: Which; those that somebody has meanwhile are left.
            target: Path of a queue or topic; None: back to ``queue`` itself.
            repair: What is changed on them.
            keeps_reason: The reasons why they died stay as properties.

        Raises:
            EntityDisabled, EntityNotFound: The target cannot take them.
            NotAllowed: The messages are no dead letters.
            ServiceBusError: A store refused; what is in the result of none was moved.
        """
        if sub_queue not in _SUB_QUEUES:
            raise NotAllowed("Only dead letters are moved. Name the dead-letter queue in the address.")
        entity = self._target(queue, target)
        result = MoveResult()
        if not found:
            return result
        fragment, slots = self._taken(queue, sub_queue, found, result)
        if entity.idle is not None:
            entity.idle.note()
        try:
            await self._repair_and_place(queue, found[0][0], fragment, slots, entity, repair, keeps_reason, result)
        finally:
            # What is still here and was not done with, whatever the reason.
            give_back(queue, found[0][0], fragment, [slot for slot in slots if slot.lock == FORWARDING])
        return result

    def limit_of(self, queue: Queue, target: str | None) -> int:
        """Most messages of a chunk: fewer for a topic, each of whose subscriptions may get a copy of every one."""
        topic = None if target is None else self._unit.namespace(queue.namespace).topics.get(target.lower())
        return CHUNK_MAX if topic is None else max(1, COPIES_AT_ONCE // max(1, len(topic.subscriptions)))

    def _target(self, queue: Queue, target: str | None) -> Queue:
        home = self._unit.namespace(queue.namespace)
        if target is None or target.lower() == queue.path.lower():
            status = queue.description.status
            if status not in (ACTIVE, RECEIVE_DISABLED):
                raise EntityDisabled(f"'{queue.path}' has the status {status}. Enable it, then resubmit.")
            return queue
        found = ends.find(home, target)
        assert isinstance(found, Queue)
        return found

    def _taken(
        self, queue: Queue, sub_queue: int, found: Sequence[tuple[FragmentHandle, QueuedMessage]], result: MoveResult
    ) -> tuple[Fragment, list[QueuedMessage]]:
        handle = found[0][0]
        fragment, _ = handle.present()
        source = fragment.sources.get(queue.source_no)
        if source is None:
            raise StoreUnavailable(f"'{queue.path}' is being deleted.")
        slots = transfer.take_counts(source, sub_queue, [slot.count for _, slot in found])
        taken = {slot.count for slot in slots}
        for _, slot in found:
            if slot.count not in taken:
                result.skipped[number_of(handle, slot)] = "A receiver holds it, or it is gone."
        return fragment, slots

    async def _repair_and_place(
        self,
        queue: Queue,
        handle: FragmentHandle,
        fragment: Fragment,
        slots: list[QueuedMessage],
        entity: Queue,
        repair: Repair,
        keeps_reason: bool,
        result: MoveResult,
    ) -> None:
        gone, slots = self._sifted(queue, handle, fragment, slots, result)
        shaped: list[tuple[QueuedMessage, bytes, MessageMetadata]] = []
        routes: dict[FragmentHandle, list[tuple[QueuedMessage, bytes, MessageMetadata]]] = {}
        for slot in slots:
            number = number_of(handle, slot)
            try:
                payload, metadata = resendable(slot.payload, slot.metadata, repair, keeps_reason=keeps_reason)
                # Only what an earlier version has stored, and what a repair has made of nothing, has none.
                payload = self._unit.message_ids.named(payload)
                if is_ping(payload):
                    raise ArgumentInvalid(PING_TEXT)
                metadata.enqueued_sequence_number = _first_number(handle, slot)
                why = ends.fault(entity, payload, metadata)
                if why is not None:
                    raise ArgumentInvalid(why[1])
                place = self._place(queue, handle, entity, metadata, len(payload), changed=repair.changes_key)
            except (ArgumentInvalid, StoreUnavailable) as error:
                result.skipped[number] = str(error)
                continue
            item = (slot, payload, metadata)
            shaped.append(item)
            routes.setdefault(place, []).append(item)
        await self._travel(queue, handle, fragment, entity, routes, gone, result)

    def _sifted(
        self, queue: Queue, handle: FragmentHandle, fragment: Fragment, slots: list[QueuedMessage], result: MoveResult
    ) -> tuple[list[QueuedMessage], list[QueuedMessage]]:
        """Part what another store has taken over in an earlier life, and has to be removed only, from the rest."""
        forwarding = self._unit.forwarding
        in_doubt_below = forwarding.in_doubt_below(handle, queue.source_no, fragment)
        origin = origin_of(handle, queue.source_no)
        others_are_there = all(broker.state == "open" for broker in self._unit.brokers.values())
        gone: list[QueuedMessage] = []
        rest: list[QueuedMessage] = []
        for slot in slots:
            if slot.count < in_doubt_below and forwarding.has_taken(origin, slot.count):
                gone.append(slot)
                result.moved[number_of(handle, slot)] = None
            elif slot.count < in_doubt_below and not others_are_there:
                result.skipped[number_of(handle, slot)] = "A store that may have taken it over already is away."
            else:
                rest.append(slot)
        return gone, rest

    @staticmethod
    def _place(
        queue: Queue, handle: FragmentHandle, entity: Queue, metadata: MessageMetadata, size: int, *, changed: bool
    ) -> FragmentHandle:
        """The fragment where a message goes.

        Raises:
            ArgumentInvalid: It would leave its subscription's fragment.
            StoreUnavailable: The fragment is away.
        """
        key = ends.key_of(metadata) if entity.is_partitioned else None
        if entity is queue:
            # Where it is, its key has put it, unless that was just changed.
            home = handle if key is None or not changed else entity.placement.keyed(key)
            if home is not handle and queue.source_no != SOURCE:
                raise ArgumentInvalid(
                    "Its new key belongs to another fragment of the subscription. Move it to the topic instead."
                )
            return home
        if key is not None:
            return entity.placement.keyed(key)
        for one in entity.fragments:
            # In the same store it is one commit.
            if one.store is handle.store and one.fragment is not None and one.fragment.has_room(size):
                return one
        return entity.placement.keyless(size)

    async def _travel(
        self,
        queue: Queue,
        handle: FragmentHandle,
        fragment: Fragment,
        entity: Queue,
        routes: dict[FragmentHandle, list[tuple[QueuedMessage, bytes, MessageMetadata]]],
        gone: list[QueuedMessage],
        result: MoveResult,
    ) -> None:
        arrivals: list[Command] = []
        leaving = list(gone)
        told: list[tuple[Command, list[QueuedMessage]]] = []
        for place, items in routes.items():
            if place.store is not handle.store:
                continue
            command = _arrival(queue, handle, entity, place, items)
            arrivals.append(command)
            told.append((command, [slot for slot, _, _ in items]))
            leaving += [slot for slot, _, _ in items]
        if leaving:
            await leave(queue, handle, fragment, leaving, arrivals)
            for command, slots in told:
                result.moved.update(_numbers(handle, entity, command, slots))
        for place, items in routes.items():
            if place.store is not handle.store:
                await self._over(queue, handle, fragment, entity, place, items, result)

    async def _over(
        self,
        queue: Queue,
        handle: FragmentHandle,
        fragment: Fragment,
        entity: Queue,
        place: FragmentHandle,
        items: list[tuple[QueuedMessage, bytes, MessageMetadata]],
        result: MoveResult,
    ) -> None:
        """To another store: accepted there, then removed here."""
        slots = [slot for slot, _, _ in items]
        if handle.fragment is not fragment:
            # Its store failed under what went before, and offers these messages to everybody since it is back.
            why = "Its messaging store failed meanwhile. Give the order again."
            result.skipped.update((number_of(handle, slot), why) for slot in slots)
            return
        run = _arrival(queue, handle, entity, place, items)
        assert isinstance(run, Run)
        counts = [slot.count for slot in slots]
        note = RecordForwarded(place, SOURCE, origin=origin_of(handle, queue.source_no), counts=counts, run=run)
        answer = Answer()
        place.submit(Group([note, run], answer))
        error = await answer.error()
        if error is not None:
            result.skipped.update((number_of(handle, slot), str(error)) for slot in slots)
            return
        self._unit.forwarding.note_dedup(place)
        result.moved.update(_numbers(handle, entity, run, slots))
        if handle.fragment is fragment:
            await leave(queue, handle, fragment, slots, [])


async def leave(
    queue: Queue, handle: FragmentHandle, fragment: Fragment, slots: list[QueuedMessage], arrivals: list[Command]
) -> None:
    """One commit: messages are removed here and, it may be, arrive elsewhere in this store."""
    answer = Answer()
    if not slots:
        return
    departure = RemoveTransferred(handle, queue.source_no, None, sorted(slots, key=lambda slot: slot.count))
    handle.submit(Group([departure, *arrivals], answer))
    error = await answer.error()
    if error is not None:
        give_back(queue, handle, fragment, slots)
        raise error


def _first_number(handle: FragmentHandle, slot: QueuedMessage) -> int:
    if slot.metadata is not None and slot.metadata.enqueued_sequence_number is not None:
        return slot.metadata.enqueued_sequence_number
    return handle.number << COUNT_BITS | (slot.origin if isinstance(slot, QueuedCopy) else slot.count)


def _arrival(
    queue: Queue,
    handle: FragmentHandle,
    entity: Queue,
    place: FragmentHandle,
    items: list[tuple[QueuedMessage, bytes, MessageMetadata]],
) -> Command:
    payloads, all_metadata = [payload for _, payload, _ in items], [metadata for _, _, metadata in items]
    if entity is queue and place is handle:
        # As many bytes as leave, or nearly: an entity that is full can be cleared in this way too.
        return InsertMessages(place, queue.source_no, None, payloads, all_metadata, MAIN, grows=False)
    batch = SendBatch(0, payloads, False, NOBODY)
    batch.extra = dict(enumerate(all_metadata))
    return Run(place, SOURCE, batch, None, None)


def _numbers(
    handle: FragmentHandle, entity: Queue, command: Command, slots: list[QueuedMessage]
) -> dict[int, int | None]:
    """Old sequence numbers to new ones."""
    olds = [number_of(handle, slot) for slot in slots]
    place: FragmentHandle = command.handle
    if isinstance(command, InsertMessages):
        return {old: number_of(place, slot) for old, slot in zip(olds, command.slots, strict=True)}
    assert isinstance(command, Run)
    if entity.kind == "topic" or command.indices is not None:
        # Every copy has a number of its own; or the entity had some of them already.
        return dict.fromkeys(olds)
    return {old: place.number << COUNT_BITS | count for old, count in zip(olds, command.counts(), strict=True)}
