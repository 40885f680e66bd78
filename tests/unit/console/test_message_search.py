"""Searching messages in bounded steps, and following the newest ones."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import pytest

from duobus.codec import Symbol, Timestamp, annotations_section, build_message
from duobus.console.namespace.failures import NamespaceError
from duobus.console.screens.messages.records import number_of
from duobus.console.screens.messages.search import LOOKED_MAX, Query, fault_of, search, wanted_of
from duobus.console.screens.messages.tail_page import Tail
from duobus.console.visits import Refusal
from duobus.model.json.deliveries import Delivery
from kits.manual_clock import ManualClock


def message(number: int, body: bytes = b"", **properties: Any) -> Delivery:
    annotations = {Symbol("x-opt-sequence-number"): number, Symbol("x-opt-enqueued-time"): Timestamp(number % 1_000)}
    return Delivery(annotations_section(annotations) + build_message(["id"], properties, data=body))


class Queue:
    """Answers as a management node does."""

    def __init__(self, messages: list[Delivery], page: int = 250) -> None:
        self.messages = {int(one.annotations["x-opt-sequence-number"]): one for one in messages}
        self.page = page
        self.asked = 0

    def add(self, one: Delivery) -> Self:
        self.messages[int(one.annotations["x-opt-sequence-number"])] = one
        return self

    async def peek(
        self, first: int, number: int, *, session_id: str | None = None, with_bodies: bool = True
    ) -> list[Delivery]:
        self.asked += 1
        numbers = sorted(number for number in self.messages if number >= first)
        return [self.messages[one] for one in numbers[: min(number, self.page)]]


def numbers(found: list[Delivery]) -> list[int]:
    return [int(one.annotations["x-opt-sequence-number"]) for one in found]


def run(queue: Any, query: Query, first: int = 0, count: int = 10) -> Any:
    return asyncio.run(search(queue, wanted_of(query, None), first=first, count=count, clock=ManualClock()))


NOTHING = Query("", "", "")


def test_pages_follow_one_another_and_the_last_one_says_so() -> None:
    queue = Queue([message(number) for number in range(1, 26)], page=4)
    first = run(queue, NOTHING)
    second = run(queue, NOTHING, first.following)
    third = run(queue, NOTHING, second.following)
    assert [numbers(step.found) for step in (first, second, third)] == [
        list(range(1, 11)),
        list(range(11, 21)),
        list(range(21, 26)),
    ]
    assert (first.following, second.following, third.following) == (11, 21, None)
    assert not any(step.is_cut for step in (first, second, third))


def test_a_page_that_ends_with_the_last_message_leads_nowhere() -> None:
    step = run(Queue([message(number) for number in range(1, 11)]), NOTHING)
    assert (len(step.found), step.following) == (10, None)


def test_a_search_that_finds_little_stops_and_goes_on_from_there() -> None:
    queue = Queue([message(number, colour="red" if number in (5, 2_500) else "blue") for number in range(1, 3_000)])
    first = run(queue, Query("colour = 'red'", "", ""))
    assert (numbers(first.found), first.looked, first.is_cut) == ([5], LOOKED_MAX, True)
    second = run(queue, Query("colour = 'red'", "", ""), first.following)
    assert (numbers(second.found), second.looked, second.following) == ([2_500], 999, None)


def test_messages_are_found_by_properties_by_json_and_by_text_together() -> None:
    queue = Queue(
        [
            message(1, b'{"price": 5, "note": "Late"}', colour="red"),
            message(2, b'{"price": 5, "note": "late"}', colour="blue"),
            message(3, b'{"price": 1, "note": "late"}', colour="red"),
            message(4, b'{"price": 5, "note": "soon"}', colour="red"),
            message(5, b"\xff\x00", colour="red"),
        ]
    )
    assert numbers(run(queue, Query("colour = 'red'", "$.price > 2", "LATE")).found) == [1]
    assert numbers(run(queue, Query("", "", "late")).found) == [1, 2, 3]


def test_a_filter_that_is_none_is_told_with_its_field() -> None:
    fault = fault_of(Query("colour =", "", ""))
    assert fault is not None
    assert fault.field == "sql"
    assert not fault.text.startswith("Rule")
    other = fault_of(Query("", "price > 2", ""))
    assert other is not None
    assert other.field == "path"
    with pytest.raises(Refusal):
        wanted_of(Query("colour =", "", ""), None)


def test_a_tail_shows_only_what_comes_after_its_beginning_in_every_partition() -> None:
    old = [(0 << 48) + number for number in (1, 2, 900)] + [(3 << 48) + number for number in range(1, 50)]
    queue = Queue([message(number) for number in old])

    async def follow() -> list[list[int]]:
        tail = Tail(queue)  # type: ignore[arg-type]
        await tail.begin()
        looks = [numbers(await tail.look())]
        for number in ((0 << 48) + 901, (3 << 48) + 50, (2 << 48) + 1, (7 << 48) + 1):
            queue.add(message(number))
        looks.append(sorted(numbers(await tail.look())))
        queue.add(message((2 << 48) + 2))
        looks.append(numbers(await tail.look()))
        looks.append(numbers(await tail.look()))
        return looks

    assert asyncio.run(follow()) == [
        [],
        [901, (2 << 48) + 1, (3 << 48) + 50, (7 << 48) + 1],
        [(2 << 48) + 2],
        [],
    ]


def test_a_tail_of_an_empty_queue_sees_the_first_message() -> None:
    queue = Queue([])

    async def follow() -> list[int]:
        tail = Tail(queue)  # type: ignore[arg-type]
        await tail.begin()
        queue.add(message((5 << 48) + 1))
        return numbers(await tail.look())

    assert asyncio.run(follow()) == [(5 << 48) + 1]


def test_a_tail_finds_the_end_of_a_long_queue_with_few_requests() -> None:
    queue = Queue([message(number) for number in range(1, 20_000, 7)])

    async def begin() -> None:
        await Tail(queue).begin()  # type: ignore[arg-type]

    asyncio.run(begin())
    assert queue.asked < 60


def test_a_tail_shows_the_other_partitions_while_one_is_away_and_nothing_old_when_that_one_is_back() -> None:
    there, away = (3 << 48), (5 << 48)

    class Partial(Queue):
        """A queue that does not find what is in the partition that is away, as a broker answers."""

        is_partial = True

        async def peek(self, first: int, number: int, **options: Any) -> list[Delivery]:
            found = await super().peek(first, number, **options)
            found = [one for one in found if not (self.is_partial and number_of(one) >= away)]
            if self.is_partial and not found:
                raise NamespaceError(503, "The store is away. StoreUnavailable:orders, Fragment:5/16")
            return found

    queue = Partial([message(there + 1), message(away + 1), message(away + 2)])

    async def follow() -> list[tuple[list[int], bool]]:
        tail = Tail(queue)  # type: ignore[arg-type]
        await tail.set_away(frozenset({5}))
        await tail.begin()
        looks = [(numbers(await tail.look()), tail.has_met_absence)]
        queue.add(message(there + 2))
        looks.append((numbers(await tail.look()), tail.has_met_absence))
        queue.is_partial = False
        looks.append((numbers(await tail.look()), tail.has_met_absence))
        await tail.set_away(frozenset())
        queue.add(message(away + 3))
        looks.append((numbers(await tail.look()), tail.has_met_absence))
        return looks

    assert asyncio.run(follow()) == [([], True), ([there + 2], True), ([], False), ([away + 3], False)]
