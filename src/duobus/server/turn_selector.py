"""The event loop of a server: what one turn reads is worked off at the end of that turn, before the system is asked.

A commit begins, and each connection is written once, when all that was ready has been read. As callbacks of
``call_soon`` these would run in one more round of asyncio's loop: a handle and a context for each, and a question for
ready sockets between. Here they stand in a line of their own (``TurnLoop.call_at_turn_end``), and the selector works it
off before it asks (decision 0068).

Files that are *watched* (``TurnLoop.watch``), as those of plain connections are, are called by the selector itself as
soon as they are ready: for them, too, there is no handle, no context and no line (decision 0072). So a turn in which
nothing else happens does not leave the selector:

    select ─ work off the line ─ ask the system ─ call what watches ─ work off the line ─ ask ─ ... ─ return

It returns when something is ready that asyncio has to see to, when anything was asked of the loop (a callback, a timer,
the end), and when the time is over that asyncio would wait.

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
    """A selector that works off a line before it asks, calls what watches a file, and passes over some questions.

    Attributes:
        line: What is to be called at the end of this turn.
        is_asked: Something was asked of the loop since it asked last: what it wants to know now is out of date.
        report: Called with what a callback has raised.
        now_s: The loop's time, in seconds.
    """

    _may_pass = False

    def __init__(self) -> None:
        super().__init__()
        self.line: list[Callable[[], None]] = []
        self.is_asked = False
        self.report: Callable[[Exception], None] = _raise
        self.now_s: Callable[[], float] = float

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready, but for what is watched, which is called; as long as there is nothing else, go on.

        Nothing is returned, without a look, if this was looked at in the turn before and the one who asks would not
        wait for the answer.
        """
        self.is_asked = False
        deadline_s = None if timeout is None or timeout <= 0 else self.now_s() + timeout
        while True:
            if self.line:
                self._work_off()
                if self.is_asked or self.line:
                    timeout = 0
                elif deadline_s is not None:
                    timeout = max(0, deadline_s - self.now_s())
            if self._may_pass and timeout is not None and timeout <= 0:
                self._may_pass = False
                return []
            self._may_pass = True
            ready = super().select(timeout)
            others = self._call_watching(ready)
            if others or self.is_asked or not ready or (timeout is not None and timeout <= 0):
                return others
            if deadline_s is not None and not self.line:
                timeout = max(0, deadline_s - self.now_s())

    def _call_watching(self, ready: list[tuple[selectors.SelectorKey, int]]) -> list[tuple[selectors.SelectorKey, int]]:
        """Call what watches files that are ready; returns what else is."""
        others = []
        for found in ready:
            watch = found[0].data
            if type(watch) is not _Watch:
                others.append(found)
                continue
            try:
                watch.call(found[1])
            except Exception as fault:  # noqa: BLE001 - a fault of ours must not keep the others back
                self.report(fault)
        return others

    def _work_off(self) -> None:
        """Call what is in line now."""
        line = self.line
        calls = line[:]
        # In place: ``call_at_turn_end`` is bound to this list.
        line.clear()
        for call in calls:
            try:
                call()
            except Exception as fault:  # noqa: BLE001 - a fault of ours must not keep the others back
                self.report(fault)


class _Watch:
    """What is called when a file is ready."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[int], None]) -> None:
        self.call = call


def _raise(fault: Exception) -> None:
    raise fault


class TurnLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with a line of what is called at the end of a turn, and files that are watched without handles.

    Attributes:
        call_at_turn_end: Has a callback without arguments called once, at the end of this turn, in the order of these
            calls. What is put in line by one of them is called at the end of the next turn, which comes at once.
    """

    def __init__(self) -> None:
        # By the time asyncio has counted how long nothing is due, what is called in line may have asked for something.
        self._turn_selector = TurnSelector()
        self._turn_selector.report = self._report
        self._turn_selector.now_s = self.time
        self.call_at_turn_end: Callable[[Callable[[], None]], None] = self._turn_selector.line.append
        super().__init__(self._turn_selector)

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """See ``AbstractEventLoop.call_soon``."""
        self._turn_selector.is_asked = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See ``AbstractEventLoop.call_at``."""
        self._turn_selector.is_asked = True
        return super().call_at(when, callback, *args, context=context)

    def stop(self) -> None:
        """See ``AbstractEventLoop.stop``."""
        self._turn_selector.is_asked = True
        super().stop()

    def watch(self, file: int, events: int, call: Callable[[int], None]) -> None:
        """Have ``call`` called with those of ``events`` for which a file is ready, in each turn in which it is.

        Not for a file that ``add_reader`` or the like knows. ``events`` are of ``selectors``; called again for the same
        file, this replaces what was said before.
        """
        selector = self._turn_selector
        if file in selector.get_map():
            selector.modify(file, events, _Watch(call))
        else:
            selector.register(file, events, _Watch(call))

    def unwatch(self, file: int) -> None:
        """Watch a file no more; it must be open still. What is under way in this turn may call once more."""
        self._turn_selector.unregister(file)

    def _report(self, fault: Exception) -> None:
        context: dict[str, Any] = {"message": "what was due in a turn failed", "exception": fault}
        self.call_exception_handler(context)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make the event loop of a server."""
    return TurnLoop()
