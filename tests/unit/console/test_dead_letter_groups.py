"""What dead letters have died of, and which of them a person means."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import parse_qsl

import pytest

from duobus.console.screens.dead_letters.groups import GROUPS_MAX, Groups, cause_of
from duobus.console.screens.dead_letters.selection import NUMBERS_MAX, Selection
from duobus.rules.selection import Selection as Filter


def record(
    number: int, reason: str | None, description: str | None, enqueued: str = "2026-01-01T00:00:00Z"
) -> dict[str, Any]:
    return {"sequenceNumber": number, "reason": reason, "description": description, "enqueuedTime": enqueued}


@pytest.mark.parametrize(
    ("description", "cause"),
    [
        ("Order 4711 has no currency\n   at Shop.Price(4711)", "Order # has no currency"),
        ("\n\n  late\nmore", "late"),
        ("no answer within 12.5 s from 10.0.0.7:5672", "no answer within # s from #"),
        ("lock 7c9e6679-7425-40de-944b-e07fc1f90ae7 lost", "lock # lost"),
        ("at 2026-11-26T22:19:15.123+01:00 it broke", "at # it broke"),
        ("ord-17_b and v2 differ", "# and # differ"),
        ("System.TimeoutException: too late", "System.TimeoutException: too late"),
        ("", ""),
        (None, ""),
    ],
)
def test_a_cause_is_the_first_line_without_what_differs_from_message_to_message(
    description: str | None, cause: str
) -> None:
    assert cause_of(description) == cause


def test_a_cause_of_a_hostile_description_takes_no_time() -> None:
    began = time.process_time()
    for text in ("a" * 100_000, "1." * 50_000, "-" * 100_000, "\n" * 100_000, "#" * 100_000):
        assert len(cause_of(text)) <= 400
    assert time.process_time() - began < 0.5


def test_groups_are_told_with_their_number_oldest_newest_and_first_message_the_largest_first() -> None:
    groups = Groups()
    groups.add("orders", False, record(1, "Timeout", "after 5 ms", "2026-01-02T00:00:00Z"))
    groups.add("orders", False, record(2, "Poison", None))
    groups.add("orders", False, record(3, "Timeout", "after 7 ms", "2026-01-01T00:00:00Z"))
    first, second = groups.data()
    assert (first["reason"], first["cause"], first["count"], first["sample"]) == ("Timeout", "after # ms", 2, 1)
    assert (first["oldest"], first["newest"]) == ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
    assert (second["reason"], second["cause"], second["count"]) == ("Poison", "", 1)


def test_more_groups_than_there_is_room_for_are_counted_together() -> None:
    groups = Groups()
    for number in range(GROUPS_MAX + 5):
        groups.add("orders", False, record(number, "r", chr(0x4E00 + number)))
    assert (len(groups.data()), groups.others, groups.looked) == (GROUPS_MAX, 5, GROUPS_MAX + 5)


@pytest.mark.parametrize(
    "selection",
    [
        Selection("orders"),
        Selection("a/b", is_transfer=True, sql="a = 'b & c'", json="$.x > 1"),
        Selection("t/Subscriptions/s", reason="", cause=""),
        Selection("orders", reason="Zu spät; 100 %", cause="Order # of 'x' = _"),
        Selection("orders", numbers=(3, 7)),
    ],
)
def test_a_selection_comes_back_from_its_address_and_from_its_file(selection: Selection) -> None:
    from duobus.console.screens.dead_letters.entity_pages import address_of

    query = parse_qsl(address_of(selection).partition("?")[2], keep_blank_values=True)
    numbers = [value for name, value in query if name == "number"]
    assert Selection.read(selection.path, dict(query), numbers) == selection
    assert Selection.of_data(selection.data()) == selection


def test_a_selection_takes_so_many_numbers_and_nothing_that_is_none() -> None:
    texts = [str(number) for number in range(2 * NUMBERS_MAX)]
    found = Selection.read("orders", {}, ["x", "-1", "9" * 30, "٣", *texts])
    assert found.numbers == tuple(range(NUMBERS_MAX))


def test_the_entity_and_the_subscription_are_told_apart() -> None:
    found = Selection("eu/prices/subscriptions/alerts")
    assert (found.entity, found.subscription) == ("eu/prices", "alerts")
    assert Selection("eu/prices").subscription is None


@pytest.mark.parametrize(
    ("reason", "description"),
    [
        ("NoCurrency", "Order 5 has no currency"),
        ("It's 100 %", "a_b % \\ 'quoted' 7"),
        ("", "7 leads"),
        ("x", ""),
        ("x" * 300, "y" * 300),
    ],
)
def test_the_filter_of_a_group_lets_every_message_of_the_group_through(reason: str, description: str) -> None:
    from duobus.model.json.messages import message_of

    selection = Selection("orders", reason=reason, cause=cause_of(description))
    found = Filter(selection.filter, None)
    payload, metadata = message_of({"body": {"data": ["x"]}})
    metadata.reason, metadata.description = reason or None, description
    assert found.takes(payload, metadata, enqueued_ms=0, sequence_number=1, deliveries=0)
    metadata.reason = "another"
    assert not found.takes(payload, metadata, enqueued_ms=0, sequence_number=1, deliveries=0)


def test_a_group_is_decided_by_the_whole_cause() -> None:
    selection = Selection("orders", reason="Timeout", cause="after # ms")
    assert selection.takes(record(1, "Timeout", "after 5 ms"))
    assert not selection.takes(record(1, "Timeout", "after 5 ms at last"))
    assert not selection.takes(record(1, None, "after 5 ms"))
    assert Selection("orders", reason="", cause="").takes(record(1, None, None))
