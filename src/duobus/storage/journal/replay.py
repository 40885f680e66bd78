"""What of a journal SQLite does not have yet, when a store is opened; and whether all of it is there.

The rule: the commits of a journal follow each other without a gap. So of what SQLite lacks, the first has the number
behind SQLite's last, and each of the others the number behind the one before. What is missing between two commits, or
before the first one, was answered and is gone: the store is refused by name, and no commit behind the gap is replayed,
for it may rest on what is missing. What is missing behind the last one is a torn tail, of which nobody was told, unless
the mark of the store says that the store had come further.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from duobus.errors import StoreFailed
from duobus.storage.interface import CommitBatch
from duobus.storage.journal.format import JournalDamaged, SegmentContents, batch_of

_PUT_BACK: Final = (
    "Put back what was taken away or damaged. If it cannot be found, stop the server and take the store without it, by"
    " which messages that were accepted are lost: duobus store accept-loss"
)


class Position(NamedTuple):
    """How far a store's database has come.

    Attributes:
        store_id: Which store it is.
        generation: How often it was opened.
        commit_no: Of the last commit that is in the database.
        marked_no: The last commit that is known to have been answered; 0: unknown.
    """

    store_id: int
    generation: int
    commit_no: int
    marked_no: int = 0


def missing_commits(name: str, segments: Iterable[SegmentContents], position: Position) -> list[CommitBatch]:
    """Return the commits that the database lacks, in order.

    Args:
        name: Of the journal, for the words of a refusal.
        segments: All that were begun, in any order.
        position: How far the database has come.

    Raises:
        StoreFailed: The journal is another store's or another life's, or is damaged, or lacks something.
    """
    ordered = sorted(segments, key=lambda segment: segment.header.sequence)
    for segment in ordered:
        if segment.header.store_id != position.store_id:
            raise StoreFailed(
                f"{name}: the journal is of store {segment.header.store_id}, not {position.store_id};"
                " files were mixed up"
            )
    _demand_whole(name, ordered, position.commit_no)
    batches: list[CommitBatch] = []
    last_no = position.commit_no
    for segment in ordered:
        for found in segment.records:
            if found.commit_no <= position.commit_no:
                # SQLite's transaction had it, and the segment was not used again since.
                continue
            if found.generation != position.generation:
                raise StoreFailed(
                    f"{name}: the journal has a commit of generation {found.generation}, and the store's file is at"
                    f" {position.generation}: one of them is another copy. {_PUT_BACK}"
                )
            if found.commit_no != last_no + 1:
                raise _gap(name, last_no, found.commit_no)
            try:
                batches.append(batch_of(found))
            except JournalDamaged as error:
                raise StoreFailed(f"{name}: {error}. {_PUT_BACK}") from None
            last_no = found.commit_no
    # What was begun last was not answered, and what came before it was.
    answered_no = max([position.marked_no, *(segment.torn_no - 1 for segment in ordered)])
    if last_no < answered_no:
        raise _gap(name, last_no, answered_no + 1)
    return batches


def _demand_whole(name: str, ordered: Sequence[SegmentContents], commit_no: int) -> None:
    """Refuse a journal in which a record was begun behind one that is not whole and that the database may lack."""
    for segment, following in pairwise([*ordered, None]):
        assert segment is not None
        if following is not None and following.header.sequence == segment.header.sequence:
            raise StoreFailed(f"{name}: segment {segment.header.sequence} is there twice; one is a copy. {_PUT_BACK}")
        last_no = segment.records[-1].commit_no if segment.records else 0
        if segment.is_followed and not _has_all_of(segment, following, commit_no):
            raise StoreFailed(
                f"{name}: the journal is damaged in segment {segment.header.sequence} at byte {segment.end}, behind"
                f" commit {last_no}; commits that were answered stand there and behind it. {_PUT_BACK}"
            )


def _has_all_of(segment: SegmentContents, following: SegmentContents | None, commit_no: int) -> bool:
    """Whether the database has all that a damaged segment could hold."""
    return following is not None and bool(following.records) and following.records[0].commit_no <= commit_no + 1


def _gap(name: str, last_no: int, next_no: int) -> StoreFailed:
    missing = f"commit {last_no + 1}" if next_no == last_no + 2 else f"commits {last_no + 1} to {next_no - 1}"
    return StoreFailed(f"{name}: the journal lacks {missing}, which had been answered. {_PUT_BACK}")
