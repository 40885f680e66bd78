"""Many commits of a journal as the one that SQLite gets, without messages that are gone by then.

Most messages live for milliseconds. What a commit puts and another one of the journal removes never reaches SQLite,
nor does its removal, be the removal in the commits that are brought over or in ``later`` ones: those are durable, and
are brought over next. Only a removal that comes after a message removes it: a range may reach over a count that was
used up for a message of a transaction, which is put later, also in the store that a fragment moves to.

All copies of a topic's message come in one commit. Those that are left of them come in one commit as well, and share
their body as before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from duobus.storage.interface import CommitBatch, Put

_Range = tuple[int, int]
_SOURCE_KEY: Final = attrgetter("source_key")


def merged(batches: Sequence[CommitBatch], later: Iterable[CommitBatch] = ()) -> CommitBatch:
    """Return one commit that does what ``batches`` do one after the other.

    Args:
        batches: Some, in order.
        later: All that follow them and are durable, too.
    """
    last = batches[-1]
    result = CommitBatch(last.commit_no, max(batch.broker_ms for batch in batches))
    result.epochs = list({key: epoch for batch in batches for key, epoch in batch.epochs}.items())
    result.sources = list({row[0]: row for batch in batches for row in batch.sources}.values())
    known = [*batches, *later]
    gone = _by_source(known)
    losing = gone.keys()
    is_order_needed = _reach_over_later_messages(batches)
    new: dict[int, list[_Range]] = {}
    changes: dict[tuple[int, int], tuple[int, int, int, int, bytes | None]] = {}
    for index, batch in enumerate(batches):
        if is_order_needed:
            gone = _by_source(known[index:])
        for put in batch.puts:
            key = put.source_key
            if key not in losing:
                result.puts.append(put)
                continue
            first, end = put.first_count, put.first_count + len(put.payloads) - 1
            new.setdefault(key, []).append((first, end))
            result.puts += [_piece(put, *left) for left in _without((first, end), gone.get(key, []))]
        changes.update({row[:2]: row for row in batch.changes if not _holds(gone.get(row[0], []), row[1])})
    # Those of a source one after the other: SQLite finds their page once, where commits of many sources take turns.
    result.puts.sort(key=_SOURCE_KEY)
    for key, ranges in _by_source(batches).items():
        put_here = _union(new.get(key, []))
        for span in ranges:
            result.removed += [(key, first, end) for first, end in _without(span, put_here)]
    result.changes = list(changes.values())
    _add_notes(result, batches)
    return result


def _reach_over_later_messages(batches: Sequence[CommitBatch]) -> bool:
    """Whether a commit removes counts that only a later one puts, so that the order of the two matters."""
    reach: dict[int, int] = {}
    for batch in batches:
        for put in batch.puts:
            if put.first_count <= reach.get(put.source_key, -1):
                return True
        for source_key, _, last in batch.removed:
            if last > reach.get(source_key, -1):
                reach[source_key] = last
    return False


def _add_notes(result: CommitBatch, batches: Sequence[CommitBatch]) -> None:
    """Take over what few commits have. A store forgets tombstones before it writes new ones, and blocks after that."""
    for batch in batches:
        forgotten = set(batch.forgotten)
        result.tombstones = [t for t in result.tombstones if (t.store_id, t.generation) not in forgotten]
        result.forgotten += batch.forgotten
        result.tombstones += batch.tombstones
        result.histories += batch.histories
        result.outdated += batch.outdated


def _by_source(batches: Iterable[CommitBatch]) -> dict[int, list[_Range]]:
    """Return what commits remove of each source."""
    found: dict[int, list[_Range]] = {}
    for batch in batches:
        for source_key, first, end in batch.removed:
            found.setdefault(source_key, []).append((first, end))
    return {key: _union(ranges) for key, ranges in found.items()}


def _union(ranges: Iterable[_Range]) -> list[_Range]:
    """Return ranges in order, those that meet as one."""
    combined: list[_Range] = []
    for first, end in sorted(ranges):
        if combined and first <= combined[-1][1] + 1:
            combined[-1] = (combined[-1][0], max(end, combined[-1][1]))
        else:
            combined.append((first, end))
    return combined


def _holds(ranges: Sequence[_Range], count: int) -> bool:
    index = bisect_right(ranges, count, key=lambda span: span[0])
    return index > 0 and count <= ranges[index - 1][1]


def _without(span: _Range, taken: Sequence[_Range]) -> Iterator[_Range]:
    """Yield what is left of a range; ``taken`` is a union."""
    first, end = span
    index = max(0, bisect_right(taken, first, key=lambda other: other[0]) - 1)
    for start, stop in taken[index:]:
        if first > end or start > end:
            break
        if start > first:
            yield first, start - 1
        first = max(first, stop + 1)
    if first <= end:
        yield first, end


def _piece(put: Put, first: int, end: int) -> Put:
    """Return the messages of a put with these counts."""
    start, stop = first - put.first_count, end - put.first_count + 1
    if stop - start == len(put.payloads):
        return put
    metadata = put.all_metadata
    if metadata is not None:
        metadata = {index - start: found for index, found in metadata.items() if start <= index < stop}
    origins = None if put.origins is None else put.origins[start:stop]
    piece = Put(put.source_key, first, put.enqueued_ms, put.payloads[start:stop], metadata, origins)
    piece.is_reserved = put.is_reserved
    if put.equal_metadata is not None:
        piece.equal_metadata = put.equal_metadata[start:stop]
    return piece
