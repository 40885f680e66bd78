"""What an order to the desk costs (design 3.13): what it shows is handed out, what it moves is sent where it goes.

Whoever moves dead letters by receiving and sending them pays for both; here the server does the one, and there is no
message to hand out unless the answer tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from duobus.broker import Queue
from duobus.model.metering import PEEK, SEND, SETTLE, operations_of

#: ``meter(namespace, entity, kind, messages, bytes, operations, key)``.
Meter = Callable[[str, str, str, int, int, int, str], None]

#: What of an order that finds nothing is left to pay: that somebody looked.
_LOOK: Final = 1


class DeskMeter:
    """Counts the operations of one order.

    Args:
        meter: Where they are counted.
        queue: The entity of the order.
        key: Whom its token speaks for.
    """

    __slots__ = ("_key", "_meter", "_queue")

    def __init__(self, meter: Meter, queue: Queue, key: str) -> None:
        self._meter = meter
        self._queue = queue
        self._key = key

    def shown(self, sizes: Sequence[int], *, looks_only: bool) -> None:
        """An answer tells messages of these sizes; ``looks_only``: and that was all."""
        operations = sum(map(operations_of, sizes)) or (_LOOK if looks_only else 0)
        if operations:
            self._count(self._queue.path, PEEK, len(sizes), sum(sizes), operations)

    def removed(self, number: int) -> None:
        """Messages are gone from where they were."""
        if number:
            self._count(self._queue.path, SETTLE, number, 0, number)

    def sent(self, sizes: Sequence[int], path: str | None = None) -> None:
        """Messages of these sizes were accepted, by the entity of the order or that of another path."""
        if sizes:
            self._count(path or self._queue.path, SEND, len(sizes), sum(sizes), sum(map(operations_of, sizes)))

    def _count(self, path: str, kind: str, number: int, size: int, operations: int) -> None:
        self._meter(self._queue.namespace, path, kind, number, size, operations, self._key)
