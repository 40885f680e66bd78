"""QueueDescription and its XML (Azure: Service Bus REST API)."""

from __future__ import annotations

from duobus.gateway.rest.atom.request_origin import RequestOrigin
from duobus.gateway.rest.atom.xml import writer as xml
from duobus.gateway.rest.atom.xml.access_rules import KeyMaker, read_access_rules, write_access_rules
from duobus.gateway.rest.atom.xml.fields import Fields, message_bytes, read_size, written_size
from duobus.gateway.rest.atom.xml.reader import Element
from duobus.gateway.rest.atom.xml.runtime_info import RuntimeInfo
from duobus.model.descriptions import CLOUD, QueueDescription
from duobus.model.durations import format_duration
from duobus.model.tiers import ALL, Tier


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
    fields = Fields(node)
    base = QueueDescription(name=name, created_at_ms=now_ms, updated_at_ms=now_ms) if kept is None else kept
    partitioned = fields.flag(
        "EnablePartitioning", tier.partitions_by_default if kept is None else base.enable_partitioning
    )
    count = (partitions or tier.partitions) if partitioned else 1
    forward, dead = fields.text("ForwardTo"), fields.text("ForwardDeadLetteredMessagesTo")
    return QueueDescription(
        name=base.name,
        lock_duration_ms=fields.finite("LockDuration", tier.profile.lock_duration_ms_default),
        max_size_in_megabytes=read_size(fields, count, base.max_size_in_megabytes if kept else None),
        requires_duplicate_detection=fields.flag("RequiresDuplicateDetection", base.requires_duplicate_detection),
        requires_session=fields.flag("RequiresSession", base.requires_session),
        default_message_time_to_live_ms=fields.duration(
            "DefaultMessageTimeToLive", tier.profile.time_to_live_ms_default
        ),
        dead_lettering_on_message_expiration=fields.flag("DeadLetteringOnMessageExpiration", False),
        duplicate_detection_history_time_window_ms=fields.finite(
            "DuplicateDetectionHistoryTimeWindow", tier.profile.duplicate_window_ms_default
        ),
        max_delivery_count=fields.number("MaxDeliveryCount", tier.profile.delivery_count_default),
        enable_batched_operations=fields.flag("EnableBatchedOperations", True),
        is_anonymous_accessible=base.is_anonymous_accessible,
        authorization_rules=read_access_rules(node, base.authorization_rules, new_key),
        status=fields.word("Status", "Active"),
        forward_to=None if forward is None else place.target("ForwardTo", forward),
        user_metadata=fields.text("UserMetadata"),
        support_ordering=fields.flag("SupportOrdering", True) if fields.has("SupportOrdering") else None,
        auto_delete_on_idle_ms=fields.duration("AutoDeleteOnIdle", None),
        enable_partitioning=partitioned,
        forward_dead_lettered_messages_to=None if dead is None else place.target("ForwardDeadLetteredMessagesTo", dead),
        enable_express=fields.flag("EnableExpress", False),
        max_message_size_bytes=message_bytes(fields, tier.message_kib_default),
        created_at_ms=base.created_at_ms,
        updated_at_ms=now_ms,
        accessed_at_ms=base.accessed_at_ms,
        redelivery_delay_ms=base.redelivery_delay_ms,
        redelivery_delay_maximum_ms=base.redelivery_delay_maximum_ms,
        delayed_abandon=base.delayed_abandon,
        forward_to_sent=forward,
        forward_dead_lettered_messages_to_sent=dead,
    )


def write_queue(
    queue: QueueDescription,
    numbers: RuntimeInfo,
    place: RequestOrigin,
    partitions: int = ALL.partitions,
    *,
    is_answer: bool = False,
) -> str:
    """Return the elements of a queue, in the cloud's order.

    ``is_answer``: to a request that has created or changed it, which tells neither use nor counts.
    """
    is_ordered = not queue.enable_partitioning if queue.support_ordering is None else queue.support_ordering
    dead = place.told(queue.forward_dead_lettered_messages_to, queue.forward_dead_lettered_messages_to_sent)
    return "".join(
        (
            xml.element("LockDuration", format_duration(queue.lock_duration_ms)),
            xml.number(
                "MaxSizeInMegabytes",
                written_size(queue.max_size_in_megabytes, partitions if queue.enable_partitioning else 1),
            ),
            xml.flag("RequiresDuplicateDetection", queue.requires_duplicate_detection),
            xml.flag("RequiresSession", queue.requires_session),
            xml.element("DefaultMessageTimeToLive", format_duration(queue.default_message_time_to_live_ms)),
            xml.flag("DeadLetteringOnMessageExpiration", queue.dead_lettering_on_message_expiration),
            xml.element(
                "DuplicateDetectionHistoryTimeWindow",
                format_duration(max(queue.duplicate_detection_history_time_window_ms, CLOUD.duplicate_window_ms_min)),
            ),
            xml.number("MaxDeliveryCount", queue.max_delivery_count),
            xml.flag("EnableBatchedOperations", queue.enable_batched_operations),
            xml.number("SizeInBytes", numbers.size_bytes),
            xml.number("MessageCount", numbers.total),
            xml.flag("IsAnonymousAccessible", queue.is_anonymous_accessible),
            write_access_rules(queue.authorization_rules),
            xml.element("Status", queue.status),
            xml.optional("ForwardTo", place.told(queue.forward_to, queue.forward_to_sent)),
            xml.optional("UserMetadata", queue.user_metadata),
            xml.instant("CreatedAt", queue.created_at_ms),
            xml.instant("UpdatedAt", queue.updated_at_ms),
            "" if is_answer else xml.instant("AccessedAt", max(queue.accessed_at_ms, numbers.accessed_ms)),
            xml.flag("SupportOrdering", is_ordered),
            "" if is_answer else numbers.details(),
            # A queue that forwards is never idle, as it has a receiver, the broker; what was set is told all the same.
            xml.element("AutoDeleteOnIdle", format_duration(queue.auto_delete_on_idle_ms)),
            xml.flag("EnablePartitioning", queue.enable_partitioning),
            xml.optional("ForwardDeadLetteredMessagesTo", dead),
            xml.element("EntityAvailabilityStatus", numbers.availability),
            xml.flag("EnableExpress", queue.enable_express),
            xml.number("MaxMessageSizeInKilobytes", queue.max_message_size_bytes // 1024),
        )
    )
