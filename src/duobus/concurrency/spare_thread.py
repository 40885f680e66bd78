"""SpareThread: goes on with an event loop whose own thread is held up by a blocking call.

A commit of one message is an append and a sync of 0.1 ms. To hand it to another thread and to be told of its end costs
as much again (decision 0078), so the loop's thread makes such calls itself. A disk may hang, though, and must stop
nobody (I9, PE4). So a second thread looks every AFTER_S, and where the same call is still under way, it runs the loop:

    loop's own thread   ── turns ── call ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ back: waits for the loop ── turns ──
    spare thread                      (AFTER_S)  ── turns ─────────────── gives it back ── looks ──

Blocking calls are made at the end of a turn, between two callbacks, so that no callback is half done when the
threads change. The spare thread itself makes no blocking calls. Signals come through the file that
asyncio reads, whichever thread runs the loop.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, Protocol

#: A call that takes longer holds up the loop no more than twice as long. A small commit takes 0.1 to 0.3 ms.
AFTER_S: Final = 0.02
#: After so many looks without a call the spare thread sleeps until the next one.
LOOKS: Final = 5


class BlockingCall(Protocol):
    """What is to be run in the loop's own thread although it may block.

    Attributes:
        yields: It is to be done elsewhere if the loop has anything else to do.
    """

    yields: bool

    def run(self) -> None:
        """Do it; called at the end of a turn, by no callback. Raises nothing, and touches nothing of the loop."""

    def finish(self) -> None:
        """Announce what came of it; called in the loop, behind ``run``."""

    def pass_on(self) -> None:
        """Have it done elsewhere; called in the loop."""


class SpareThread:
    """Runs blocking calls for a loop in the loop's own thread, and the loop in another one while that takes long.

    Args:
        run_loop: Runs the loop in the thread that calls this, until what it is given says True or the loop is to stop.
        wake: Wakes the loop, if it waits for something; called by its own thread.
        after_s: How long a call may hold up the loop, in seconds; twice that at the most.

    Attributes:
        has_loop: The spare thread runs the loop.
    """

    def __init__(
        self, run_loop: Callable[[Callable[[], bool]], None], wake: Callable[[], object], after_s: float = AFTER_S
    ) -> None:
        self.has_loop = False
        self._run_loop = run_loop
        self._wake = wake
        self._after_s = after_s
        # Held for a few steps each time; who has the loop is decided under it.
        self._lock = threading.Lock()
        self._begun = 0
        self._is_blocked = False
        self._is_asleep = False
        self._bell: SimpleQueue[bool] = SimpleQueue()
        # The call has come back, so that the loop's own thread waits for the loop.
        self._is_wanted = False
        self._back: SimpleQueue[None] = SimpleQueue()
        # The spare thread gives the loop back, with what a callback has raised there, if it is to be raised again.
        self._returned: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    # -- in the loop's own thread -------------------------------------------------------------------------------

    def run(self, call: BlockingCall) -> bool:
        """Run a blocking call, and return whether the spare thread has had the loop meanwhile.

        Raises:
            BaseException: What a callback raised there and an event loop passes on: SystemExit, KeyboardInterrupt.
        """
        self._begun += 1
        self._is_blocked = True
        if self._is_asleep:
            self._is_asleep = False
            self._bell.put(True)
        elif self._thread is None:
            self.start()
        call.run()
        with self._lock:
            self._is_blocked = False
            if not self.has_loop:
                return False
            self._is_wanted = True
        self._wake()
        self._back.put(None)
        fault = self._returned.get()
        if fault is not None:
            raise fault
        return True

    def close(self) -> None:
        """The loop is closed: the spare thread ends."""
        if self._thread is not None:
            self._bell.put(False)
            self._thread.join()

    def start(self) -> bool:
        """Start the spare thread, if it does not run; return whether it does: the system may have no more threads."""
        if self._thread is not None:
            return True
        # The hooks are what asyncio sets for each thread that runs a loop.
        args = (self._watch, sys.get_asyncgen_hooks())
        # A daemon: if the loop is never closed, a thread that only looks must not keep the interpreter from ending.
        thread = threading.Thread(target=contextvars.copy_context().run, args=args, name="spare-loop", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    # -- in the spare thread ------------------------------------------------------------------------------------

    def _watch(self, hooks: sys._asyncgen_hooks) -> None:
        sys.set_asyncgen_hooks(*hooks)
        seen = looks = 0
        while True:
            self._is_asleep = looks >= LOOKS
            # Who begins a call after that line rings; a call that began before it is seen in this one.
            may_sleep = self._is_asleep and self._begun == seen
            try:
                if not self._bell.get(timeout=None if may_sleep else self._after_s):
                    return
            except Empty:
                with self._lock:
                    self.has_loop = self._is_blocked and self._begun == seen
                if self.has_loop:
                    self._go_on()
                looks = looks + 1 if self._begun == seen else 0
            else:
                looks = 0
            seen = self._begun

    def _go_on(self) -> None:
        """Run the loop until its own thread wants it, and give it back."""
        fault: BaseException | None = None
        try:
            self._run_loop(lambda: self._is_wanted)
        except BaseException as error:  # noqa: BLE001 - not swallowed: the loop's own thread raises it
            fault = error
        # That thread may be held up still, where the loop is to stop.
        self._back.get()
        self.has_loop = self._is_wanted = False
        self._returned.put(fault)
