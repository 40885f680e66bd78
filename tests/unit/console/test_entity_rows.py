"""The table and the tree of entities: paths, searching, sorting, levels."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from duobus.console.screens.entities.paths import EntityPath, parse_path
from duobus.console.screens.entities.rows import (
    Choice,
    Row,
    chosen,
    level_of,
    row_of_numbers,
    row_of_sdk,
    with_subscriptions,
)

ROWS = [
    Row("orders", "queue", active=5, dead_letters=2, size_bytes=10),
    Row("events-2", "queue", active=9, dead_letters=0, size_bytes=500),
    Row("events", "topic"),
    Row("events/Subscriptions/s1", "subscription", active=1, dead_letters=0, transfer_dead_letters=3),
    Row("eu/orders", "queue", active=2, dead_letters=1),
    Row("eu", "queue", active=0, dead_letters=0),
]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("orders", EntityPath("orders")),
        ("eu/orders", EntityPath("eu/orders")),
        ("a/b/Subscriptions/s", EntityPath("a/b", "s")),
        ("a/subscriptions/s/rules/$Default", EntityPath("a", "s", "$Default")),
        ("subscriptions/a", EntityPath("subscriptions/a")),
        ("a/Subscriptions", EntityPath("a/Subscriptions")),
        ("a/Subscriptions/s/x", EntityPath("a/Subscriptions/s/x")),
    ],
)
def test_a_path_tells_what_it_means(text: str, path: EntityPath) -> None:
    assert parse_path(text) == path


def test_a_path_is_written_as_addresses_are() -> None:
    path = parse_path("a/subscriptions/s/rules/r")
    assert (path.text, path.names, path.name) == ("a/Subscriptions/s/Rules/r", ("a", "s", "r"), "r")


def test_subscriptions_follow_their_topic_in_the_order_of_names() -> None:
    paths = [row.path for row in chosen(ROWS, Choice())]
    assert paths == ["eu", "eu/orders", "events", "events/Subscriptions/s1", "events-2", "orders"]
    assert [row.path for row in chosen(ROWS, Choice(is_descending=True))] == paths[::-1]


def test_a_search_finds_a_part_of_a_path_whatever_its_case() -> None:
    assert [row.path for row in chosen(ROWS, Choice(text=" ORDER"))] == ["eu/orders", "orders"]
    assert [row.path for row in chosen(ROWS, Choice(kind="topic"))] == ["events"]
    dead = [row.path for row in chosen(ROWS, Choice(only_dead=True))]
    assert dead == ["eu/orders", "events/Subscriptions/s1", "orders"]


def test_numbers_sort_from_the_highest_on_and_equal_ones_by_name() -> None:
    found = chosen(ROWS, Choice(sort="dead", is_descending=True))
    assert [row.path for row in found][:3] == ["events/Subscriptions/s1", "orders", "eu/orders"]
    assert [row.path for row in found][3:] == ["eu", "events", "events-2"]


def test_the_tree_sums_up_what_is_below_a_line() -> None:
    nodes = level_of(ROWS, "")
    assert [(node.label, node.under, node.entities, node.active, node.dead_letters) for node in nodes] == [
        ("eu", "eu/", 2, 2, 1),
        ("events", "events/", 2, 1, 3),
        ("events-2", "", 1, 9, 0),
        ("orders", "", 1, 5, 2),
    ]
    (subscription,) = level_of(ROWS, "events/")
    assert subscription.row is not None
    assert (subscription.label, subscription.row.path) == ("s1", "events/Subscriptions/s1")
    (order,) = level_of(ROWS, "eu/")
    assert (order.label, order.under) == ("orders", "")


def test_a_topic_knows_the_number_of_its_subscriptions() -> None:
    counts = {row.path: row.subscriptions for row in with_subscriptions(ROWS)}
    assert counts["events"] == 1
    assert counts["orders"] is None


def test_a_number_that_means_nothing_for_a_kind_is_not_told() -> None:
    numbers = dict.fromkeys(("active", "deadLetter", "transferDeadLetter", "deferred", "scheduled", "toForward"), 1)
    told = {"available": True, "bytes": 9} | numbers
    topic = row_of_numbers(told | {"entity": "t", "kind": "topic"})
    assert (topic.active, topic.dead_letters, topic.scheduled, topic.size_bytes) == (None, None, 1, 9)
    assert topic.status is None
    subscription = row_of_numbers(told | {"entity": "t/Subscriptions/s", "kind": "subscription", "status": "Active"})
    assert (subscription.active, subscription.scheduled, subscription.status) == (1, None, "Active")


def test_what_the_sdk_does_not_tell_is_not_known() -> None:
    row = row_of_sdk("topic", "t", SimpleNamespace(scheduled_message_count=3, subscription_count=2), "Active")
    assert (row.active, row.scheduled, row.subscriptions, row.deferred) == (None, 3, 2, None)


def test_ten_thousand_rows_are_searched_and_sorted_at_once() -> None:
    rows = [Row(f"team-{i % 50}/queue-{i}", "queue", dead_letters=i % 7) for i in range(10_000)]
    began = time.process_time()
    found = chosen(rows, Choice(text="queue-1", sort="dead", is_descending=True))
    nodes = level_of(rows, "")
    assert (len(found), len(nodes)) == (1111, 50)
    assert time.process_time() - began < 1.0
