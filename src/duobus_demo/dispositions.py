"""What a receiver does with a message: mostly completes it, and abandons, defers or dead-letters a share."""

from __future__ import annotations

import threading
import zlib
from enum import Enum


class Action(Enum):
    """A settlement."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"


#: Of this many messages one is abandoned, one deferred and one dead-lettered, by a hash of the message id.
SHARE = 25

DEAD_LETTER_REASON = "demonstration"

_UNUSUAL = {0: Action.ABANDON, 1: Action.DEFER, 2: Action.DEAD_LETTER}


class Dispositions:
    """Chooses the settlement of each delivery; any thread may ask.

    Args:
        share: Of how many messages one is treated in each unusual way; 0 completes all of them.
    """

    def __init__(self, share: int = SHARE) -> None:
        self._share = share
        self._treated: set[str] = set()
        self._lock = threading.Lock()

    def choose(self, message_id: str) -> Action:
        """Return what to do; a message that was once treated in an unusual way is completed when it comes again."""
        if not self._share:
            return Action.COMPLETE
        action = _UNUSUAL.get(zlib.crc32(message_id.encode()) % self._share, Action.COMPLETE)
        if action is Action.COMPLETE:
            return action
        with self._lock:
            if message_id in self._treated:
                return Action.COMPLETE
            self._treated.add(message_id)
        return action


class DeferredNumbers:
    """Sequence numbers of deferred messages that somebody has to fetch; any thread may add and take."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()
        self._lock = threading.Lock()

    def add(self, number: int) -> None:
        """Note that a message with this number is, or may be, deferred."""
        with self._lock:
            self._numbers.add(number)

    def take(self) -> int | None:
        """Return one number and forget it, or None."""
        with self._lock:
            return self._numbers.pop() if self._numbers else None
