"""Whether a source has room for a run of messages: its size quota and its duplicate history, when a commit starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duobus.errors import QuotaExceeded, ServiceBusError
from duobus.fragment import duplicate_detection as duplicates

if TYPE_CHECKING:
    from duobus.fragment.commands import Run
    from duobus.fragment.source import Source


def check(source: Source, run: Run, now_ms: int, elsewhere: int = 0) -> ServiceBusError | None:
    """Say why a run cannot be taken in, or None; it is taken as a whole or not at all (I33, I40).

    ``elsewhere``: bytes that count beside those of the source.
    """
    settings = source.settings
    batch = run.batch
    used = source.bytes + elsewhere + run.beside
    if settings.max_bytes is not None and used + batch.bytes_total > settings.max_bytes:
        # A duplicate takes no room: whoever repeats what was stored is told so, however full the entity is.
        size = 0 if batch.ping else duplicates.stored_size(source, run)
        if size and used + size > settings.max_bytes:
            return over_quota(used, settings.max_bytes)
    if source.history is not None and settings.duplicate_window_ms is not None and batch.ids is not None:
        return duplicates.check(source.history, run, settings.duplicate_window_ms, now_ms)
    return None


def has_room(source: Source, size: int, elsewhere: int) -> bool:
    """Whether so many bytes more would fit now; ``elsewhere``: bytes that count beside those of the source."""
    max_bytes = source.settings.max_bytes
    return max_bytes is None or source.bytes + elsewhere + size <= max_bytes


def over_quota(size: int, limit: int) -> QuotaExceeded:
    """The error of a send to an entity that is full; receiving still works."""
    return QuotaExceeded(
        f"The maximum entity size has been reached or exceeded: the entity, or the fragment of it where the message "
        f"belongs, has {size} bytes of at most {limit}. Receive messages, or raise MaxSizeInMegabytes."
    )
