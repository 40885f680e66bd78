"""A record gives its commit back, and a reader tells a torn tail from damage."""

from __future__ import annotations

import random

import pytest

from duobus.storage.interface import CommitBatch, IdBlock, Put, Tombstone
from duobus.storage.journal import format as journal_format
from duobus.storage.journal.format import (
    HEADER_BYTES,
    HEADERS_AT,
    RECORD_HEADER_BYTES,
    RECORDS_AT,
    CommitRecord,
    JournalDamaged,
    SegmentContents,
    SegmentHeader,
    batch_of,
    body_of,
    read_header,
    read_segment,
    record_header,
    segment_header,
)

SIZE = 32_768
HEADER = SegmentHeader(3, 7, SIZE, b"saltsalt")
#: The columns behind the new messages of a commit that has none of them.
TAIL = bytes.fromhex("90" * 7)


def columns(batch: CommitBatch) -> list[object]:
    """Everything that a commit says, to be compared."""
    parts: list[object] = [batch.commit_no, batch.broker_ms, batch.epochs, batch.removed, batch.changes, batch.sources]
    parts += [batch.outdated, batch.forgotten]
    for rows in (batch.puts, batch.histories, batch.tombstones):
        parts += [[getattr(row, name) for name in row.__slots__] for row in rows]
    return parts


def full_batch(commit_no: int = 5) -> CommitBatch:
    """A commit with something in every column."""
    batch = CommitBatch(commit_no, 1_700_000_000_000)
    batch.epochs = [(1, 2), (3, 4)]
    copies = Put(2, 10, 99, [b"a", b"", b"ccc"], {1: (2, 3, None), 2: (0, 1, b"")}, [-5, 0, 6])
    equal = Put(3, 1 << 43, 98, [b"x" * 300, b"y"])
    equal.equal_metadata = [b"m", b""]
    equal.is_reserved = True
    batch.puts = [copies, equal, Put(4, 1, 97, []), Put(4, 1, 97, [b"z"], {})]
    batch.removed = [(2, 1, 9), (3, 4, 4)]
    batch.changes = [(2, 11, 1, 2, b"special"), (2, 12, 0, 0, None), (2, 13, 0, 0, b"")]
    batch.sources = [(2, 13, 12, b"counters"), (3, 2, 0, b"")]
    batch.histories = [IdBlock(2, 10, 99, b"ids")]
    batch.outdated = [(2, 4)]
    batch.tombstones = [Tombstone(1, 2, 3, 4, 5, 6)]
    batch.forgotten = [(9, 8)]
    return batch


def small_batch(commit_no: int, payload: bytes = b"payload") -> CommitBatch:
    """A commit of one message."""
    batch = CommitBatch(commit_no, 1_000)
    batch.epochs = [(1, 1)]
    batch.puts = [Put(1, commit_no, 1_000, [payload])]
    batch.sources = [(1, commit_no + 1, 0, b"")]
    return batch


def bytes_of(batch: CommitBatch, header: SegmentHeader = HEADER, generation: int = 4) -> bytes:
    """The record of a commit."""
    body = body_of(batch)
    return record_header(body, batch.commit_no, generation, header) + body


def segment(*records: bytes, header: SegmentHeader = HEADER, size: int = SIZE) -> bytearray:
    """A segment with records."""
    data = bytearray(size)
    for at in HEADERS_AT:
        data[at : at + HEADER_BYTES] = segment_header(header)
    joined = b"".join(records)
    data[RECORDS_AT : RECORDS_AT + len(joined)] = joined
    return data


def contents(data: bytes | bytearray) -> SegmentContents:
    """What a segment holds, which was begun."""
    found = read_segment(bytes(data))
    assert found is not None
    return found


def numbers(data: bytes | bytearray) -> list[int]:
    """The commits in a segment."""
    return [found.commit_no for found in contents(data).records]


def test_a_record_gives_back_every_column_of_its_commit() -> None:
    found = contents(segment(bytes_of(full_batch())))
    assert [(record.generation, record.commit_no) for record in found.records] == [(4, 5)]
    assert columns(batch_of(found.records[0])) == columns(full_batch())
    assert not found.is_followed
    assert found.end == RECORDS_AT + len(bytes_of(full_batch()))


def test_a_body_that_copies_share_stands_in_the_record_once_and_comes_back_for_each_of_them() -> None:
    batch, body, other = small_batch(5), b"b" * 1000, b"o" * 1000
    batch.puts = [Put(key, 10, 1, [body, b"own", other], None, [-7, 8, -9]) for key in (2, 3, 4)]
    # Of another fragment, in which a message has the same count.
    batch.puts += [Put(key, 10, 1, [b"x" * 1000], None, [-7]) for key in (12, 13)]
    assert 3_000 < len(body_of(batch)) < 3_300
    assert columns(batch_of(CommitRecord(4, 5, body_of(batch)))) == columns(batch)


@pytest.mark.parametrize("origin", [-7, 8])
def test_a_copy_whose_body_is_nowhere_in_the_record_is_refused(origin: int) -> None:
    batch, body = small_batch(5), b"body of copies"
    batch.puts = [Put(2, 10, 1, [body, body], None, [-7, -7])]
    read = body_of(batch)
    assert read.count(body) == 1
    put = journal_format._put(Put(2, 10, 1, [body], None, [origin]), [None])
    with pytest.raises(JournalDamaged, match="without a payload"):
        batch_of(CommitRecord(4, 5, read[: read.index(b"\x91\x98")] + journal_format._ENCODER.encode([put]) + TAIL))


def test_the_bytes_of_a_record_and_of_a_segment_are_those_of_the_first_version() -> None:
    batch = small_batch(9)
    columns_of_body = (
        "9a",  # an array of ten
        "cd03e8",  # broker_ms
        "91920101",  # epochs
        "91980109cd03e8c291c407" + b"payload".hex() + "c0c0c0",  # puts
        "90",  # removed
        "90",  # changes
        "9194010a00c400",  # sources
        "90909090",  # histories, outdated, tombstones, forgotten
    )
    assert body_of(batch).hex() == "".join(columns_of_body)
    assert bytes_of(batch)[:12] == b"dJR1saltsalt"
    assert bytes_of(batch)[12:32].hex() == "2a000000" + "0400000000000000" + "0900000000000000"
    assert len(bytes_of(batch)) == RECORD_HEADER_BYTES + 0x2A
    numbers_of_header = b"\3" + bytes(7) + b"\7" + bytes(7) + b"\0\x80" + bytes(6)
    assert segment_header(HEADER)[:40] == b"duobusJ1" + numbers_of_header + b"saltsalt"
    assert len(segment_header(HEADER)) == HEADER_BYTES


def test_records_follow_each_other_until_the_zeros() -> None:
    data = segment(*(bytes_of(small_batch(number)) for number in (4, 5, 6)))
    assert numbers(data) == [4, 5, 6]
    assert not contents(data).is_followed


def test_whatever_is_missing_of_the_last_record_is_a_torn_tail() -> None:
    whole, last = bytes_of(small_batch(4)), bytes_of(small_batch(5, bytes(range(256)) * 8))
    start = RECORDS_AT + len(whole)
    chance = random.Random(1)
    for _ in range(300):
        data = segment(whole, last)
        for sector in range(start // 512, (start + len(last)) // 512 + 1):
            if chance.random() < 0.5:
                first = max(start, sector * 512)
                data[first : max(first, (sector + 1) * 512)] = bytes(max(0, (sector + 1) * 512 - first))
        found = contents(data)
        assert [record.commit_no for record in found.records] in ([4], [4, 5])
        assert not found.is_followed
        if found.records[1:]:
            assert columns(batch_of(found.records[1])) == columns(small_batch(5, bytes(range(256)) * 8))
        assert found.torn_no in ((0,) if found.records[1:] else (0, 5))


def test_any_flipped_bit_in_a_record_is_noticed_and_what_follows_it_tells_of_damage() -> None:
    first, second = bytes_of(small_batch(4)), bytes_of(small_batch(5))
    for bit in range(8 * len(first)):
        data = segment(first, second)
        data[RECORDS_AT + bit // 8] ^= 1 << bit % 8
        found = contents(data)
        assert found.records == []
        assert found.end == RECORDS_AT
        assert found.is_followed


def test_a_lost_sector_before_a_record_that_is_itself_torn_is_damage() -> None:
    first, second = bytes_of(small_batch(4)), bytes_of(small_batch(5, b"x" * 4096))
    data = segment(first, second)
    data[RECORDS_AT : RECORDS_AT + len(first)] = bytes(len(first))
    data[RECORDS_AT + len(first) + 1000 :] = bytes(SIZE - RECORDS_AT - len(first) - 1000)
    assert contents(data).records == []
    assert contents(data).is_followed


def test_records_of_an_earlier_use_of_the_file_are_none() -> None:
    earlier = SegmentHeader(3, 6, SIZE, b"formerly")
    data = segment(*(bytes_of(small_batch(number), earlier) for number in range(1, 20)), header=earlier)
    for at in HEADERS_AT:
        data[at : at + HEADER_BYTES] = segment_header(HEADER)
    assert contents(data).records == []
    assert not contents(data).is_followed
    new = bytes_of(small_batch(30))
    data[RECORDS_AT : RECORDS_AT + len(new)] = new
    assert numbers(data) == [30]
    assert not contents(data).is_followed


def test_a_message_that_holds_a_record_with_another_salt_is_a_message() -> None:
    forged = bytes_of(small_batch(99), HEADER._replace(salt=b"guessed!"))
    last = bytes_of(small_batch(4, forged * 3))
    data = segment(last)
    assert numbers(data) == [4]
    data[RECORDS_AT + 10] ^= 1
    assert contents(data).records == []
    assert not contents(data).is_followed


@pytest.mark.parametrize("copy", [0, 1])
def test_one_copy_of_the_header_is_enough(copy: int) -> None:
    data = segment(bytes_of(small_batch(4)))
    data[HEADERS_AT[copy] : HEADERS_AT[copy] + HEADER_BYTES] = b"?" * HEADER_BYTES
    assert numbers(data) == [4]


def test_a_header_that_is_being_replaced_leaves_the_old_use_or_the_new_one() -> None:
    new = HEADER._replace(sequence=8, salt=b"new salt")
    data = segment(bytes_of(small_batch(4)))
    data[: HEADER_BYTES // 4] = segment_header(new)[: HEADER_BYTES // 4]
    assert read_header(bytes(data)) == HEADER
    data[:HEADER_BYTES] = segment_header(new)
    assert read_header(bytes(data)) == new


def test_a_first_copy_that_the_disk_lost_leaves_the_newer_second_one() -> None:
    data = segment(bytes_of(small_batch(4)))
    data[:HEADER_BYTES] = segment_header(HEADER._replace(sequence=6, salt=b"formerly"))
    assert read_header(bytes(data)) == HEADER
    assert numbers(data) == [4]


def test_a_segment_with_records_whose_headers_are_both_gone_is_damaged() -> None:
    data = segment(bytes_of(small_batch(4)))
    for at in HEADERS_AT:
        data[at : at + HEADER_BYTES] = bytes(HEADER_BYTES)
    with pytest.raises(JournalDamaged, match="neither copy"):
        read_segment(bytes(data))


@pytest.mark.parametrize("data", [b"", bytes(100), bytes(SIZE), segment_header(HEADER)[:10] + bytes(SIZE)])
def test_a_file_that_was_never_begun_is_no_segment(data: bytes) -> None:
    assert read_segment(data) is None


def test_a_body_that_was_changed_and_summed_anew_is_read_or_refused_and_nothing_else() -> None:
    chance = random.Random(2)
    body = body_of(full_batch())
    refused = 0
    for _ in range(3_000):
        changed = bytearray(body)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        del changed[len(changed) - chance.choice((0, 0, 1, 9)) :]
        try:
            batch_of(CommitRecord(4, 5, bytes(changed)))
        except JournalDamaged:
            refused += 1
    assert 1_000 < refused < 3_000


def test_a_record_that_does_not_fit_into_the_file_is_torn() -> None:
    length = len(bytes_of(small_batch(4)))
    for end in range(RECORDS_AT + length, RECORDS_AT + 2 * length):
        header = HEADER._replace(length=end)
        data = segment(bytes_of(small_batch(4)), bytes_of(small_batch(5)), header=header)
        assert numbers(data[:end]) == [4]


@pytest.mark.parametrize("length", [SIZE - 1, RECORDS_AT, RECORDS_AT - 1, HEADER_BYTES])
def test_a_file_that_was_cut_is_damaged(length: int) -> None:
    data = segment(bytes_of(small_batch(4)))
    with pytest.raises(JournalDamaged, match=f"it has {length} bytes and had {SIZE}"):
        read_segment(bytes(data[:length]))


# -- planted bugs -----------------------------------------------------------------------------------------------------


def test_a_reader_that_checks_no_sum_of_bodies_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    data = segment(bytes_of(small_batch(4)))
    data[RECORDS_AT + RECORD_HEADER_BYTES + 3] ^= 1
    assert numbers(data) == []

    def unchecked(data: bytes, at: int, mark: bytes) -> CommitRecord | None:
        head = journal_format._head_at(data, at, mark)
        if head is None:
            return None
        first = at + RECORD_HEADER_BYTES
        return CommitRecord(head[1], head[2], data[first : first + head[0]])

    monkeypatch.setattr(journal_format, "_record_at", unchecked)
    assert numbers(data) == [4]


def test_a_reader_that_takes_damage_in_the_middle_for_a_torn_tail_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = segment(bytes_of(small_batch(4)), bytes_of(small_batch(5)))
    data[RECORDS_AT + 50] ^= 1
    assert contents(data).is_followed
    monkeypatch.setattr(journal_format, "_is_begun_behind", lambda *_: False)
    assert not contents(data).is_followed
