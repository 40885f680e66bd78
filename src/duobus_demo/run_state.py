"""What the workers of one run share: feed, message account, and the words go, wait and stop."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from duobus.clock import Clock
from duobus.testing.server import DemoFailed
from duobus_demo.corpus import Outgoing
from duobus_demo.dispositions import DeferredNumbers, Dispositions
from duobus_demo.feed import Feed
from duobus_demo.message_account import MessageAccount

#: How often a waiting worker looks again.
POLL_S = 0.01

#: Pause before an operation is tried again after the SDK gave up on it.
RETRY_S = 0.1


class RunState:
    """Shared by all workers of one run.

    Args:
        queue: Name of the queue.
        feed: What is sent.
        account: Where everything is entered.
        dispositions: What receivers do.
        clock: Time, for the limits.
        limit_s: The whole run may take this long; every wait ends by then.
    """

    def __init__(
        self, queue: str, feed: Feed, account: MessageAccount, dispositions: Dispositions, clock: Clock, limit_s: float
    ) -> None:
        self.queue = queue
        self.feed = feed
        self.account = account
        self.dispositions = dispositions
        self.deferred = DeferredNumbers()
        self.stopping = threading.Event()
        self.may_receive = threading.Event()
        self.may_receive.set()
        self.may_fetch_deferred = threading.Event()
        self.may_fetch_deferred.set()
        self.clock = clock
        self._deadline_ms = clock.monotonic_ms() + int(limit_s * 1000)
        self._limit_s = limit_s
        self._failure: str | None = None

    def next_message(self) -> Outgoing | None:
        """Return the next message, waiting while the feed holds it back; None when there will be none."""
        while not self.stopping.is_set():
            message = self.feed.take()
            if message is not None or self.feed.is_finished:
                return message
            self.stopping.wait(POLL_S)
        return None

    def fail(self, worker: str, error: BaseException) -> None:
        """A worker ended by an error that nobody expected; the first one is kept."""
        if self._failure is None:
            text = "".join(traceback.format_exception(error))
            self._failure = f"{worker} ended with an unexpected error.\n{text}"

    def check(self) -> None:
        """Raise DemoFailed if a worker failed or the time for the whole run is over."""
        if self._failure is not None:
            raise DemoFailed(self._failure)
        if self.clock.monotonic_ms() > self._deadline_ms:
            raise DemoFailed(f"The run took longer than {self._limit_s:g} s and was ended.")

    def wait_until(self, is_reached: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for a condition.

        Raises:
            DemoFailed: It did not come within ``timeout_s`` or the run's limit, or a worker failed.
        """
        deadline_ms = self.clock.monotonic_ms() + int(timeout_s * 1000)
        while not is_reached():
            self.check()
            if self.clock.monotonic_ms() > deadline_ms:
                raise DemoFailed(f"Waited {timeout_s:g} s in vain: {what}.")
            self.stopping.wait(POLL_S)
