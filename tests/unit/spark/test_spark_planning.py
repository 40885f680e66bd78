"""How batches are cut into tasks, and where entities begin and end: pure, without broker or Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType

from duobus.spark.body_encoder import sequence_sections, value_section
from duobus.spark.claims.attempts import FILE_BYTES_MAX, Attempts
from duobus.spark.errors import CheckpointError, OptionError
from duobus.spark.offsets import COUNT_BITS, Key
from duobus.spark.options import SOURCE_OPTIONS, parse
from duobus.spark.rows import check_schema, properties_of
from duobus.spark.source import range_reader
from duobus.spark.source.claim_stream import stream_reader
from duobus.spark.source.extents import Extent, cut, extents, first_since, last_until
from duobus.spark.source.partitions import split
from duobus.spark.source.range_reader import TASK_MESSAGES, tasks_of
from duobus.spark.source.ranges import Bounds, Range, parse_bounds, ranges_of

numbers = st.sets(
    st.builds(lambda fragment, count: fragment << COUNT_BITS | count, st.integers(0, 5), st.integers(1, 300)),
    min_size=1,
)


def entity(found: set[int]) -> Any:
    """A stand-in for an entity: the first message with a number of at least the one asked for."""
    ordered = sorted(found)

    def at(number: int) -> Any:
        # What goes over the wire is a whole number.
        assert type(number) is int
        for one in ordered:
            if one >= number:
                enqueued = datetime.fromtimestamp((one & 0xFFFF), UTC)
                return SimpleNamespace(sequence_number=one, enqueued_time_utc=enqueued)
        return None

    return at


@given(numbers, st.integers(1, 40), st.one_of(st.none(), st.integers(1, 20)))
@settings(deadline=None)
def test_each_message_of_a_claim_is_in_one_task_and_none_has_too_many(found: set[int], most: int, least: Any) -> None:
    """SP7."""
    tasks = split({Key("q"): dict.fromkeys(found, 0)}, most, least)
    assert sorted(number for task in tasks for piece in task for number in piece.numbers()) == sorted(found)
    assert all(len(piece.numbers()) <= most for task in tasks for piece in task)
    if least is not None:
        assert len(tasks) >= min(least, len(found)) / 2


def test_small_fragments_share_a_task() -> None:
    claim = {Key("q"): {fragment << COUNT_BITS | 1: 0 for fragment in range(16)}}
    assert len(split(claim, 5_000, None)) == 4


@pytest.mark.parametrize(
    ("messages", "given", "tasks"),
    [
        (1, {}, 1),
        (4_000, {}, 1),
        (20_000, {}, 2),
        # As many as there are processors until starting another Python is cheaper than reading on.
        (2 * TASK_MESSAGES, {}, 2),
        (200_000, {}, 4),
        (200_000, {"maxRecordsPerPartition": "5000"}, 40),
        (20_000, {"minPartitions": "8"}, 8),
    ],
)
def test_a_snapshot_has_few_tasks_so_that_a_limit_costs_no_more_than_all(
    monkeypatch: pytest.MonkeyPatch, messages: int, given: dict[str, str], tasks: int
) -> None:
    """With a task for every 5,000 messages ``limit(5).count()`` took six times as long as ``count()``."""
    monkeypatch.setattr(range_reader.os, "cpu_count", lambda: 2)
    assert len(tasks_of([Range("q", 1, messages)], parse(given, SOURCE_OPTIONS))) == tasks


def test_a_session_stays_whole_however_large() -> None:
    tasks = split({Key("q", "s"): dict.fromkeys(range(1, 100), 0)}, 10, None)
    assert [len(piece.numbers()) for task in tasks for piece in task] == [99]


@given(numbers)
@settings(deadline=None)
def test_extents_are_those_of_the_messages_that_there_are(found: set[int]) -> None:
    wanted: dict[int, list[int]] = {}
    for number in sorted(found):
        wanted.setdefault(number >> COUNT_BITS, []).append(number)
    assert extents(entity(found)) == [Extent(fragment, members[0], members[-1]) for fragment, members in wanted.items()]


@given(st.sets(st.integers(1, 500), min_size=1), st.integers(1, 600))
@settings(deadline=None)
def test_an_end_is_the_number_of_a_message_that_was_seen(found: set[int], bound: int) -> None:
    first = min(found)
    if bound >= first:
        assert last_until(entity(found), first, bound) == max(number for number in found if number <= bound)


@given(st.sets(st.integers(1, 500), min_size=1), st.integers(0, 600))
@settings(deadline=None)
def test_the_first_message_since_an_instant_is_found_by_halving(found: set[int], since: int) -> None:
    first = first_since(entity(found), Extent(0, min(found), max(found)), since * 1000)
    later = {number for number in found if number >= since}
    assert {number for number in found if number >= first} == later


def test_the_first_message_since_an_instant_is_found_wherever_messages_follow_without_a_gap() -> None:
    dense = entity(set(range(1, 21)))
    assert [first_since(dense, Extent(0, 1, 20), since * 1000) for since in range(1, 22)] == list(range(1, 22))


def test_an_instant_is_compared_to_the_millisecond() -> None:
    def at(number: int) -> Any:
        moment = datetime.fromtimestamp(1_700_000_000 + number / 1000, UTC)
        return SimpleNamespace(sequence_number=number, enqueued_time_utc=moment)

    for since in (4, 5):
        assert first_since(at, Extent(0, 1, 9), 1_700_000_000_000 + since) in (since, since + 1)
    assert first_since(at, Extent(0, 1, 9), 1_700_000_000_000 - 1) == 1
    assert first_since(at, Extent(0, 1, 9), 1_700_000_000_000 + 99) == 10


def test_a_range_is_cut_into_parts_without_gaps() -> None:
    assert cut(1, 10, 3) == [(1, 4), (5, 8), (9, 10)]
    assert cut(5, 5, 4) == [(5, 5)]
    assert cut(5, 7, 4) == [(5, 5), (6, 6), (7, 7)]
    assert cut(100, 199, 4) == [(100, 124), (125, 149), (150, 174), (175, 199)]
    assert cut(100, 199, 0) == [(100, 199)]
    assert cut(9, 8, 4) == []


def test_extents_may_begin_behind_messages_and_end_with_the_numbers() -> None:
    found = {1, 5, 3 << COUNT_BITS | 2, (1 << 63) - 1}
    last = Extent((1 << 63) - 1 >> COUNT_BITS, (1 << 63) - 1, (1 << 63) - 1)
    assert extents(entity(found), 4) == [Extent(0, 5, 5), Extent(3, 3 << COUNT_BITS | 2, 3 << COUNT_BITS | 2), last]
    assert extents(entity(found), 1 << 63) == []


def test_the_end_of_many_messages_is_found_by_few_looks() -> None:
    looks = 0

    def at(number: int) -> Any:
        nonlocal looks
        looks += 1
        return SimpleNamespace(sequence_number=number) if number <= 1_000_000 else None

    assert last_until(at, 1, (1 << COUNT_BITS) - 1) == 1_000_000
    assert looks <= 42


def test_values_and_sequences_are_written_as_amqp_sections() -> None:
    assert value_section("é") == b"\x00\x53\x77\xb1\x00\x00\x00\x02\xc3\xa9"
    assert value_section(b"\xff") == b"\x00\x53\x77\xb0\x00\x00\x00\x01\xff"
    assert value_section(None) == b"\x00\x53\x77\x40"
    assert value_section({"a": True})[3:] == b"\xd1\x00\x00\x00\x0b\x00\x00\x00\x02\xb1\x00\x00\x00\x01a\x41"
    assert sequence_sections([[1], []]) == (
        b"\x00\x53\x76\xd0\x00\x00\x00\x0d\x00\x00\x00\x01\x81\x00\x00\x00\x00\x00\x00\x00\x01"
        b"\x00\x53\x76\xd0\x00\x00\x00\x04\x00\x00\x00\x00"
    )


def test_a_body_that_is_nested_without_end_is_refused() -> None:
    value: Any = 1
    for _ in range(70):
        value = [value]
    with pytest.raises(ValueError, match="levels deep"):
        value_section(value)


def test_properties_are_text_and_the_types_of_the_others_are_told() -> None:
    given_ = {
        b"text": b"x",
        b"binary": b"\xff",
        b"flag": True,
        b"number": 5,
        b"real": 0.5,
        b"id": UUID(int=7),
        b"nothing": None,
    }
    texts, types = properties_of(SimpleNamespace(application_properties=given_))
    assert texts == {
        "text": "x",
        "binary": "/w==",
        "flag": "true",
        "number": "5",
        "real": "0.5",
        "id": str(UUID(int=7)),
        "nothing": None,
    }
    assert types == {
        "binary": "binary",
        "flag": "boolean",
        "number": "long",
        "real": "double",
        "id": "uuid",
        "nothing": "null",
    }


def test_a_column_that_there_is_not_is_told() -> None:
    with pytest.raises(OptionError, match="no column 'boddy'"):
        check_schema(StructType().add("boddy", StringType()))
    with pytest.raises(OptionError, match="'subject' is a string, not a bigint"):
        check_schema(StructType().add("subject", LongType()))


def test_runs_of_a_batch_are_counted_over_processes_and_a_new_batch_begins_anew(tmp_path: Path) -> None:
    assert [Attempts(str(tmp_path)).begin({"b": 1}) for _ in range(3)] == [1, 2, 3]
    assert Attempts(str(tmp_path)).begin({"b": 2}) == 1


def test_a_count_says_which_batch_it_is_of(tmp_path: Path) -> None:
    attempts = Attempts(str(tmp_path / "new" / "folder"))
    assert attempts.begin({"b": 1, "c": 2}) == 1
    # The order of the members is no difference.
    assert attempts.begin({"c": 2, "b": 1}) == 2
    assert Attempts(str(tmp_path / "new" / "folder")).begin({"b": 1, "c": 2}) == 3
    assert attempts.begin({"b": 1, "c": 3}) == 1
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["attempts.json"]


def test_a_folder_that_cannot_be_written_is_told_by_its_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="'attemptsPath' names no folder"):
        Attempts(str(tmp_path / "file")).begin({})


def test_an_empty_folder_is_not_wherever_the_process_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for empty in ("", " "):
        with pytest.raises(CheckpointError, match="'attemptsPath' is empty"):
            Attempts(empty).begin({"b": 1})
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_count_is_told_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "attempts.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"attempts\.json of 'attemptsPath' is damaged"):
        Attempts(str(tmp_path)).begin({"b": 1})


def test_of_a_count_that_is_far_too_long_no_more_is_read_than_one_has(tmp_path: Path) -> None:
    attempts = Attempts(str(tmp_path))
    attempts.begin({"b": 1})
    file = tmp_path / "attempts.json"
    file.write_text(json.dumps({"rest": "x" * FILE_BYTES_MAX, **json.loads(file.read_text())}))
    with pytest.raises(CheckpointError, match="is damaged"):
        attempts.begin({"b": 1})


def test_a_snapshot_may_end_before_an_instant() -> None:
    at = entity(set(range(1, 11)))
    since_ms, until_ms = 3_000, 8_000
    assert list(ranges_of("q", Bounds(until_ms=until_ms), at)) == [Range("q", 1, 7)]
    assert list(ranges_of("q", Bounds(since_ms=since_ms, until_ms=until_ms), at)) == [Range("q", 3, 7)]
    assert list(ranges_of("q", Bounds(until_ms=since_ms, since_ms=until_ms), at)) == []
    assert list(ranges_of("q", Bounds(least=4, most=5), at)) == [Range("q", 4, 5)]


def test_a_stream_refuses_an_end_that_an_option_says() -> None:
    given = {"connectionString": "Endpoint=sb://x", "queue": "q", "readMode": "browse", "endingTimestamp": "2026-01-01"}
    reader = stream_reader(given, StructType())
    with pytest.raises(OptionError, match="'endingTimestamp' is of batch reads"):
        reader.initialOffset()


def test_a_time_that_is_none_is_told_by_its_option() -> None:
    with pytest.raises(OptionError, match="'endingTimestamp' is 'soon'; it has to be an ISO 8601 time"):
        parse_bounds(parse({"endingTimestamp": "soon"}, SOURCE_OPTIONS))
