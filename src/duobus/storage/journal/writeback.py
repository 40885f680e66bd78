"""The thread that brings a journal's commits to SQLite; ``JournalStore`` says what it does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

#: Seconds between looks while commits wait; while none does, the thread sleeps.
STEP_S: Final = 0.1


class WritebackThread:
    """Calls ``look`` from time to time while that returns True, and else when it is woken.

    Args:
        look: Brings over what is due; whether anything still waits.

    Attributes:
        bell: Set by whoever wants the thread to look now.
    """

    def __init__(self, look: Callable[[], bool]) -> None:
        self._look = look
        self.bell = threading.Event()
        self._is_ended = False
        # Not a daemon: the interpreter must not leave in the middle of a transaction.
        self._thread = threading.Thread(target=self._run, name="journal", daemon=False)

    def start(self) -> None:
        """Begin; call once."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread has begun and not ended."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End, and wait for that; not to be called with a lock that ``look`` takes."""
        self._is_ended = True
        self.bell.set()
        self._thread.join()

    def _run(self) -> None:
        is_more = False
        while True:
            self.bell.wait(STEP_S if is_more else None)
            self.bell.clear()
            if self._is_ended:
                return
            is_more = self._look()
