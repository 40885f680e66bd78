"""The table of properties and the descriptions say the same."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from duobus.model.properties import PROPERTIES, QUEUE, SUBSCRIPTION, TOPIC, XML_ORDER, Form, Surface, properties_of
from duobus.model.tiers import ALL

DESCRIPTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    QUEUE: QueueDescription,
    TOPIC: TopicDescription,
    SUBSCRIPTION: SubscriptionDescription,
}
#: Parts of descriptions that are no properties: names, times, what an entity contains, targets as they were sent.
_PARTS: Final = """name created_at_ms updated_at_ms accessed_at_ms authorization_rules rules subscriptions
    forward_to_sent forward_dead_lettered_messages_to_sent"""
#: Elements that are no properties: what a server counts, times, access rules.
_NUMBERS: Final = """SizeInBytes MessageCount AuthorizationRules CreatedAt UpdatedAt AccessedAt CountDetails
    SubscriptionCount SqlFilterCount CorrelationFilterCount EntityAvailabilityStatus"""
kinds = pytest.mark.parametrize("kind", DESCRIPTIONS)


@kinds
def test_the_table_has_every_property_of_a_description_once(kind: str) -> None:
    fields = [item.field for item in properties_of(kind)]
    assert sorted(fields) == sorted(set(DESCRIPTIONS[kind].__struct_fields__) - set(_PARTS.split()))


@kinds
def test_a_default_of_the_table_is_that_of_the_description(kind: str) -> None:
    plain: Any = DESCRIPTIONS[kind](name="q")
    assert {item.field: item.default_in(ALL) for item in properties_of(kind)} == {
        item.field: getattr(plain, item.field) for item in properties_of(kind)
    }


@kinds
def test_the_order_of_elements_names_every_property_that_xml_can_give(kind: str) -> None:
    order = XML_ORDER[kind]
    assert len(set(order)) == len(order)
    assert {item.element for item in properties_of(kind, Surface.XML)} <= set(order)
    assert set(order) - set(_NUMBERS.split()) <= {item.element for item in properties_of(kind)}


@kinds
def test_a_target_is_kept_as_it_was_sent_as_well(kind: str) -> None:
    for item in properties_of(kind):
        if item.form is Form.TARGET:
            assert f"{item.field}_sent" in DESCRIPTIONS[kind].__struct_fields__


def test_every_option_has_a_place_of_its_own() -> None:
    places = [item.place for item in PROPERTIES if item.help]
    assert sorted(places) == list(range(1, len(places) + 1))
