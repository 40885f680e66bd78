"""Repeat work after errors that pass by themselves, in processes that may wait; and do work at the same time as other.

Such an error comes from a broker that restarts, or from a session that another receiver holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread
from typing import Any, Final

from duobus.clock import Clock
from duobus.ha.sdk_errors import Meaning, meaning
from duobus.spark.entities import told
from duobus.spark.errors import EntityError
from duobus.spark.offsets import Key

#: Attempts over a connection that breaks, with a wait between them, beside those of the SDK.
ATTEMPTS: Final = 6
WAIT_S: Final = 1.0
#: Between two attempts at a session that somebody holds.
SESSION_WAIT_S: Final = 0.25

#: What passes by itself, or when the broker is less busy.
_TRANSIENT: Final = frozenset({Meaning.RETRY, Meaning.WAIT})

_log = logging.getLogger("duobus.spark")


def retried(key: Key, work: Callable[[], Any], clock: Clock, session_timeout_s: float) -> Any:
    """Do idempotent work, again when a connection broke or another receiver holds the session.

    Args:
        key: The place of the work, for error texts.
        work: Does the work.
        clock: Time.
        session_timeout_s: How long to try for a session.

    Raises:
        EntityError: The work cannot be done; the text says why.
        ServiceBusError: The last attempt failed.
    """
    from azure.servicebus import exceptions

    until_ms = clock.monotonic_ms() + int(session_timeout_s * 1000)
    attempt = 0
    while True:
        try:
            with told(key.entity):
                return work()
        except exceptions.SessionCannotBeLockedError:
            if clock.monotonic_ms() >= until_ms:
                raise EntityError(
                    f"The session '{key.session}' of '{key.entity}' is held by another receiver, and was not let go "
                    f"for {session_timeout_s:g} s. exclusive=true says that nobody else takes its sessions."
                ) from None
            pause(SESSION_WAIT_S)
        except exceptions.ServiceBusError as error:
            is_transient = meaning(error) in _TRANSIENT or isinstance(error, exceptions.SessionLockLostError)
            attempt += 1
            if not is_transient or attempt >= ATTEMPTS:
                raise
            _log.info("'%s' does not answer; attempt %d of %d", key.entity, attempt, ATTEMPTS)
            pause(WAIT_S)


def pause(seconds: float) -> None:
    """Wait, in a process that has nothing else to do."""
    Event().wait(seconds)


class BackgroundWork:
    """Work that is under way in a thread of its own.

    The thread is a daemon: a process that has to end does not wait for a broker that does not answer.

    Args:
        work: The work.
    """

    __slots__ = ("_error", "_result", "_thread", "_work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._result: Any = None
        self._error: Exception | None = None
        self._thread = Thread(target=self._do, name="background", daemon=True)
        self._thread.start()

    def _do(self) -> None:
        try:
            self._result = self._work()
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits for the result
            self._error = error

    def wait(self) -> None:
        """Wait for the end of the work."""
        self._thread.join()

    def result(self) -> Any:
        """Wait for the end of the work; return what it returned, or raise what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._result


# Not more than so many messages a second.


class RateLimit:
    """Delays a sender that has sent too much too soon.

    Args:
        rate: Messages a second.
        clock: Time.
        pause: Waits for a number of seconds.
    """

    __slots__ = ("_clock", "_due_ms", "_pause", "_rate")

    def __init__(self, rate: int, clock: Clock, pause: Callable[[float], None]) -> None:
        self._rate = rate
        self._clock = clock
        self._pause = pause
        self._due_ms: float | None = None

    def sent(self, count: int) -> None:
        """Return when more may be sent after ``count`` messages; unused rate of earlier times does not count."""
        now_ms = self._clock.monotonic_ms()
        due_ms = max(now_ms, now_ms if self._due_ms is None else self._due_ms) + count * 1000 / self._rate
        self._due_ms = due_ms
        if due_ms > now_ms:
            self._pause((due_ms - now_ms) / 1000)
