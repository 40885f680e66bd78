"""Where messages lie, and what tables show of their values."""

from __future__ import annotations

from typing import Any

import pytest

from duobus.console.screens.messages.places import entity_of, node_of, place_of, tabs_of
from duobus.console.screens.messages.records import cell, typed
from duobus.console.visits import Refusal


def test_paths_name_queues_topics_and_subscriptions_in_any_case() -> None:
    assert entity_of("a/b") == ("a/b", "a/b", "")
    assert entity_of("/news/eu/subscriptions/all/") == ("news/eu/Subscriptions/all", "news/eu", "all")
    for path in ("", "/", "x" * 700):
        with pytest.raises(Refusal):
            entity_of(path)


def test_places_lead_to_their_queues() -> None:
    entity = entity_of("news/Subscriptions/all")
    assert node_of(entity, "deadletter") == "news/Subscriptions/all/$DeadLetterQueue"
    assert node_of(entity, "transfer") == "news/Subscriptions/all/$Transfer/$DeadLetterQueue"
    assert node_of(entity, place_of("nonsense")) == "news/Subscriptions/all"


def test_tabs_are_those_that_a_key_can_use_and_their_addresses_are_encoded() -> None:
    entity = entity_of("a b/<c>")
    assert [name for name, _, _ in tabs_of(entity, may_listen=False, may_send=True)] == ["send"]
    urls = [url for _, _, url in tabs_of(entity, may_listen=True, may_send=True)]
    assert urls[:2] == ["/messages/a%20b/%3Cc%3E", "/messages/a%20b/%3Cc%3E?place=deadletter"]
    subscription = tabs_of(entity_of("t/Subscriptions/s"), may_listen=True, may_send=True)
    assert "send" not in [name for name, _, _ in subscription]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ("null", "null")),
        (True, ("boolean", "true")),
        (5, ("long", "5")),
        (1.5, ("double", "1.5")),
        ({"$uint": 5}, ("uint", "5")),
        ({"$timestamp": "2026-01-31T12:00:00Z"}, ("timestamp", "2026-01-31T12:00:00Z")),
        ({"a": [1]}, ("map", '{"a": [1]}')),
        ([1, {"$short": 2}], ("list", '[1, {"$short": 2}]')),
        ("a\x00\u202e", ("string", "a\\x00[U+202E]")),
    ],
)
def test_values_are_told_with_their_types(value: Any, expected: tuple[str, str]) -> None:
    assert tuple(typed(value).values()) == expected


def test_long_values_are_cut() -> None:
    assert len(typed("x" * 100_000)["text"]) < 5_000
    assert len(cell("x" * 1_000)) < 200
