"""Patterns of entities: what they match, and when a stream looks for new entities."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from duobus.spark import entities
from duobus.spark.connection import Place
from duobus.spark.entities import PATTERN_MS, Entities, entities_of, resolved
from duobus.spark.errors import EntityError, OptionError
from duobus.spark.options import CONNECTION_OPTIONS, SOURCE_OPTIONS, Parsed, parse
from kits.manual_clock import ManualClock

PLACE = Place("connectionString", "Endpoint=sb://localhost")


def options(**given: str) -> Parsed:
    return parse(given, (*CONNECTION_OPTIONS, *SOURCE_OPTIONS))


class Namespace:
    """The management API of a namespace with a few topics and queues; a context manager."""

    def __init__(self) -> None:
        self.topics = {"prices": ["all", "audit"], "orders": ["audit"]}
        self.queues = ["a1", "b1"]
        self.is_away = False

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def list_queues(self) -> list[Any]:
        if self.is_away:
            raise OSError("away")
        return [SimpleNamespace(name=name) for name in self.queues]

    def list_topics(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.topics]

    def list_subscriptions(self, topic: str) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.topics[topic]]


@pytest.fixture
def namespace(monkeypatch: pytest.MonkeyPatch) -> Namespace:
    made = Namespace()
    monkeypatch.setattr(entities, "new_administration", lambda _: made)
    return made


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("prices/subscriptions/*", ("prices/subscriptions/all", "prices/subscriptions/audit")),
        ("*/Subscriptions/audit", ("orders/subscriptions/audit", "prices/subscriptions/audit")),
        ("orders/subscriptions/a?dit", ("orders/subscriptions/audit",)),
    ],
)
def test_a_pattern_of_subscriptions_matches_topic_and_name(pattern: str, found: tuple[str, ...]) -> None:
    assert resolved(PLACE, options(subscriptionsPattern=pattern)) == found


@pytest.mark.usefixtures("namespace")
def test_a_pattern_that_no_subscription_matches_is_told() -> None:
    with pytest.raises(EntityError, match="No subscription matches the option 'subscriptionsPattern' = 'x/subscript"):
        resolved(PLACE, options(subscriptionsPattern="x/subscriptions/*"))


def test_a_pattern_of_subscriptions_names_its_topic() -> None:
    with pytest.raises(OptionError, match="form topic/subscriptions/name"):
        entities_of(options(subscriptionsPattern="all*"))


def test_a_stream_finds_new_entities_of_its_pattern_after_a_minute(namespace: Namespace) -> None:
    clock = ManualClock()
    found = Entities(PLACE, options(queuesPattern="a*"), clock)
    assert found.now() == ("a1",)
    namespace.queues.append("a2")
    clock.advance(PATTERN_MS - 1)
    assert found.now() == ("a1",)
    clock.advance(1)
    assert found.now() == ("a1", "a2")


def test_a_stream_goes_on_with_what_it_has_while_nobody_tells_the_entities(namespace: Namespace) -> None:
    clock = ManualClock()
    found = Entities(PLACE, options(queuesPattern="a*"), clock)
    assert found.now() == ("a1",)
    namespace.is_away = True
    clock.advance(PATTERN_MS)
    assert found.now() == ("a1",)


def test_entities_that_are_named_are_not_looked_up() -> None:
    clock = ManualClock()
    found = Entities(PLACE, options(queues="x,y"), clock)
    assert found.now() == ("x", "y")
    clock.advance(PATTERN_MS)
    assert found.now() == ("x", "y")
