"""LockOwner: who holds a session. Stays a class of the interpreter, as what derives from it is (decision 0008)."""

from __future__ import annotations

from typing import Any


class LockOwner:
    """Who holds a session.

    Attributes:
        group: Where its messages go together with those of other sessions; None: they are offered to it alone.
    """

    __slots__ = ()

    group: Any = None

    def offer(self) -> None:
        """Messages of the session became available."""
        raise NotImplementedError

    def lost(self) -> None:
        """The session's lock is gone."""
        raise NotImplementedError
