"""The event loop of a server: what one turn reads is worked off at the end of that turn, before the system is asked.

A commit begins, and each connection is written once, when all that was ready has been read. As callbacks of
``call_soon`` these would run in one more round of asyncio's loop: a handle and a context for each, and a question for
ready sockets between. Here they stand in a line of their own (``TurnLoop.call_at_turn_end``), and the selector works it
off before it asks (decision 0068).

Files that are *watched* (``TurnLoop.watch``), as those of plain connections are, are called by the selector itself as
soon as they are ready: for them, too, there is no handle, no context and no line (decision 0071). So a turn in which
nothing else happens does not leave the selector:

    select ─ work off the line ─ ask the system ─ call what watches ─ work off the line ─ ask ─ ... ─ return

It returns when something is ready that asyncio has to see to, when anything was asked of the loop (a callback, a timer,
the end), and when the time is over that asyncio would wait.

A commit of a message or two is made by the loop's own thread, when the line has been worked off: this is a *blocking
call* (``TurnLoop.block``). Where one takes long, another thread runs the loop (``concurrency/spare_thread.py``,
decision 0078). Before a commit is begun in a turn that has read one file, the system is asked once more: a completion
and the next send, which come apart by some microseconds, share a commit then.

Of what others give to ``call_soon``, the question before that round is left out: it costs a system call and offers the
interpreter to another thread, and the answer changes nothing, for what the system finds is run behind the callbacks
that wait already. The next question never is: a loop that always has something to do asks before every second turn
(decision 0060).
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVarTuple, Unpack

from duobus.concurrency.spare_thread import BlockingCall, SpareThread

Ts = TypeVarTuple("Ts")

#: Where more files are ready at once, the loop has more to do than to make a call that another thread could make.
FEW: Final = 8


class TurnSelector(selectors.DefaultSelector):
    """A selector that works off a line before it asks, calls what watches a file, and passes over some questions.

    Attributes:
        line: What is to be called at the end of this turn.
        blocking_calls: What is to be run when the line is empty, one after the other.
        run_blocking: Runs one of them, and says whether another thread has had the loop meanwhile.
        is_busy: More than FEW files were ready when it asked last.
        is_asked: Something was asked of the loop since it asked last: what it wants to know now is out of date.
        report: Called with what a callback has raised.
        now_s: The loop's time, in seconds.
    """

    _may_pass = False

    def __init__(self) -> None:
        super().__init__()
        self.line: list[Callable[[], None]] = []
        self.blocking_calls: deque[BlockingCall] = deque()
        self.run_blocking: Callable[[BlockingCall], bool] = _run
        self.is_busy = False
        # There are blocking calls, and one file was ready: another look may find what is to join the next call.
        self._has_blocked = False
        self._may_join = False
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
            if self._may_join and self.line and (others := self._join()):
                return others
            if self.line or self.blocking_calls:
                self._work_off()
                if self.blocking_calls and not self.line and (answer := self._block()) is not None:
                    return answer
                if self.is_asked or self.line or self.blocking_calls:
                    timeout = 0
                elif deadline_s is not None:
                    timeout = max(0, deadline_s - self.now_s())
            if self._may_pass and timeout is not None and timeout <= 0:
                self._may_pass = False
                return []
            self._may_pass = True
            ready = super().select(timeout)
            self.is_busy = len(ready) > FEW
            self._may_join = self._has_blocked and len(ready) == 1
            others = self._call_watching(ready)
            if others or self.is_asked or not ready or (timeout is not None and timeout <= 0):
                return others
            if deadline_s is not None and not self.line:
                timeout = max(0, deadline_s - self.now_s())

    def _join(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Ask once more, without waiting: what is found joins the commit that the line is about to begin."""
        self._may_join = False
        return self._call_watching(super().select(0))

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

    def _block(self) -> list[tuple[selectors.SelectorKey, int]] | None:
        """See to a blocking call and to what its outcome has put in line; what ``select`` is to return, if anything."""
        call = self.blocking_calls.popleft()
        self._has_blocked = True
        if call.yields and (ready := super().select(0)):
            call.pass_on()
            return self._call_watching(ready)
        try:
            had_loop = self.run_blocking(call)
        finally:
            self._finish(call)
        if had_loop:
            return []
        if self.line:
            self._work_off()
        return None

    def _finish(self, call: BlockingCall) -> None:
        try:
            call.finish()
        except Exception as fault:  # noqa: BLE001 - a fault of ours must not keep the others back
            self.report(fault)

    def pass_on(self) -> None:
        """Have the blocking calls done elsewhere: the loop's own thread is held up by one."""
        while self.blocking_calls:
            self.blocking_calls.popleft().pass_on()

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


def _nothing() -> None:
    """What wakes a loop."""


def _run(call: BlockingCall) -> bool:
    call.run()
    return False


class TurnLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with a line of what is called at the end of a turn, and files that are watched without handles.

    Attributes:
        call_at_turn_end: Has a callback without arguments called once, at the end of this turn, in the order of these
            calls. What is put in line by one of them is called at the end of the next turn, which comes at once.
    """

    if TYPE_CHECKING:
        # Of asyncio's loop in all versions, and in no list of its types. Which thread runs the loop: in debug mode it
        # refuses what others ask for.
        _thread_id: int | None

        def _run_once(self) -> None:
            """Run one turn."""

    def __init__(self) -> None:
        # By the time asyncio has counted how long nothing is due, what is called in line may have asked for something.
        self._turn_selector = TurnSelector()
        self._turn_selector.report = self._report
        self._turn_selector.now_s = self.time
        self.call_at_turn_end: Callable[[Callable[[], None]], None] = self._turn_selector.line.append
        super().__init__(self._turn_selector)
        self._has_to_stop = False
        self._spare_thread = SpareThread(self._go_on, partial(self.call_soon_threadsafe, _nothing))
        self._turn_selector.run_blocking = self._spare_thread.run

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
        self._turn_selector.is_asked = self._has_to_stop = True
        super().stop()

    def run_forever(self) -> None:
        """See ``AbstractEventLoop.run_forever``."""
        try:
            super().run_forever()
        finally:
            self._has_to_stop = False

    def close(self) -> None:
        """See ``AbstractEventLoop.close``."""
        super().close()
        self._spare_thread.close()

    def may_block(self) -> bool:
        """Whether ``block`` may be called: not while such a call holds up the loop, or much else is to do.

        Nor where the system has no more threads, of which the loop could go on in one.
        """
        return not (self._turn_selector.is_busy or self._spare_thread.has_loop) and self._spare_thread.start()

    def block(self, call: BlockingCall) -> None:
        """Have a call run by the loop's own thread when all is done that this turn has brought, if ``may_block``.

        Meant for what takes less than to tell another thread of it. Where it takes long all the same, the loop goes on
        in another thread.
        """
        self._turn_selector.blocking_calls.append(call)

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

    def _go_on(self, is_over: Callable[[], bool]) -> None:
        """Run the loop in the thread that calls this, as its own thread would; see ``SpareThread``."""
        own = self._thread_id
        self._thread_id = threading.get_ident()
        events._set_running_loop(self)
        try:
            self._turn_selector.pass_on()
            while not (is_over() or self._has_to_stop):
                self._run_once()
        finally:
            events._set_running_loop(None)
            self._thread_id = own

    def _report(self, fault: Exception) -> None:
        context: dict[str, Any] = {"message": "what was due in a turn failed", "exception": fault}
        self.call_exception_handler(context)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make the event loop of a server."""
    return TurnLoop()
