"""A fragment that is away looks empty to a peek; nobody takes its messages for gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus.exceptions import MessageNotFoundError, ServiceBusServerBusyError
from pyspark.sql.types import StructType  # type: ignore[attr-defined]

from duobus.spark import recovery
from duobus.spark.entities import demand_there, look, peek
from duobus.spark.offsets import COUNT_BITS, BrowseOffset, ClaimOffset, Key
from duobus.spark.source.browse_stream import BrowseStreamReader
from duobus.spark.source.peek_pages import page_of
from duobus.spark.source.ranges import Range, messages_of
from duobus.spark.source.settings import source_options

#: Numbers of two fragments.
FIRST = [1 << COUNT_BITS | count for count in range(1, 7)]
SECOND = [2 << COUNT_BITS | count for count in range(1, 4)]


class Receiver:
    """Peeks as a broker does: over all fragments that are there, some messages at a time.

    Attributes:
        away: Fragments that are not there; by request, the last one holds on.
    """

    def __init__(self, numbers: list[int], away: list[set[int]], page: int = 1000) -> None:
        self.numbers, self.away, self.page = numbers, away, page
        self.asked = 0

    def _gone(self) -> set[int]:
        gone = self.away[min(self.asked, len(self.away) - 1)]
        self.asked += 1
        return gone

    def peek_messages(self, max_message_count: int, sequence_number: int) -> list[Any]:
        gone = self._gone()
        found = [n for n in sorted(self.numbers) if n >= sequence_number and n >> COUNT_BITS not in gone]
        if not found and gone:
            raise ServiceBusServerBusyError()
        return [SimpleNamespace(sequence_number=n) for n in found[: min(max_message_count, self.page)]]

    def receive_deferred_messages(self, numbers: list[int]) -> list[Any]:
        gone = self._gone()
        if any(number >> COUNT_BITS in gone for number in numbers):
            raise ServiceBusServerBusyError()
        raise MessageNotFoundError()


def numbers(found: Iterator[Any]) -> list[int]:
    return [message.sequence_number for message in found]


def browsed(receiver: Receiver, part: Range) -> list[int]:
    return numbers(
        messages_of(
            part,
            lambda first, count: page_of(receiver, first, count),
            lambda fragment: demand_there(receiver, fragment),
        )
    )


def test_a_peek_passes_over_a_fragment_that_is_away() -> None:
    """What all of this is about; the broker's own test is test_lost_store_operations."""
    assert numbers(iter(peek(Receiver(FIRST + SECOND, [{1}]), FIRST[0], 3))) == SECOND


def test_messages_of_a_fragment_that_is_away_are_not_gone() -> None:
    with pytest.raises(ServiceBusServerBusyError):
        numbers(look(Receiver(FIRST + SECOND, [{1}]), FIRST))


def test_a_fragment_that_comes_back_meanwhile_is_looked_at_again() -> None:
    assert numbers(look(Receiver(FIRST + SECOND, [{1}, set()]), FIRST)) == FIRST


def test_one_that_was_away_between_two_looks_only_is_not_believed_to_be_empty() -> None:
    with pytest.raises(ServiceBusServerBusyError):
        numbers(look(Receiver(FIRST + SECOND, [set(), {1}, {1}], page=3), FIRST))


def test_messages_that_are_gone_are_gone() -> None:
    receiver = Receiver([FIRST[0], FIRST[4], *SECOND], [set()])
    assert numbers(look(receiver, FIRST)) == [FIRST[0], FIRST[4]]
    assert numbers(look(Receiver(SECOND, [set()]), FIRST)) == []
    assert numbers(look(Receiver([], [set()]), FIRST)) == []


def test_a_look_that_finds_all_asks_nothing_more() -> None:
    receiver = Receiver(FIRST + SECOND, [set()])
    assert numbers(look(receiver, FIRST)) == FIRST
    assert receiver.asked == 1


def test_a_range_of_a_fragment_that_is_away_is_no_empty_range() -> None:
    part = Range("orders", FIRST[0], FIRST[-1])
    for away in ([{1}], [set(), {1}]):
        with pytest.raises(ServiceBusServerBusyError):
            browsed(Receiver(FIRST + SECOND, away, page=3), part)
    assert browsed(Receiver(FIRST + SECOND, [{1}, set()]), part) == FIRST


def test_a_range_ends_where_it_should_whatever_lies_behind_and_is_gone() -> None:
    part = Range("orders", FIRST[1], FIRST[3])
    for page in (1, 2, 1000):
        assert browsed(Receiver(FIRST + SECOND, [set()], page), part) == FIRST[1:4]
        assert browsed(Receiver(FIRST[:3] + SECOND, [set()], page), part) == FIRST[1:3]
        assert browsed(Receiver(FIRST[:3], [set()], page), part) == FIRST[1:3]
        assert browsed(Receiver([FIRST[1], FIRST[5]], [set()], page), part) == [FIRST[1]]
        assert browsed(Receiver([], [set()], page), part) == []


def test_a_range_that_is_there_is_read_without_asking_for_more() -> None:
    receiver = Receiver(FIRST + SECOND, [set()])
    assert browsed(receiver, Range("orders", FIRST[0], FIRST[-1])) == FIRST
    assert receiver.asked == 1


class Looking(BrowseStreamReader):
    """A stream over a stand-in of which fragments are away at times."""

    def __init__(self, begins: str, away: set[int]) -> None:
        super().__init__(source_options({**OPTIONS, "startingOffsets": begins}, "browse"), StructType())
        self._entities: Any = SimpleNamespace(now=lambda: ("orders",))
        self.found, self.away = [*FIRST, *SECOND], away

    def _at(self, entity: str) -> Any:
        def at(number: int) -> Any:
            there = [one for one in sorted(self.found) if one >= number and one >> COUNT_BITS not in self.away]
            return SimpleNamespace(sequence_number=there[0]) if there else None

        return at

    def all_from(self, offset: BrowseOffset) -> tuple[list[int], BrowseOffset]:
        """What lies in all batches that can be planned now, and the end of the last."""
        seen: list[int] = []
        while (end := self._end(offset, 4)) != offset:
            ranges = [part for some in self.partitions(offset.to_json(), end.to_json()) for part in some.value]
            seen += [one for part in ranges for one in self.found if part.first <= one <= part.last]
            offset = end
        return seen, offset

    def _read(self, form: Any) -> BrowseOffset:
        return BrowseOffset.from_json(form)


OPTIONS = {"connectionString": "unused", "queue": "orders", "readMode": "browse"}


def test_a_stream_that_began_while_a_fragment_was_away_reads_all_of_it_later_and_nothing_twice() -> None:
    stream = Looking("earliest", {1})
    seen, end = stream.all_from(BrowseOffset("here"))
    assert sorted(seen) == SECOND
    stream.away = {2}
    more, end = stream.all_from(end)
    stream.away = set()
    stream.found += [FIRST[-1] + 1, SECOND[-1] + 1]
    rest, _ = stream.all_from(end)
    assert sorted(seen + more + rest) == sorted(stream.found)


def test_a_stream_from_the_latest_on_reads_all_of_a_fragment_that_was_away_when_it_began() -> None:
    """Nothing tells where it ended then: more is read than was asked for, which is better than less."""
    stream = Looking("latest", {1})
    begin = stream._end(BrowseOffset("here"), 4)
    stream.away = set()
    stream.found.append(SECOND[-1] + 1)
    seen, _ = stream.all_from(begin)
    assert sorted(seen) == [*FIRST, SECOND[-1] + 1]


def test_release_looks_for_a_batch_without_the_retries_of_the_sdk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK tries three times more for a number that is missing, 12 s for each fragment."""
    (tmp_path / "offsets").mkdir()
    offset = ClaimOffset("localhost", 1, {Key("orders"): dict.fromkeys(FIRST, 0)}, 0)
    (tmp_path / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(offset.to_json())}\n")
    monkeypatch.setattr(recovery, "demand_reachable", lambda _: None)
    monkeypatch.setattr(recovery, "new_client", lambda place: nullcontext(place))
    looked: list[int] = []
    monkeypatch.setattr(recovery, "_ours", lambda client, *_: (looked.append(client.retries), ({}, 0))[1])
    text = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=s"
    found = recovery.release(tmp_path, {"connectionString": text}, action="report")
    assert (found["messages"], looked) == (0, [0])
