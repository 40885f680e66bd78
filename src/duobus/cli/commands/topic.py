"""``duobus topic``: manage topics."""

from __future__ import annotations

from duobus.cli import entity_commands as entity
from duobus.cli.entity_commands import Noun, group_of

command = group_of(
    Noun(
        name="topic",
        parents=(),
        properties=(
            entity.PARTITIONING,
            entity.DUPLICATES,
            entity.WINDOW,
            entity.MAX_SIZE,
            entity.MAX_MESSAGE,
            entity.TTL,
            entity.IDLE,
            entity.BATCHED,
            entity.METADATA,
            entity.STATUS,
        ),
        columns=("name", "status", "enablePartitioning", "defaultMessageTimeToLive"),
        examples={
            "create": "prices --default-message-time-to-live 1d",
            "show": "prices",
            "list": "-o table",
            "update": "prices --default-message-time-to-live 1d",
            "delete": "prices --yes",
        },
    )
)
