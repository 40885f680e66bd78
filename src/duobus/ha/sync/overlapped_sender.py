# Generated from duobus/ha/aio/overlapped_sender.py by `make twins`; change that one.
"""OverlappedSender: many sends on their way at the same time, bounded, and no outcome dropped (TL3 to TL5)."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from duobus.concurrency import sync as tasks
from duobus.ha.errors import SendsFailed
from duobus.ha.options import FAILURES_MAX, OVERLAP_DEFAULT, OVERLAP_MAX
from duobus.ha.sdk import prompt

if TYPE_CHECKING:
    from types import TracebackType

_log = logging.getLogger("duobus.ha")


class Sending:
    """A send that is on its way.

    Attributes:
        message: The message, or list of messages, that was given to ``send``.
        error: The error of the send; None when it was accepted or is not done.
    """

    def __init__(self, owner: OverlappedSender, message: Any) -> None:
        self.message = message
        self.error: BaseException | None = None
        self.done = tasks.Signal()
        self._owner = owner

    def accepted(self) -> None:
        """Wait until the namespace has accepted the message.

        Raises:
            ServiceBusError: The namespace has not accepted it. ``flush`` does not raise this error again.
        """
        self.done.wait()
        if self.error is not None:
            self._owner._seen(self)
            raise self.error


class OverlappedSender:
    """Overlaps sends: each send waits for its own answer, and not for the sends before it.

    A single send takes a round trip and the time to store the message. Overlapped sends wait for that time together and
    not one after the other. Messages that are on their way at the same time do not keep their order; send messages that
    need an order as a list, or one after the other.

    Leaving ``with``, and ``flush``, wait for all outcomes and raise ``SendsFailed`` with the failures that no
    caller has read.

    Args:
        make_sender: Makes a sender of the SDK, or of this package; called for each send on its way at the same time.
        in_flight: Sends on their way at the same time, 1 to 1,000; the next one waits.
    """

    def __init__(self, make_sender: Callable[[], Any], in_flight: int = OVERLAP_DEFAULT) -> None:
        if not 1 <= in_flight <= OVERLAP_MAX:
            raise ValueError(f"in_flight has to be 1 to {OVERLAP_MAX:,}, not {in_flight:,}")
        self._make_sender = make_sender
        self._room = tasks.Room(in_flight)
        self._idle: deque[Any] = deque()
        self._in_progress: set[Sending] = set()
        self._failed: dict[int, Sending] = {}
        #: Of both; held for a moment only, and needed by the twin, whose sends are threads.
        self._lock = threading.Lock()

    def __enter__(self) -> OverlappedSender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.flush()
        except SendsFailed as failed:
            if error is None:
                raise
            _log.error("%s, on the way out because of %r", failed, error)
        finally:
            self.close()

    def send(self, message: Any, **kwargs: Any) -> Sending:
        """Begin to send, when there is room.

        Args:
            message: Anything that the sender takes; a list is one send.
            **kwargs: Further arguments of the sender.

        Raises:
            SendsFailed: 1,000 sends have failed and no caller has read the outcomes; this message was not sent.
        """
        if len(self._failed) >= FAILURES_MAX:
            self._raise_failed()
        self._room.enter()
        sending = Sending(self, message)
        self._in_progress.add(sending)
        tasks.spawn(self._run, sending, kwargs, name="duobus send")
        return sending

    def flush(self) -> None:
        """Wait for the outcomes of all sends so far.

        Raises:
            SendsFailed: Some sends have failed; each failure is raised once.
        """
        for sending in list(self._in_progress):
            sending.done.wait()
        self._raise_failed()

    def close(self) -> None:
        """Close the senders. Call ``flush`` before."""
        for sending in list(self._in_progress):
            sending.done.wait()
        while self._idle:
            _close(self._idle.pop())

    def _run(self, sending: Sending, kwargs: dict[str, Any]) -> None:
        sender: Any = None
        try:
            with self._lock:
                sender = self._idle.pop() if self._idle else None
            if sender is None:
                sender = self._make_sender()
            sender.send_messages(sending.message, **kwargs)
        except BaseException as error:
            # The outcome belongs to the caller; of one that was cancelled it is not known.
            with self._lock:
                sending.error = error
                self._failed[id(sending)] = sending
            if sender is not None:
                _close(sender)
            if not isinstance(error, Exception):
                raise
        else:
            self._idle.append(sender)
        finally:
            # In this order: whoever waits for the outcome finds it, and room.
            self._in_progress.discard(sending)
            self._room.leave()
            sending.done.set()

    def _seen(self, sending: Sending) -> None:
        with self._lock:
            self._failed.pop(id(sending), None)

    def _raise_failed(self) -> None:
        with self._lock:
            failed, self._failed = self._failed, {}
        if failed:
            raise SendsFailed([(one.message, one.error) for one in failed.values() if one.error is not None])


def _close(sender: Any) -> None:
    # It is given up, whatever it says.
    with contextlib.suppress(Exception):
        prompt(sender).close()
