"""Which messages a person looks for: an SQL filter on their properties, and a condition on a JSON body."""

from __future__ import annotations

from typing import Any

from duobus.model.json.deliveries import Delivery
from duobus.model.metadata import MessageMetadata
from duobus.rules.selection import Selection


class MessageFilter:
    """A compiled filter; without either part every message passes.

    Args:
        sql: In the language of rules; None for none.
        condition: On a JSON body, as ``$.lines[*].price > 1000``; None for none.

    Raises:
        ArgumentInvalid, ArgumentOutOfRange: A text is none; the error names the position.
    """

    def __init__(self, sql: str | None, condition: str | None) -> None:
        self._selection = Selection(sql, condition)

    def takes(self, delivery: Delivery) -> bool:
        """Whether a message passes; one that the filter cannot be applied to does not."""
        annotations = delivery.annotations
        metadata = MessageMetadata(
            partition_key=_text(annotations.get("x-opt-partition-key")),
            via_partition_key=_text(annotations.get("x-opt-via-partition-key")),
            session_id=_text(delivery.properties.get("groupId")),
            scheduled_ms=_number(annotations.get("x-opt-scheduled-enqueue-time")),
            ttl_ms=_number(delivery.header.get("ttl")),
        )
        return not delivery.fault and self._selection.takes(
            delivery.bare,
            metadata,
            enqueued_ms=_number(annotations.get("x-opt-enqueued-time")) or 0,
            sequence_number=_number(annotations.get("x-opt-sequence-number")) or 0,
            deliveries=_number(delivery.header.get("deliveryCount")) or 0,
        )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) else None
