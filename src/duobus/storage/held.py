"""Columns of messages that are in memory and verified: what ``load_columns`` returns where rows were read singly."""

from __future__ import annotations

from collections.abc import Iterable

from duobus.storage.interface import Plain, StoredMessage


def columns_of(first_count: int, messages: Iterable[StoredMessage]) -> list[Plain]:
    """Return as many of these messages as are ordinary and follow each other from ``first_count`` on."""
    found: list[StoredMessage] = []
    for message in messages:
        is_plain = not message.state and not message.deliveries and message.special is None and not message.origin
        if not is_plain or message.count != first_count + len(found):
            break
        found.append(message)
    return [Plain(first_count, [m.enqueued_ms for m in found], [m.payload for m in found])] if found else []
