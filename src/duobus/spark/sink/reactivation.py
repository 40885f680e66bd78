"""Under which id a message is made active again, so that neither its past nor a second attempt harms it.

A queue that detects duplicates remembers the id of the original: a copy with the same id would be dropped, and then the
original removed. There the copy gets an id made of where the original lay, which is the same when a process that was
killed between sending and removing is followed by another: the second copy is dropped then. Elsewhere it keeps its id,
and such a kill delivers it twice.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from duobus.spark.connection import Place, namespace_of
from duobus.spark.sink.destinations import may_detect_duplicates
from duobus.spark.sink.resend import revived

#: Property with the id that the sender gave.
ORIGINAL_ID: Final = "x-duobus-original-message-id"


def reactivated_id(namespace: str, entity: str, number: int, enqueued_ms: int) -> str:
    """The id of a copy: the same each time, and none that its sender used."""
    place = hashlib.sha256(f"{namespace}/{entity}/{enqueued_ms}".encode()).hexdigest()[:32]
    return f"reactivated/{place}/{number}"


class Reactivation:
    """Makes the copies for one queue.

    Args:
        place: Its namespace.
        entity: The queue.
    """

    def __init__(self, place: Place, entity: str) -> None:
        self._namespace = namespace_of(place)
        self._entity = entity
        self._renames = may_detect_duplicates(place, entity)

    def copy(self, message: Any) -> Any:
        """Return what is sent in the place of a message that was received."""
        if not self._renames:
            return revived(message, None, {})
        enqueued = message.enqueued_time_utc
        enqueued_ms = 0 if enqueued is None else round(enqueued.timestamp() * 1000)
        new = reactivated_id(self._namespace, self._entity, message.sequence_number or 0, enqueued_ms)
        return revived(message, new, {} if message.message_id is None else {ORIGINAL_ID: str(message.message_id)})
