"""Columns of messages that a store holds in memory: what ``load_columns`` returns where nothing has to be read."""

from __future__ import annotations

from collections.abc import Iterable

from duobus.stores.interface import Columns, Plain, StoredMessage


class HeldColumns(Columns):
    """Ordinary messages with consecutive counts."""

    __slots__ = ("_messages",)

    def __init__(self, messages: list[StoredMessage]) -> None:
        super().__init__(messages[0].count, len(messages), sum(len(message.payload) for message in messages))
        self._messages = messages

    def take(self, number: int) -> Plain:
        """See ``Columns.take``; nothing is ever damaged."""
        taken, self._messages = self._messages[:number], self._messages[number:]
        plain = Plain(self.first_count, [m.enqueued_ms for m in taken], [m.payload for m in taken])
        self.first_count += len(taken)
        self.number -= len(taken)
        return plain


def columns_of(first_count: int, messages: Iterable[StoredMessage]) -> list[Columns]:
    """Return as many of these messages as are ordinary and follow each other from ``first_count`` on."""
    found: list[StoredMessage] = []
    for message in messages:
        is_plain = not message.state and not message.deliveries and message.special is None and not message.origin
        if not is_plain or message.count != first_count + len(found):
            break
        found.append(message)
    return [HeldColumns(found)] if found else []
