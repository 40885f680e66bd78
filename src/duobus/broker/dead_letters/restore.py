"""Making dead letters (again): what a move brought somewhere goes back, what was exported is put in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from duobus.broker.dead_letters.results import Answer, MoveResult, give_back
from duobus.broker.entities import destination as ends
from duobus.broker.entities.queue import COUNT_BITS, COUNT_MASK, Queue
from duobus.errors import ServiceBusError
from duobus.fragment import transfer
from duobus.fragment.commands import Command, Group
from duobus.fragment.message import DEAD_LETTER, MAIN, QueuedMessage
from duobus.fragment.transfer import InsertMessages, RemoveTransferred
from duobus.model.batches import TEXT as PING_TEXT
from duobus.model.batches import is_ping
from duobus.model.metadata import MessageMetadata

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle

#: Pages of a paged tail that are read to find a message that is to be made a dead letter again.
_WARMINGS: Final = 64


class DeadLetterRestore:
    """A message that is to be a dead letter (again).

    Attributes:
        payload: The bare message.
        metadata: Its metadata, with the reasons.
        number: The sequence number that it had as a dead letter; 0 when it never was one.
        where: The entity in whose main sub-queue it is now, or None when it is nowhere.
        now: Its sequence number there.
    """

    __slots__ = ("metadata", "now", "number", "payload", "where")

    def __init__(
        self, payload: bytes, metadata: MessageMetadata, *, number: int = 0, where: Queue | None = None, now: int = 0
    ) -> None:
        self.payload = payload
        self.metadata = metadata
        self.number = number
        self.where = where
        self.now = now


#: Index, what is to be done, its place, and the fragment and the message that it is now.
_Item: TypeAlias = "tuple[int, DeadLetterRestore, FragmentHandle, FragmentHandle | None, QueuedMessage | None]"


async def restore(queue: Queue, restorations: Sequence[DeadLetterRestore]) -> MoveResult:
    """Make messages dead letters of an entity: those of moves that are undone, or messages that were exported.

    A message that is where a move has brought it leaves there in the same commit, when that is in the same store;
    otherwise it is made a dead letter first and removed then. A message that is not there any more is skipped.

    Returns:
        By index of the item, not by number: one that was exported may have any.

    Raises:
        ServiceBusError: A store refused, and nothing was done. What is refused later is in the result as skipped.
    """
    result = MoveResult()
    groups: dict[object, list[_Item]] = {}
    for index, restoration in enumerate(restorations):
        if is_ping(restoration.payload):
            result.skipped[index] = PING_TEXT
            continue
        home = _dead_letter_place(queue, restoration)
        where, message = await _found_again(restoration)
        if restoration.where is not None and message is None:
            result.skipped[index] = "It is not where it was moved to, or a receiver holds it."
            continue
        groups.setdefault((home.store, None if where is None else where.store), []).append(
            (index, restoration, home, where, message)
        )
    done = 0
    every = list(groups.values())
    try:
        for items in every:
            try:
                await _restore_some(queue, [item[1:] for item in items])
            except ServiceBusError as error:
                if not result.moved:
                    raise
                # The others are dead letters by now, and whoever asks again must not name those again.
                result.skipped.update((index, str(error)) for index, *_ in items)
                _return_taken(items)
            else:
                result.moved.update((index, None) for index, *_ in items)
            done += 1
    finally:
        for items in every[done:]:
            _return_taken(items)
    return result


def _return_taken(items: list[_Item]) -> None:
    """Give messages back that were taken for a restoration which was not done."""
    for _, restoration, _, where, message in items:
        if where is not None and message is not None and restoration.where is not None and where.fragment:
            give_back(restoration.where, where, where.fragment, [message])


def _dead_letter_place(queue: Queue, restoration: DeadLetterRestore) -> FragmentHandle:
    key = ends.key_of(restoration.metadata) if queue.is_partitioned else None
    if key is not None:
        return queue.placement.keyed(key)
    for handle in queue.fragments:
        if restoration.number and handle.number == restoration.number >> COUNT_BITS and handle.online:
            return handle
    return queue.placement.keyless(len(restoration.payload))


async def _found_again(restoration: DeadLetterRestore) -> tuple[FragmentHandle | None, QueuedMessage | None]:
    """Take a message off where it is now; a paged one is read from the store first."""
    queue = restoration.where
    if queue is None:
        return None, None
    handle = next((one for one in queue.fragments if one.number == restoration.now >> COUNT_BITS), None)
    if handle is None:
        return None, None
    count = restoration.now & COUNT_MASK
    for _ in range(_WARMINGS):
        fragment, _now = handle.present()
        source = fragment.sources.get(queue.source_no)
        if source is None or not source.is_paged_out(count):
            break
        before = source.tail_count
        await handle.read_ahead(fragment)
        if source.tail_count == before:
            break
    fragment, _now = handle.present()
    source = fragment.sources.get(queue.source_no)
    messages = [] if source is None else transfer.take_counts(source, MAIN, [count])
    return (handle, messages[0]) if messages else (None, None)


async def _restore_some(
    queue: Queue, items: list[tuple[DeadLetterRestore, FragmentHandle, FragmentHandle | None, QueuedMessage | None]]
) -> None:
    leaving: dict[tuple[int, FragmentHandle], tuple[Queue, list[QueuedMessage]]] = {}
    places: dict[FragmentHandle, list[DeadLetterRestore]] = {}
    for restoration, home, where, message in items:
        places.setdefault(home, []).append(restoration)
        if where is not None and message is not None and restoration.where is not None:
            leaving.setdefault((restoration.where.source_no, where), (restoration.where, []))[1].append(message)
    departures: list[Command] = [
        RemoveTransferred(where, source_no, None, sorted(messages, key=lambda message: message.count))
        for (source_no, where), (_, messages) in leaving.items()
    ]
    arrivals: list[Command] = [
        InsertMessages(
            home,
            queue.source_no,
            None,
            [restoration.payload for restoration in some],
            [restoration.metadata for restoration in some],
            DEAD_LETTER,
            grows=True,
        )
        for home, some in places.items()
    ]
    home = items[0][1]
    is_one_store = not leaving or next(iter(leaving))[1].store is home.store
    answer = Answer()
    home.submit(Group(departures + arrivals if is_one_store else arrivals, answer))
    error = await answer.error()
    if error is not None:
        raise error
    if not is_one_store:
        answer = Answer()
        next(iter(leaving))[1].submit(Group(departures, answer))
        error = await answer.error()
        if error is not None:
            raise error
