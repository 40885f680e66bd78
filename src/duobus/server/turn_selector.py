"""The event loop of a server: what one turn reads is worked off at the end of that turn, before the system is asked.

A commit begins, and each connection is written once, when all that was ready has been read. As callbacks of
``call_soon`` these would run in one more round of asyncio's loop: a handle and a context for each, and a question for
ready sockets between. Here they stand in a line of their own (``TurnLoop.call_at_turn_end``), and the selector works it
off before it asks (decision 0068).

Of what others give to ``call_soon``, the question before that round is left out: it costs a system call and offers the
interpreter to another thread, and the answer changes nothing, for what the system finds is run behind the callbacks
that wait already. The next question never is: a loop that always has something to do asks before every second turn
(decision 0060).
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

Ts = TypeVarTuple("Ts")


class TurnSelector(selectors.DefaultSelector):
    """A selector that passes over one question in two, where the one who asks would not wait for the answer.

    Attributes:
        work_off: Called before a question with the time that the one who asks would wait, if something is in line;
            returns how long it may wait after that.
        line: What is to be called at the end of this turn.
    """

    _may_pass = False

    def __init__(self) -> None:
        super().__init__()
        self.line: list[Callable[[], None]] = []
        self.work_off: Callable[[float | None], float | None] = _unchanged

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; nothing, without a look, if this was looked at in the turn before."""
        if self.line:
            timeout = self.work_off(timeout)
        if self._may_pass and timeout is not None and timeout <= 0:
            self._may_pass = False
            return []
        self._may_pass = True
        return super().select(timeout)


def _unchanged(timeout: float | None) -> float | None:
    return timeout


class TurnLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with a line of what is called at the end of a turn.

    Attributes:
        call_at_turn_end: Has a callback without arguments called once, at the end of this turn, in the order of these
            calls. What is put in line by one of them is called at the end of the next turn, which comes at once.
    """

    def __init__(self) -> None:
        # By the time asyncio has counted how long nothing is due, what is called in line may have asked for something.
        self._is_asked = False
        self._turn_selector = TurnSelector()
        self._turn_selector.work_off = self._work_off
        self.call_at_turn_end: Callable[[Callable[[], None]], None] = self._turn_selector.line.append
        super().__init__(self._turn_selector)

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """See ``AbstractEventLoop.call_soon``."""
        self._is_asked = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See ``AbstractEventLoop.call_at``."""
        self._is_asked = True
        return super().call_at(when, callback, *args, context=context)

    def stop(self) -> None:
        """See ``AbstractEventLoop.stop``."""
        self._is_asked = True
        super().stop()

    def _work_off(self, timeout: float | None) -> float | None:
        """Call what is in line now; how long the loop may wait for sockets then."""
        began_s = self.time()
        self._is_asked = False
        line = self._turn_selector.line
        calls = line[:]
        # In place: ``call_at_turn_end`` is bound to this list.
        line.clear()
        for call in calls:
            try:
                call()
            except Exception as fault:  # noqa: BLE001 - a fault of ours must not keep the others back
                context: dict[str, Any] = {"message": "what was due at the end of a turn failed", "exception": fault}
                self.call_exception_handler(context)
        if self._is_asked or line:
            return 0
        return None if timeout is None else max(0, timeout - (self.time() - began_s))


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make the event loop of a server."""
    return TurnLoop()
