"""``duobus subscription``: manage the subscriptions of a topic."""

from __future__ import annotations

from duobus.cli import entity_commands as entity
from duobus.cli.entity_commands import Noun, group_of

command = group_of(
    Noun(
        name="subscription",
        parents=("topic",),
        properties=(
            entity.SESSION,
            entity.LOCK,
            entity.DELIVERIES,
            entity.TTL,
            entity.EXPIRED,
            entity.FILTER_ERRORS,
            entity.IDLE,
            entity.FORWARD,
            entity.FORWARD_DEAD,
            entity.BATCHED,
            entity.METADATA,
            entity.STATUS,
        ),
        columns=("name", "status", "requiresSession", "lockDuration", "maxDeliveryCount"),
        examples={
            "create": "prices alerts --lock-duration 90s",
            "show": "prices alerts",
            "list": "prices",
            "update": "prices alerts --max-delivery-count 5",
            "delete": "prices alerts --yes",
        },
    )
)
