"""Counts and sizes of queues, with the last known ones of fragments that are away (Azure: Service Bus REST API)."""

from __future__ import annotations

from duobus.broker import Queue, last_access_ms, transfer_message_count
from duobus.gateway.rest.atom.xml.runtime_info import AVAILABLE, LIMITED, RuntimeInfo
from duobus.model.descriptions import TOPIC


class LastKnownCounts:
    """Reads numbers, and keeps what it has read of each fragment until its queue is deleted."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        # Entity id to (numbers, bytes) per fragment number: as many as there are fragments, in the worst case.
        self._known: dict[int, dict[int, tuple[list[int], int]]] = {}

    def of(self, queue: Queue) -> RuntimeInfo:
        """What is in a queue now; of a fragment that is away what was read last, and it says so."""
        known = self._known.setdefault(queue.entity_id, {})
        for handle in queue.fragments:
            if handle.fragment is not None:
                source = handle.fragment.sources[queue.source_no]
                shared = handle.fragment.topic if queue.kind == TOPIC else None
                known[handle.number] = (list(source.numbers), source.bytes + (0 if shared is None else shared.bytes))
        totals, size = [0] * 5, 0
        for numbers, part in known.values():
            totals = [a + b for a, b in zip(totals, numbers, strict=True)]
            size += part
        active, dead, transfer_dead, deferred, scheduled = totals
        is_whole = all(handle.online for handle in queue.fragments)
        return RuntimeInfo(
            active + deferred,
            dead,
            scheduled,
            transfer=transfer_message_count(queue),
            transfer_dead_letter=transfer_dead,
            size_bytes=size,
            availability=AVAILABLE if is_whole else LIMITED,
            accessed_ms=last_access_ms(queue),
        )

    def follow(self, queue: Queue) -> None:
        """A queue has changed, or is gone: then what was read of it is forgotten."""
        if queue.is_deleted:
            self._known.pop(queue.entity_id, None)
