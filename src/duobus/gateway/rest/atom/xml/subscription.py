"""SubscriptionDescription and its XML (Azure: Service Bus REST API)."""

from __future__ import annotations

from duobus.gateway.rest.atom.request_origin import RequestOrigin
from duobus.gateway.rest.atom.xml import writer as xml
from duobus.gateway.rest.atom.xml.fields import Fields
from duobus.gateway.rest.atom.xml.reader import Element
from duobus.gateway.rest.atom.xml.runtime_info import RuntimeInfo
from duobus.model.descriptions import SubscriptionDescription
from duobus.model.durations import format_duration
from duobus.model.tiers import ALL, Tier


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
    fields = Fields(node)
    base = SubscriptionDescription(name=name, created_at_ms=now_ms, updated_at_ms=now_ms) if kept is None else kept
    forward, dead = fields.text("ForwardTo"), fields.text("ForwardDeadLetteredMessagesTo")
    return SubscriptionDescription(
        name=base.name,
        lock_duration_ms=fields.finite("LockDuration", tier.profile.lock_duration_ms_default),
        requires_session=fields.flag("RequiresSession", base.requires_session),
        default_message_time_to_live_ms=fields.duration(
            "DefaultMessageTimeToLive", tier.profile.time_to_live_ms_default
        ),
        dead_lettering_on_message_expiration=fields.flag("DeadLetteringOnMessageExpiration", False),
        dead_lettering_on_filter_evaluation_exceptions=fields.flag("DeadLetteringOnFilterEvaluationExceptions", True),
        max_delivery_count=fields.number("MaxDeliveryCount", tier.profile.delivery_count_default),
        enable_batched_operations=fields.flag("EnableBatchedOperations", True),
        status=fields.word("Status", "Active"),
        forward_to=None if forward is None else place.target("ForwardTo", forward),
        forward_dead_lettered_messages_to=None if dead is None else place.target("ForwardDeadLetteredMessagesTo", dead),
        auto_delete_on_idle_ms=fields.duration("AutoDeleteOnIdle", None),
        user_metadata=fields.text("UserMetadata"),
        rules=base.rules,
        created_at_ms=base.created_at_ms,
        updated_at_ms=now_ms,
        accessed_at_ms=base.accessed_at_ms,
        forward_to_sent=forward,
        forward_dead_lettered_messages_to_sent=dead,
    )


def default_rule_of(node: Element) -> Element | None:
    """The rule that is to stand in for ``$Default``, where a request to create a subscription brings one."""
    return node.find("DefaultRuleDescription")


def write_subscription(
    subscription: SubscriptionDescription, numbers: RuntimeInfo, place: RequestOrigin, *, is_answer: bool = False
) -> str:
    """Return the elements of a subscription, in the cloud's order; see ``write_queue``.

    One that was not used yet was accessed when it was created, unlike a queue.
    """
    accessed_ms = max(subscription.accessed_at_ms, numbers.accessed_ms) or subscription.created_at_ms
    return "".join(
        (
            xml.element("LockDuration", format_duration(subscription.lock_duration_ms)),
            xml.flag("RequiresSession", subscription.requires_session),
            xml.element("DefaultMessageTimeToLive", format_duration(subscription.default_message_time_to_live_ms)),
            xml.flag("DeadLetteringOnMessageExpiration", subscription.dead_lettering_on_message_expiration),
            xml.flag(
                "DeadLetteringOnFilterEvaluationExceptions",
                subscription.dead_lettering_on_filter_evaluation_exceptions,
            ),
            xml.number("MessageCount", numbers.total),
            xml.number("MaxDeliveryCount", subscription.max_delivery_count),
            xml.flag("EnableBatchedOperations", subscription.enable_batched_operations),
            xml.element("Status", subscription.status),
            xml.optional("ForwardTo", place.told(subscription.forward_to, subscription.forward_to_sent)),
            xml.instant("CreatedAt", subscription.created_at_ms),
            xml.instant("UpdatedAt", subscription.updated_at_ms),
            "" if is_answer else xml.instant("AccessedAt", accessed_ms),
            "" if is_answer else numbers.details(),
            xml.optional(
                "ForwardDeadLetteredMessagesTo",
                place.told(
                    subscription.forward_dead_lettered_messages_to, subscription.forward_dead_lettered_messages_to_sent
                ),
            ),
            xml.element("AutoDeleteOnIdle", format_duration(subscription.auto_delete_on_idle_ms)),
            xml.element("EntityAvailabilityStatus", numbers.availability),
            xml.optional("UserMetadata", subscription.user_metadata),
        )
    )
