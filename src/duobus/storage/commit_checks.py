"""What every messaging store demands of a commit before it writes any of it.

Shared by all stores, so that a commit that the store in memory refuses is refused on disk as well, in
the same words. Nothing here touches a disk.
"""

from __future__ import annotations

from collections.abc import Mapping

from duobus.errors import StoreFailed, StoreStale
from duobus.storage.interface import COUNT_MAX, CommitBatch, FragmentRow, Put, SourceRow


def check_batch(
    batch: CommitBatch,
    last_commit_no: int,
    fragments: Mapping[int, FragmentRow],
    sources: Mapping[int, SourceRow],
) -> None:
    """Return if the store may write ``batch``; the arguments are what it holds now.

    Raises:
        StoreStale: An epoch is not the fragment's, or a fragment or source is gone.
        StoreFailed: A commit number or a count was used before (I7), or the columns contradict each other.
    """
    if batch.commit_no <= last_commit_no:
        raise StoreFailed(f"commit {batch.commit_no} comes after commit {last_commit_no}; numbers only grow")
    covered = _check_epochs(batch, fragments)
    ends = _check_puts(batch, sources, covered) if batch.puts else {}
    # A source may be named more than once in a commit; its last row counts.
    for source_key, next_count in {row[0]: row[1] for row in batch.sources}.items():
        source = _source_of(source_key, sources, covered)
        if next_count < source.next_count:
            raise StoreFailed(
                f"source {source_key}: next count {next_count} is below {source.next_count}; counts are never reused"
            )
        if ends.pop(source_key, 0) > next_count:
            raise StoreFailed(f"source {source_key}: messages at or past its next count {next_count}")
    if ends:
        raise StoreFailed(f"source {min(ends)}: messages without a new next count for their source")
    if batch.histories or batch.outdated:
        for source_key in {block.source_key for block in batch.histories} | {row[0] for row in batch.outdated}:
            _source_of(source_key, sources, covered)


def _check_epochs(batch: CommitBatch, fragments: Mapping[int, FragmentRow]) -> set[int]:
    """Return the fragments whose epochs the commit has shown to know."""
    for fragment_key, epoch in batch.epochs:
        fragment = fragments.get(fragment_key)
        if fragment is None:
            raise StoreStale(f"fragment {fragment_key} is not in this store (any more)")
        if fragment.epoch != epoch:
            raise StoreStale(f"fragment {fragment_key}: commit of epoch {epoch}, but the store is at {fragment.epoch}")
    return {fragment_key for fragment_key, _ in batch.epochs}


def _check_puts(batch: CommitBatch, sources: Mapping[int, SourceRow], covered: set[int]) -> dict[int, int]:
    """Return, per source, the first count after its new messages."""
    ends: dict[int, int] = {}
    for put in batch.puts:
        source = _source_of(put.source_key, sources, covered)
        end = put.first_count + len(put.payloads)
        if put.is_reserved:
            # That nothing is there yet is for the table to say. The commit's next count is past them all.
            ends[put.source_key] = max(end, ends.get(put.source_key, 0))
            continue
        if put.first_count < ends.get(put.source_key, source.next_count):
            raise StoreFailed(f"source {put.source_key}: count {put.first_count} was used before")
        if end - 1 > COUNT_MAX:
            raise StoreFailed(f"source {put.source_key}: count {end - 1} is past the last one, {COUNT_MAX}")
        ends[put.source_key] = end
    copies = [put for put in batch.puts if put.origins is not None]
    if copies:
        _check_origins(copies, batch, sources)
    return ends


def _check_origins(puts: list[Put], batch: CommitBatch, sources: Mapping[int, SourceRow]) -> None:
    """Refuse bodies that could get the place of another message, and copies that could not find theirs."""
    homes: dict[int, tuple[int, int]] = {}
    for source_key, next_count, _, _ in batch.sources:
        row = sources[source_key]
        if row.source_no == 0:
            homes[row.fragment_key] = (row.next_count, next_count)
    for put in puts:
        row = sources[put.source_key]
        origins = put.origins or ()
        if row.source_no == 0 or len(origins) != len(put.payloads):
            raise StoreFailed(f"source {put.source_key}: copies in source 0, or not every copy has its origin")
        shared = [-origin for origin in origins if origin < 0]
        first, end = homes.get(row.fragment_key, (1, 1))
        if shared and (min(shared) < first or max(shared) >= end):
            raise StoreFailed(f"source {put.source_key}: the count of a shared body was used before, or is not taken")


def _source_of(source_key: int, sources: Mapping[int, SourceRow], covered: set[int]) -> SourceRow:
    source = sources.get(source_key)
    if source is None:
        raise StoreStale(f"source {source_key} is not in this store (any more)")
    if source.fragment_key not in covered:
        # A write that names no epoch would escape the fence against stale owners.
        raise StoreStale(f"source {source_key}: the commit carries no epoch of its fragment {source.fragment_key}")
    return source


def check_run_owner(store_id: int, tombstone_store_id: int) -> None:
    """Refuse to delete a run that belongs to another store: that would delete someone else's messages."""
    if store_id != tombstone_store_id:
        raise StoreFailed(f"a tombstone of store {tombstone_store_id} was handed to store {store_id}")
