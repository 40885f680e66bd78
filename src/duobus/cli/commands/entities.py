"""``duobus queue``: manage queues."""

from __future__ import annotations

from duobus.cli import entity_commands as entity
from duobus.cli.entity_commands import Noun, group_of

command = group_of(
    Noun(
        name="queue",
        parents=(),
        properties=(
            entity.PARTITIONING,
            entity.SESSION,
            entity.DUPLICATES,
            entity.WINDOW,
            entity.MAX_SIZE,
            entity.MAX_MESSAGE,
            entity.LOCK,
            entity.DELIVERIES,
            entity.TTL,
            entity.EXPIRED,
            entity.IDLE,
            entity.FORWARD,
            entity.FORWARD_DEAD,
            entity.BATCHED,
            entity.METADATA,
            entity.STATUS,
        ),
        columns=("name", "status", "enablePartitioning", "requiresSession", "lockDuration", "maxDeliveryCount"),
        examples={
            "create": "orders --lock-duration PT1M",
            "show": "orders",
            "list": "-o table",
            "update": "orders --lock-duration PT2M --max-delivery-count 5",
            "delete": "orders --yes",
        },
    )
)
