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
            fragment, messages = self._taken(queue, sub_queue, found, result)
            handle = found[0][0]
            await leave(queue, handle, fragment, messages, [])
            result.moved.update((number_of(handle, message), None) for message in messages)
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
        fragment, messages = self._taken(queue, sub_queue, found, result)
        if entity.idle is not None:
            entity.idle.note()
        try:
            await self._repair_and_place(queue, found[0][0], fragment, messages, entity, repair, keeps_reason, result)
        finally:
            # What is still here and was not done with, whatever the reason.
            give_back(queue, found[0][0], fragment, [message for message in messages if message.lock == FORWARDING])
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
        if not isinstance(found, Queue):
            raise NotAllowed(
                f"'{target}' lies in stores of several servers, or of another one than the messages, which are moved "
                "within one server. Resubmit them, or move them to an entity of the same server."
            )
        return found

    def _taken(
        self, queue: Queue, sub_queue: int, found: Sequence[tuple[FragmentHandle, QueuedMessage]], result: MoveResult
    ) -> tuple[Fragment, list[QueuedMessage]]:
        handle = found[0][0]
        fragment, _ = handle.present()
        source = fragment.sources.get(queue.source_no)
        if source is None:
            raise StoreUnavailable(f"'{queue.path}' is being deleted.")
        messages = transfer.take_counts(source, sub_queue, [message.count for _, message in found])
        taken = {message.count for message in messages}
        for _, message in found:
            if message.count not in taken:
                result.skipped[number_of(handle, message)] = "A receiver holds it, or it is gone."
        return fragment, messages

    async def _repair_and_place(
        self,
        queue: Queue,
        handle: FragmentHandle,
        fragment: Fragment,
        messages: list[QueuedMessage],
        entity: Queue,
        repair: Repair,
        keeps_reason: bool,
        result: MoveResult,
    ) -> None:
        gone, messages = self._sifted(queue, handle, fragment, messages, result)
        shaped: list[tuple[QueuedMessage, bytes, MessageMetadata]] = []
        routes: dict[FragmentHandle, list[tuple[QueuedMessage, bytes, MessageMetadata]]] = {}
        for message in messages:
            number = number_of(handle, message)
            try:
                payload, metadata = resendable(message.payload, message.metadata, repair, keeps_reason=keeps_reason)
                # Only what an earlier version has stored, and what a repair has made of nothing, has none.
                payload = self._unit.message_ids.named(payload)
                if is_ping(payload):
                    raise ArgumentInvalid(PING_TEXT)
                metadata.enqueued_sequence_number = _first_number(handle, message)
                why = ends.fault(entity, payload, metadata)
                if why is not None:
                    raise ArgumentInvalid(why[1])
                place = self._place(queue, handle, entity, metadata, len(payload), changed=repair.changes_key)
            except (ArgumentInvalid, StoreUnavailable) as error:
                result.skipped[number] = str(error)
                continue
            item = (message, payload, metadata)
            shaped.append(item)
            routes.setdefault(place, []).append(item)
        await self._travel(queue, handle, fragment, entity, routes, gone, result)

    def _sifted(
        self,
        queue: Queue,
        handle: FragmentHandle,
        fragment: Fragment,
        messages: list[QueuedMessage],
        result: MoveResult,
    ) -> tuple[list[QueuedMessage], list[QueuedMessage]]:
        """Part what another store has taken over in an earlier life, and has to be removed only, from the rest."""
        forwarding = self._unit.forwarding
        in_doubt_below = forwarding.in_doubt_below(handle, queue.source_no, fragment)
        origin = origin_of(handle, queue.source_no)
        others_are_there = all(broker.state == "open" for broker in self._unit.brokers.values())
        gone: list[QueuedMessage] = []
        rest: list[QueuedMessage] = []
        for message in messages:
            if message.count < in_doubt_below and forwarding.has_taken(origin, message.count):
                gone.append(message)
                result.moved[number_of(handle, message)] = None
            elif message.count < in_doubt_below and not others_are_there:
                result.skipped[number_of(handle, message)] = "A store that may have taken it over already is away."
            else:
                rest.append(message)
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
            told.append((command, [message for message, _, _ in items]))
            leaving += [message for message, _, _ in items]
        if leaving:
            await leave(queue, handle, fragment, leaving, arrivals)
            for command, messages in told:
                result.moved.update(_numbers(handle, entity, command, messages))
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
        messages = [message for message, _, _ in items]
        if handle.fragment is not fragment:
            # Its store failed under what went before, and offers these messages to everybody since it is back.
            why = "Its messaging store failed meanwhile. Give the order again."
            result.skipped.update((number_of(handle, message), why) for message in messages)
            return
        run = _arrival(queue, handle, entity, place, items)
        assert isinstance(run, Run)
        counts = [message.count for message in messages]
        note = RecordForwarded(place, SOURCE, origin=origin_of(handle, queue.source_no), counts=counts, run=run)
        answer = Answer()
        place.submit(Group([note, run], answer))
        error = await answer.error()
        if error is not None:
            result.skipped.update((number_of(handle, message), str(error)) for message in messages)
            return
        self._unit.forwarding.note_dedup(place)
        result.moved.update(_numbers(handle, entity, run, messages))
        if handle.fragment is fragment:
            await leave(queue, handle, fragment, messages, [])


async def leave(
    queue: Queue, handle: FragmentHandle, fragment: Fragment, messages: list[QueuedMessage], arrivals: list[Command]
) -> None:
    """One commit: messages are removed here and, it may be, arrive elsewhere in this store."""
    answer = Answer()
    if not messages:
        return
    departure = RemoveTransferred(handle, queue.source_no, None, sorted(messages, key=lambda message: message.count))
    handle.submit(Group([departure, *arrivals], answer))
    error = await answer.error()
    if error is not None:
        give_back(queue, handle, fragment, messages)
        raise error


def _first_number(handle: FragmentHandle, message: QueuedMessage) -> int:
    if message.metadata is not None and message.metadata.enqueued_sequence_number is not None:
        return message.metadata.enqueued_sequence_number
    return handle.number << COUNT_BITS | (message.origin if isinstance(message, QueuedCopy) else message.count)


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
    handle: FragmentHandle, entity: Queue, command: Command, messages: list[QueuedMessage]
) -> dict[int, int | None]:
    """Old sequence numbers to new ones."""
    olds = [number_of(handle, message) for message in messages]
    place: FragmentHandle = command.handle
    if isinstance(command, InsertMessages):
        return {old: number_of(place, message) for old, message in zip(olds, command.messages, strict=True)}
    assert isinstance(command, Run)
    if entity.kind == "topic" or command.indices is not None:
        # Every copy has a number of its own; or the entity had some of them already.
        return dict.fromkeys(olds)
    return {old: place.number << COUNT_BITS | count for old, count in zip(olds, command.counts(), strict=True)}
