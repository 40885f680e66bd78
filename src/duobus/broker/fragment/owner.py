"""Owner: who holds a session. Stays a class of the interpreter, as what derives from it is (decision 0008)."""

from __future__ import annotations


class Owner:
    """Who holds a session."""

    __slots__ = ()

    def offer(self) -> None:
        """Messages of the session became available."""
        raise NotImplementedError

    def lost(self) -> None:
        """The session's lock is gone."""
        raise NotImplementedError
