"""TurnSelector: the event loop of a server asks the system for ready sockets before every second turn, not before each.

What one turn of the loop reads is worked off at the end of that turn: a commit begins, and each connection is written
once. Both are callbacks, so asyncio runs them in a second turn, and before that turn asyncio would ask the system for
ready sockets again. The question costs a system call and offers the interpreter to another thread, and the answer
changes nothing: what the system finds is run behind the callbacks that wait already. So this question is left out, and
the next one never is: a loop that always has something to do asks before every second turn (decision 0060).
"""

from __future__ import annotations

import asyncio
import selectors


class TurnSelector(selectors.DefaultSelector):
    """A selector that passes over one question in two, where the one who asks would not wait for the answer."""

    _may_pass = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; nothing, without a look, if this was looked at in the turn before."""
        if self._may_pass and timeout is not None and timeout <= 0:
            self._may_pass = False
            return []
        self._may_pass = True
        return super().select(timeout)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make the event loop of a server."""
    return asyncio.SelectorEventLoop(TurnSelector())
