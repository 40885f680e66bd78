"""What is replayed is all that SQLite lacks, in order; a journal that lacks some of it is refused."""

from __future__ import annotations

import pytest
from test_journal_format import RECORDS_AT, bytes_of, contents, segment, small_batch

from duobus.errors import StoreFailed
from duobus.storage.interface import Tombstone
from duobus.storage.journal.format import SegmentContents, SegmentHeader, record_header
from duobus.storage.journal.replay import Position, missing_commits

AT_SIX = Position(3, 4, 6)


def begun(sequence: int, *commits: int, generation: int = 4, store_id: int = 3) -> SegmentContents:
    """A segment with these commits."""
    header = SegmentHeader(store_id, sequence, 0, b"salt%04d" % sequence)
    return contents(segment(*(bytes_of(small_batch(number), header, generation) for number in commits), header=header))


def damaged(sequence: int, *commits: int, at: int = 0) -> SegmentContents:
    """The same with a flipped bit in the record with this index."""
    header = SegmentHeader(3, sequence, 0, b"salt%04d" % sequence)
    records = [bytes_of(small_batch(number), header) for number in commits]
    data = segment(*records, header=header)
    data[RECORDS_AT + sum(map(len, records[:at])) + 45] ^= 4
    return contents(data)


def replayed(*segments: SegmentContents, position: Position = AT_SIX) -> list[int]:
    """The commits that are replayed."""
    return [batch.commit_no for batch in missing_commits("s.db", segments, position)]


def test_only_what_the_database_lacks_is_replayed_and_in_order() -> None:
    assert replayed(begun(2, 8, 9), begun(1, 5, 6, 7), begun(3)) == [7, 8, 9]


def test_what_the_database_has_is_not_replayed_twice() -> None:
    assert replayed(begun(1, 4, 5, 6)) == []
    assert replayed(begun(1, 4, 5), begun(2, 6, 7)) == [7]


def test_an_empty_journal_has_nothing() -> None:
    assert replayed() == replayed(begun(1)) == []


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        ([begun(1, 8)], "lacks commit 7,"),
        ([begun(1, 7), begun(3, 10)], "lacks commits 8 to 9,"),
        ([begun(1, 7), begun(1, 7)], "there twice"),
        ([begun(1, 7, store_id=5)], "of store 5, not 3"),
        ([begun(1, 7, generation=3)], "another copy"),
        ([begun(1, 7, generation=5)], "another copy"),
        ([damaged(1, 7, 8, 9, at=1)], "damaged in segment 1 at byte .*, behind commit 7"),
        ([damaged(1, 7, 8)], "damaged in segment 1"),
        ([damaged(1, 7, 8, at=1), begun(2, 9)], "lacks commit 8,"),
        ([damaged(1, 5, 6, at=1), begun(2, 8)], "lacks commit 7,"),
    ],
)
def test_a_journal_that_lacks_something_is_refused(segments: list[SegmentContents], words: str) -> None:
    with pytest.raises(StoreFailed, match=words):
        replayed(*segments)


def test_a_torn_tail_is_what_nobody_was_told_of() -> None:
    assert replayed(damaged(1, 7, 8, at=1)) == [7]
    assert replayed(begun(1, 7), damaged(2, 8)) == [7]


def test_a_last_record_that_was_answered_and_is_damaged_is_refused_by_the_mark() -> None:
    torn = damaged(1, 7, 8, at=1)
    assert replayed(torn, position=AT_SIX._replace(marked_no=7)) == [7]
    with pytest.raises(StoreFailed, match="lacks commit 8,"):
        replayed(torn, position=AT_SIX._replace(marked_no=8))
    with pytest.raises(StoreFailed, match="lacks commits 7 to 9,"):
        replayed(position=AT_SIX._replace(marked_no=9))


def test_a_torn_record_tells_that_the_commits_before_it_were_answered() -> None:
    assert replayed(begun(1, 7), damaged(2, 8)) == [7]
    with pytest.raises(StoreFailed, match="lacks commit 8,"):
        replayed(damaged(1, 7, 8, at=1), damaged(2, 9))
    with pytest.raises(StoreFailed, match="lacks commit 7,"):
        replayed(damaged(2, 8))


def test_damage_in_a_segment_that_the_database_has_all_of_is_passed_over() -> None:
    assert replayed(damaged(1, 4, 5, at=0), begun(2, 6, 7)) == [7]
    assert replayed(damaged(1, 4, 5, at=0), begun(2, 7)) == [7]


def test_tombstones_are_replayed_with_their_commit() -> None:
    header = SegmentHeader(3, 1, 0, b"saltsalt")
    batch = small_batch(7)
    batch.tombstones = [Tombstone(9, 1, 2, 3, 4, 5)]
    batch.forgotten = [(8, 1)]
    (found,) = missing_commits("s.db", [contents(segment(bytes_of(batch, header), header=header))], AT_SIX)
    assert [(t.store_id, t.last_count) for t in found.tombstones] == [(9, 5)]
    assert found.forgotten == [(8, 1)]


def test_a_body_that_cannot_be_read_is_refused_although_its_sum_holds() -> None:
    header = SegmentHeader(3, 1, 0, b"saltsalt")
    body = bytes(5)
    data = segment(record_header(body, 7, 4, header) + body, header=header)
    with pytest.raises(StoreFailed, match="commit 7 cannot be read"):
        replayed(contents(data))
