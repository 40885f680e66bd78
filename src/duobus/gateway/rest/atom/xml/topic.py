"""TopicDescription and its XML (Azure: Service Bus REST API)."""

from __future__ import annotations

from typing import NamedTuple

from duobus.gateway.rest.atom.xml import writer as xml
from duobus.gateway.rest.atom.xml.access_rules import KeyMaker, read_access_rules, write_access_rules
from duobus.gateway.rest.atom.xml.fields import Fields, message_bytes, read_size, written_size
from duobus.gateway.rest.atom.xml.reader import Element
from duobus.gateway.rest.atom.xml.runtime_info import RuntimeInfo
from duobus.model.descriptions import CLOUD, TopicDescription
from duobus.model.durations import format_duration
from duobus.model.tiers import ALL, Tier


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
    fields = Fields(node)
    base = TopicDescription(name=name, created_at_ms=now_ms, updated_at_ms=now_ms) if kept is None else kept
    partitioned = fields.flag(
        "EnablePartitioning", tier.partitions_by_default if kept is None else base.enable_partitioning
    )
    count = (partitions or tier.partitions) if partitioned else 1
    return TopicDescription(
        name=base.name,
        default_message_time_to_live_ms=fields.duration(
            "DefaultMessageTimeToLive", tier.profile.time_to_live_ms_default
        ),
        max_size_in_megabytes=read_size(fields, count, base.max_size_in_megabytes if kept else None),
        requires_duplicate_detection=fields.flag("RequiresDuplicateDetection", base.requires_duplicate_detection),
        duplicate_detection_history_time_window_ms=fields.finite(
            "DuplicateDetectionHistoryTimeWindow", tier.profile.duplicate_window_ms_default
        ),
        enable_batched_operations=fields.flag("EnableBatchedOperations", True),
        filtering_messages_before_publishing=fields.flag("FilteringMessagesBeforePublishing", False),
        is_anonymous_accessible=base.is_anonymous_accessible,
        authorization_rules=read_access_rules(node, base.authorization_rules, new_key),
        status=fields.word("Status", "Active"),
        user_metadata=fields.text("UserMetadata"),
        support_ordering=fields.flag("SupportOrdering", True) if fields.has("SupportOrdering") else None,
        auto_delete_on_idle_ms=fields.duration("AutoDeleteOnIdle", None),
        enable_partitioning=partitioned,
        enable_subscription_partitioning=fields.flag(
            "EnableSubscriptionPartitioning", base.enable_subscription_partitioning
        ),
        enable_express=fields.flag("EnableExpress", False),
        max_message_size_bytes=message_bytes(fields, tier.message_kib_default),
        subscriptions=base.subscriptions,
        created_at_ms=base.created_at_ms,
        updated_at_ms=now_ms,
        accessed_at_ms=base.accessed_at_ms,
    )


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
    is_ordered = not topic.enable_partitioning if topic.support_ordering is None else topic.support_ordering
    told = RuntimeInfo(scheduled=numbers.scheduled)
    return "".join(
        (
            xml.element("DefaultMessageTimeToLive", format_duration(topic.default_message_time_to_live_ms)),
            xml.number(
                "MaxSizeInMegabytes",
                written_size(topic.max_size_in_megabytes, partitions if topic.enable_partitioning else 1),
            ),
            xml.flag("RequiresDuplicateDetection", topic.requires_duplicate_detection),
            xml.element(
                "DuplicateDetectionHistoryTimeWindow",
                format_duration(max(topic.duplicate_detection_history_time_window_ms, CLOUD.duplicate_window_ms_min)),
            ),
            xml.flag("EnableBatchedOperations", topic.enable_batched_operations),
            xml.number("SizeInBytes", numbers.size_bytes),
            xml.flag("FilteringMessagesBeforePublishing", topic.filtering_messages_before_publishing),
            xml.flag("IsAnonymousAccessible", topic.is_anonymous_accessible),
            write_access_rules(topic.authorization_rules),
            xml.element("Status", topic.status),
            xml.optional("UserMetadata", topic.user_metadata),
            xml.instant("CreatedAt", topic.created_at_ms),
            xml.instant("UpdatedAt", topic.updated_at_ms),
            "" if is_answer else xml.instant("AccessedAt", max(topic.accessed_at_ms, numbers.accessed_ms)),
            xml.flag("SupportOrdering", is_ordered),
            "" if is_answer else told.details(),
            xml.number("SubscriptionCount", filters.subscriptions),
            xml.number("SqlFilterCount", filters.sql),
            xml.number("CorrelationFilterCount", filters.correlations),
            xml.element("AutoDeleteOnIdle", format_duration(topic.auto_delete_on_idle_ms)),
            xml.flag("EnablePartitioning", topic.enable_partitioning),
            xml.element("EntityAvailabilityStatus", numbers.availability),
            xml.flag("EnableSubscriptionPartitioning", topic.enable_subscription_partitioning),
            xml.flag("EnableExpress", topic.enable_express),
            xml.number("MaxMessageSizeInKilobytes", topic.max_message_size_bytes // 1024),
        )
    )
