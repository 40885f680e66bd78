"""Where senders get their next message: one queue for all of them, opened as far as the run has come."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from duobus_demo.corpus import Outgoing


class Feed:
    """Hands out messages to any number of senders, threads and tasks alike.

    Args:
        messages: What to send; may be endless.
        limit: Number of messages that may be taken before ``allow`` raises it; None is no limit.
    """

    def __init__(self, messages: Iterable[Outgoing], limit: int | None = 0) -> None:
        self._messages: Iterator[Outgoing] = iter(messages)
        self._limit = limit
        self._taken = 0
        self._is_finished = False
        self._lock = threading.Lock()

    @property
    def is_finished(self) -> bool:
        """Whether nothing will be handed out any more."""
        return self._is_finished

    @property
    def taken(self) -> int:
        """Number of messages handed out so far."""
        return self._taken

    def take(self) -> Outgoing | None:
        """Return the next message, or None when there is none now: ask ``is_finished`` whether there will be."""
        with self._lock:
            if self._is_finished or (self._limit is not None and self._taken >= self._limit):
                return None
            message = next(self._messages, None)
            if message is None:
                self._is_finished = True
                return None
            self._taken += 1
            return message

    def allow(self, limit: int | None) -> None:
        """Let ``limit`` messages be taken in all, or any number."""
        with self._lock:
            self._limit = limit

    def finish(self) -> None:
        """Hand out nothing more."""
        with self._lock:
            self._is_finished = True
