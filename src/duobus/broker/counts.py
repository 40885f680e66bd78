"""Delivery counts that changed with no command: they wait a while for a commit that others need.

A connection that is lost, or a lock that ends, gives back messages whose counts have grown. Each count is a row to be
written anew, eight microseconds of a thread that the clients of other stores share the processor with; and whoever
connects, takes messages and goes, again and again, changes the same ones each time. A crash may forget the deliveries
since a fragment's last commit (design 3.9), whenever that was: so they are no reason for a commit of their own at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

#: How long delivery counts wait for company.
COUNTS_WAIT_S: Final = 5.0


class DeliveryCountTimer:
    """Says when delivery counts are to be written though nothing else is.

    Args:
        loop: For the timer.
        schedule: Called when they have waited long enough.
    """

    __slots__ = ("_is_due", "_loop", "_schedule", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, schedule: Callable[[], None]) -> None:
        self._loop = loop
        self._schedule = schedule
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False

    def may_wait(self, changed: object) -> bool:
        """Whether ``changed``, if there is anything, waits on; called when there is nothing else to commit."""
        if changed and not self._is_due and self._timer is None:
            self._timer = self._loop.call_later(COUNTS_WAIT_S, self.hurry)
        return not changed or not self._is_due

    def hurry(self) -> None:
        """They wait no longer."""
        self._is_due = True
        self._schedule()

    def taken(self, left: object) -> None:
        """A commit takes what had changed; ``left``: but for what had no room, which follows in the same way."""
        if not left:
            self._is_due = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
