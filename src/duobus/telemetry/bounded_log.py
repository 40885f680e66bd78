"""Lines about what peers do wrong: so many a second at most, and nothing of what they sent.

Whoever may send a bad request may send a million of them; a log that tells of each fills the disk of those who did
nothing wrong (I61, I66).
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Final

from duobus.telemetry.logs import Log

#: Lines about bad requests that come at once, and a second afterwards.
BURST_MAX: Final = 1_000
LINES_S: Final = 50
#: Places in the code that a line about a fault names.
PLACES_MAX: Final = 8


class BoundedLog:
    """Writes to a log as long as there are not too many lines; then it says how many it left out.

    Args:
        log: Where the lines go.
        now_ms: A clock that does not go back.
    """

    def __init__(self, log: Log, now_ms: Callable[[], int]) -> None:
        self._log = log
        self._now_ms = now_ms
        self._left = float(BURST_MAX)
        self._filled_ms = now_ms()
        self._skipped = 0

    def debug(self, text: str, /, **fields: Any) -> None:
        """See Log; not bounded, as nobody has it on in earnest."""
        self._log.debug(text, **fields)

    def info(self, text: str, /, **fields: Any) -> None:
        """See Log."""
        self._write(self._log.info, text, fields)

    def warning(self, text: str, /, **fields: Any) -> None:
        """See Log."""
        self._write(self._log.warning, text, fields)

    def error(self, text: str, /, **fields: Any) -> None:
        """See Log."""
        self._write(self._log.error, text, fields)

    def _write(self, write: Callable[..., None], text: str, fields: dict[str, Any]) -> None:
        now_ms = self._now_ms()
        self._left = min(BURST_MAX, self._left + (now_ms - self._filled_ms) * LINES_S / 1000)
        self._filled_ms = now_ms
        if self._left < 1:
            self._skipped += 1
            return
        self._left -= 1
        if self._skipped:
            self._log.warning("lines left out", number=self._skipped, reason="too many requests are refused")
            self._skipped = 0
        write(text, **fields)


class ServerLog:
    """What the HTTP server is given as its logger: it would write each bad head down, with a traceback."""

    def __init__(self, log: BoundedLog) -> None:
        self._log = log

    def debug(self, *args: Any, **fields: Any) -> None:
        """Heads that are no HTTP, clients that went away."""

    info = debug

    def warning(self, text: str, *args: Any, **fields: Any) -> None:
        """A constant text; what is put into it is not told."""
        self._log.warning("http server", reason=text)

    error = warning

    def exception(self, text: str, *args: Any, exc_info: object = None, **fields: Any) -> None:
        """A head that cannot be read, or a fault: what kind, and where it was met."""
        if isinstance(exc_info, BaseException):
            status = getattr(exc_info, "code", None)
            if isinstance(status, int) and 400 <= status < 500:
                self._log.info("bad request", kind=type(exc_info).__name__, status=status)
            else:
                self._log.error("http server failed", kind=type(exc_info).__name__, places=places(exc_info))
        else:
            self._log.error("http server failed", reason=text)


def places(error: BaseException) -> str:
    """Where in the code an exception was met, the innermost place first; nothing of its text or its values."""
    frames = traceback.extract_tb(error.__traceback__)[-PLACES_MAX:]
    return " < ".join(f"{PurePath(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))


def tell_faults(loop: asyncio.AbstractEventLoop, log: BoundedLog) -> None:
    """Have the loop tell of exceptions that nobody caught by kind and place; it would print texts and objects."""

    def handler(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        kind = type(error).__name__ if isinstance(error, BaseException) else ""
        where = places(error) if isinstance(error, BaseException) else ""
        log.error("fault in the loop", reason=str(context.get("message")).partition(":")[0], kind=kind, places=where)

    loop.set_exception_handler(handler)
