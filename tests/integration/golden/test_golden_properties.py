"""Every property of every kind of entity: in a configuration, in XML, as a topology, letter by letter.

After a change that is wanted, write the text anew: run this folder's tests with ``DUOBUS_GOLDEN=write``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from test_golden_texts import demand

from duobus.console.namespace.sdk_forms import sdk_properties
from duobus.gateway.rest.atom.request_origin import RequestOrigin
from duobus.gateway.rest.atom.xml.entity import (
    Filters,
    read_queue,
    read_subscription,
    read_topic,
    write_queue,
    write_subscription,
    write_topic,
)
from duobus.gateway.rest.atom.xml.reader import INSTANCE, SERVICE_BUS, Element, read_xml
from duobus.gateway.rest.atom.xml.runtime_info import RuntimeInfo
from duobus.model.tiers import PREMIUM
from duobus.model.topology.config_file import parse_config
from duobus.model.topology.document import document, from_config, to_config

NOW_MS: Final = 1_800_000_000_123
PLACE: Final = RequestOrigin("https", "bus.example:5300", "ns", lambda host: host == "bus.example")
NUMBERS: Final = RuntimeInfo(1, 2, 3, 4, 5, size_bytes=6, accessed_ms=NOW_MS)

SHARED: Final = {
    "DefaultMessageTimeToLive": "P3DT0.5S",
    "Status": "Disabled",
    "UserMetadata": "ü & <\n\t\"'>",
    "AutoDeleteOnIdle": "PT10M",
    "EnableBatchedOperations": False,
}
RECEIVED: Final = {
    "LockDuration": "PT13S",
    "RequiresSession": True,
    "DeadLetteringOnMessageExpiration": True,
    "MaxDeliveryCount": 77,
    "ForwardTo": "next",
    "ForwardDeadLetteredMessagesTo": "dead",
}
SIZED: Final = {
    "MaxSizeInMegabytes": 2048,
    "MaxMessageSizeInKilobytes": 2000,
    "RequiresDuplicateDetection": True,
    "DuplicateDetectionHistoryTimeWindow": "PT5S",
    "EnablePartitioning": True,
    "SupportOrdering": True,
    "AuthorizationRules": [{"KeyName": "ops", "Rights": ["Send"], "PrimaryKey": "a&b", "SecondaryKey": 'd"e'}],
}
EXTENSIONS: Final = {"RedeliveryDelayMaximum": "PT1H"}


def configuration(queue: Any, topic: Any, subscription: Any) -> str:
    namespace = {
        "Name": "ns",
        "Queues": [{"Name": "A/b.c-d_e", "Properties": queue}],
        "Topics": [
            {"Name": "T", "Properties": topic, "Subscriptions": [{"Name": "s", "Properties": subscription}]},
        ],
    }
    return json.dumps({"UserConfig": {"Namespaces": [namespace]}})


def described(text: str) -> Iterator[str]:
    """What a configuration means, and what else is made of that."""
    contents = parse_config(text)
    (namespace,) = contents.namespaces
    yield json.dumps(msgspec.to_builtins(contents), indent=1)
    (queue,), (topic,) = namespace.queues, namespace.topics
    (subscription,) = topic.subscriptions
    for is_answer in (False, True):
        yield write_queue(queue, NUMBERS, PLACE, is_answer=is_answer)
        yield write_topic(topic, NUMBERS, Filters(7, 8, 9), is_answer=is_answer)
        yield write_subscription(subscription, NUMBERS, PLACE, is_answer=is_answer)
    found, _ = from_config(text, None)
    yield json.dumps(document(found["queues"], found["topics"]), indent=1)
    yield json.dumps(to_config(found, "ns"), indent=1)
    yield repr(sdk_properties("queue", found["queues"][0]))
    yield repr(sdk_properties("topic", found["topics"][0]))
    yield repr(sdk_properties("subscription", found["topics"][0]["subscriptions"][0]))


def element(inside: str) -> Element:
    return read_xml(f'<D xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{inside}</D>'.encode())


def read(text: str) -> Iterator[str]:
    """What XML means, for new entities and for those that there are: the elements of a configuration, and none."""
    (namespace,) = parse_config(text).namespaces
    (queue,), (topic,) = namespace.queues, namespace.topics
    (subscription,) = topic.subscriptions
    key = "generated".format
    inside = [
        write_queue(queue, NUMBERS, PLACE),
        write_topic(topic, NUMBERS, Filters(7, 8, 9)),
        write_subscription(subscription, NUMBERS, PLACE),
    ]
    for first, second, third in (inside, ["", "", ""]):
        for is_kept in (False, True):
            yield repr(
                (
                    read_queue(element(first), "q", queue if is_kept else None, PLACE, key, NOW_MS, PREMIUM),
                    read_topic(element(second), "t", topic if is_kept else None, key, NOW_MS, PREMIUM),
                    read_subscription(element(third), "s", subscription if is_kept else None, PLACE, NOW_MS, PREMIUM),
                )
            )


def test_every_property_of_every_kind_of_entity() -> None:
    full = configuration(
        {**SHARED, **RECEIVED, **SIZED, **EXTENSIONS},
        {**SHARED, **SIZED, "FilteringMessagesBeforePublishing": True, "EnableSubscriptionPartitioning": True},
        {**SHARED, **RECEIVED, "DeadLetteringOnFilterEvaluationExceptions": False},
    )
    delaying = configuration(
        {"RedeliveryDelay": "PT2S", "DelayedAbandon": True, "EnableExpress": True}, {"EnableExpress": True}, {}
    )
    texts = [text for source in (full, delaying) for part in (described, read) for text in part(source)]
    demand("properties.txt", "\n\n".join(texts) + "\n")
