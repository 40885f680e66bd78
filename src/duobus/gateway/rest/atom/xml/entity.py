"""QueueDescription, TopicDescription and SubscriptionDescription in XML (Azure: Service Bus REST API).

Which elements there are, their order and their forms is said by ``model/properties.py``. Here is what a row cannot
say: numbers and times, the size of partitioned entities, SupportOrdering, targets that are told as addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from duobus.gateway.rest.atom.request_origin import RequestOrigin
from duobus.gateway.rest.atom.xml import writer as xml
from duobus.gateway.rest.atom.xml.access_rules import KeyMaker, read_access_rules, write_access_rules
from duobus.gateway.rest.atom.xml.fields import Fields, size_of_one
from duobus.gateway.rest.atom.xml.reader import Element
from duobus.gateway.rest.atom.xml.runtime_info import RuntimeInfo
from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from duobus.model.durations import format_duration
from duobus.model.properties import QUEUE, SUBSCRIPTION, TOPIC, XML_ORDER, Form, Property, Surface, properties_of
from duobus.model.tiers import ALL, CLOUD, Tier

_KIB: Final = 1024

_READERS: Final[dict[Form, Callable[[Fields, str, Any], Any]]] = {
    Form.FLAG: Fields.flag,
    Form.NUMBER: Fields.number,
    Form.SIZE: Fields.number,
    Form.MESSAGE_SIZE: lambda fields, name, default: fields.number(name, default // _KIB) * _KIB,
    Form.DURATION: Fields.duration,
    Form.FINITE: Fields.finite,
    Form.TEXT: lambda fields, name, default: fields.text(name),
    Form.STATUS: Fields.word,
    Form.TARGET: lambda fields, name, default: fields.text(name),
}
_WRITERS: Final[dict[Form, Callable[[str, Any], str]]] = {
    Form.FLAG: xml.flag,
    Form.NUMBER: xml.number,
    Form.SIZE: xml.number,
    Form.MESSAGE_SIZE: lambda name, value: xml.number(name, value // _KIB),
    Form.DURATION: lambda name, value: xml.element(name, format_duration(value)),
    Form.FINITE: lambda name, value: xml.element(name, format_duration(value)),
    Form.TEXT: xml.optional,
    Form.STATUS: xml.element,
    Form.TARGET: xml.optional,
}
#: Elements that are no properties.
_OTHERS: Final[dict[str, Callable[[str, Any], str]]] = {
    "SizeInBytes": xml.number,
    "MessageCount": xml.number,
    "AuthorizationRules": lambda _, rules: write_access_rules(rules),
    "CreatedAt": xml.instant,
    "UpdatedAt": xml.instant,
    "AccessedAt": xml.instant,
    "CountDetails": lambda _, numbers: numbers.details(),
    "SubscriptionCount": xml.number,
    "SqlFilterCount": xml.number,
    "CorrelationFilterCount": xml.number,
    "EntityAvailabilityStatus": xml.element,
}


@cache
def _rows(kind: str, given: Surface = Surface.NOWHERE) -> dict[str, Property]:
    """Element to property, in the order of the elements."""
    rows = {item.element: item for item in properties_of(kind, given)}
    return {name: rows[name] for name in XML_ORDER[kind] if name in rows}


def read_queue(
    node: Element,
    name: str,
    kept: QueueDescription | None,
    place: RequestOrigin,
    new_key: KeyMaker,
    now_ms: int,
    tier: Tier = ALL,
    partitions: int | None = None,
) -> QueueDescription:
    """Return the queue that a request describes; nothing of it is checked against limits yet.

    What is left out has its default, on an update too, except what cannot change: that stays as it is,
    and so do properties that have no element. ``kept`` is the queue so far, None for one that is to be created, and
    ``partitions`` are its fragments, unless they are those of the tier.

    Raises:
        ArgumentInvalid: An element's text is wrong.
    """
    base = QueueDescription(name=name, created_at_ms=now_ms) if kept is None else kept
    found = _read(QUEUE, node, kept, tier, partitions)
    found["authorization_rules"] = read_access_rules(node, base.authorization_rules, new_key)
    return msgspec.structs.replace(base, updated_at_ms=now_ms, **_with_targets(QUEUE, found, place))


def read_topic(
    node: Element,
    name: str,
    kept: TopicDescription | None,
    new_key: KeyMaker,
    now_ms: int,
    tier: Tier = ALL,
    partitions: int | None = None,
) -> TopicDescription:
    """Return the topic that a request describes, with the subscriptions of ``kept``; see ``read_queue``."""
    base = TopicDescription(name=name, created_at_ms=now_ms) if kept is None else kept
    found = _read(TOPIC, node, kept, tier, partitions)
    found["authorization_rules"] = read_access_rules(node, base.authorization_rules, new_key)
    return msgspec.structs.replace(base, updated_at_ms=now_ms, **found)


def read_subscription(
    node: Element,
    name: str,
    kept: SubscriptionDescription | None,
    place: RequestOrigin,
    now_ms: int,
    tier: Tier = ALL,
) -> SubscriptionDescription:
    """Return the subscription that a request describes, with the rules of ``kept``; see ``read_queue``.

    ``DefaultRuleDescription`` is read by ``default_rule_of``.
    """
    base = SubscriptionDescription(name=name, created_at_ms=now_ms) if kept is None else kept
    found = _with_targets(SUBSCRIPTION, _read(SUBSCRIPTION, node, kept, tier), place)
    return msgspec.structs.replace(base, updated_at_ms=now_ms, **found)


def default_rule_of(node: Element) -> Element | None:
    """The rule that is to stand in for ``$Default``, where a request to create a subscription brings one."""
    return node.find("DefaultRuleDescription")


def _read(
    kind: str, node: Element, kept: msgspec.Struct | None, tier: Tier, partitions: int | None = None
) -> dict[str, Any]:
    """Values of all properties that can be given in XML, targets as they were sent."""
    fields = Fields(node)
    found: dict[str, Any] = {}
    for item in _rows(kind, Surface.XML).values():
        default = getattr(kept, item.field) if kept is not None and item.is_fixed else item.default_in(tier)
        found[item.field] = _READERS[item.form](fields, item.element, default)
    if "max_size_in_megabytes" in found:
        count = (partitions or tier.partitions) if found["enable_partitioning"] else 1
        kept_mib = getattr(kept, "max_size_in_megabytes", None)
        found["max_size_in_megabytes"] = size_of_one(found["max_size_in_megabytes"], count, kept_mib)
    return found


def _with_targets(kind: str, found: dict[str, Any], place: RequestOrigin) -> dict[str, Any]:
    """Add the entities that the targets name; what was sent is kept beside them."""
    for item in _rows(kind, Surface.XML).values():
        if item.form is Form.TARGET:
            sent = found[f"{item.field}_sent"] = found[item.field]
            found[item.field] = None if sent is None else place.target(item.element, sent)
    return found


class Filters(NamedTuple):
    """What a topic tells of its subscriptions.

    Attributes:
        subscriptions: How many there are.
        sql: Rules of them with an SQL filter, or a true or false one, which count as such.
        correlations: Rules of them with a correlation filter.
    """

    subscriptions: int
    sql: int
    correlations: int


def write_queue(
    queue: QueueDescription,
    numbers: RuntimeInfo,
    place: RequestOrigin,
    partitions: int = ALL.partitions,
    *,
    is_answer: bool = False,
) -> str:
    """Return the elements of a queue, in the cloud's order.

    A queue that forwards is never idle, as it has a receiver, the broker; what AutoDeleteOnIdle was set to is told all
    the same.

    ``is_answer``: to a request that has created or changed it, which tells neither use nor counts.
    """
    told = _sent_to(queue, numbers, partitions) | _received(QUEUE, queue, numbers, place)
    return _write(QUEUE, queue, numbers, told, is_answer=is_answer)


def write_topic(
    topic: TopicDescription,
    numbers: RuntimeInfo,
    filters: Filters,
    partitions: int = ALL.partitions,
    *,
    is_answer: bool = False,
) -> str:
    """Return the elements of a topic, in the cloud's order; see ``write_queue``.

    Only scheduled messages wait at a topic.
    """
    told = _sent_to(topic, numbers, partitions) | {
        "CountDetails": RuntimeInfo(scheduled=numbers.scheduled),
        "SubscriptionCount": filters.subscriptions,
        "SqlFilterCount": filters.sql,
        "CorrelationFilterCount": filters.correlations,
    }
    return _write(TOPIC, topic, numbers, told, is_answer=is_answer)


def write_subscription(
    subscription: SubscriptionDescription, numbers: RuntimeInfo, place: RequestOrigin, *, is_answer: bool = False
) -> str:
    """Return the elements of a subscription, in the cloud's order; see ``write_queue``.

    One that was not used yet was accessed when it was created, unlike a queue.
    """
    told = _received(SUBSCRIPTION, subscription, numbers, place)
    told["AccessedAt"] = max(subscription.accessed_at_ms, numbers.accessed_ms) or subscription.created_at_ms
    return _write(SUBSCRIPTION, subscription, numbers, told, is_answer=is_answer)


def _sent_to(entity: QueueDescription | TopicDescription, numbers: RuntimeInfo, partitions: int) -> dict[str, Any]:
    """What queues and topics tell beside their properties, or otherwise than a row says."""
    window_ms = entity.duplicate_detection_history_time_window_ms
    return {
        # Of all partitions together (PE8); an entity that has none counts as one.
        "MaxSizeInMegabytes": entity.max_size_in_megabytes * (partitions if entity.enable_partitioning else 1),
        "DuplicateDetectionHistoryTimeWindow": max(window_ms, CLOUD.duplicate_window_ms_min),
        "SizeInBytes": numbers.size_bytes,
        "AuthorizationRules": entity.authorization_rules,
        "SupportOrdering": not entity.enable_partitioning
        if entity.support_ordering is None
        else entity.support_ordering,
    }


def _received(kind: str, entity: msgspec.Struct, numbers: RuntimeInfo, place: RequestOrigin) -> dict[str, Any]:
    """What queues and subscriptions tell beside their properties, or otherwise than a row says."""
    targets = {
        item.element: place.told(getattr(entity, item.field), getattr(entity, f"{item.field}_sent"))
        for item in properties_of(kind)
        if item.form is Form.TARGET
    }
    return {"MessageCount": numbers.total, **targets}


def _write(
    kind: str,
    entity: QueueDescription | TopicDescription | SubscriptionDescription,
    numbers: RuntimeInfo,
    told: dict[str, Any],
    *,
    is_answer: bool,
) -> str:
    """All elements: with the values of ``told``, else with those of the description."""
    values = {
        "CreatedAt": entity.created_at_ms,
        "UpdatedAt": entity.updated_at_ms,
        "AccessedAt": max(entity.accessed_at_ms, numbers.accessed_ms),
        "CountDetails": numbers,
        "EntityAvailabilityStatus": numbers.availability,
        **told,
    }
    rows, found = _rows(kind), []
    for name in XML_ORDER[kind]:
        if name in rows:
            value = values[name] if name in values else getattr(entity, rows[name].field)
            found.append(_WRITERS[rows[name].form](name, value))
        elif not (is_answer and name in {"AccessedAt", "CountDetails"}):
            found.append(_OTHERS[name](name, values[name]))
    return "".join(found)
