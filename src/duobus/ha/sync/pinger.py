# Generated from duobus/ha/aio/pinger.py by `make twins`; change that one.
"""Pinger: asks the primary whether an entity that has failed over takes messages again (PN9, PN13; I46).

The SDK takes half a second to open a link, wherever the service is: it looks for each step of the opening every 50
milliseconds. So a ping's link is opened before the ping is due, as often as it takes, and what the primary answered is
told before the link is closed. Without the first, senders would be back that half second later than one ping interval
after the primary is.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from azure.core.exceptions import AzureError

from duobus.ha.bounds import PINGS_WAITING_MAX
from duobus.ha.events import PingSent, Reporter
from duobus.ha.sync import tasks
from duobus.ha.transfer import ping

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusSender

    from duobus.clock import Clock, Entropy

#: A ping is given up after this time, or after the ping interval if that is longer.
PING_LIMIT_S: Final = 10.0
#: So long before a ping is due its link is opened; no longer than the ping interval.
AHEAD_MS: Final = 2_000
#: Between two tries to open it.
PAUSE_MS: Final = 250


class Pinger:
    """Sends pings by links of their own.

    Args:
        primary: Client of the namespace to ask.
        interval_ms: Time between two pings of an entity.
        reporter: Hears of each.
        clock: The time.
        entropy: Randomness, for the session of a ping.
        is_wanted: Tells whether an entity is failed over still.
        on_accepted: Called when the primary took a ping of an entity.
    """

    def __init__(
        self,
        primary: ServiceBusClient,
        interval_ms: int,
        reporter: Reporter,
        clock: Clock,
        entropy: Entropy,
        *,
        is_wanted: Callable[[str], bool],
        on_accepted: Callable[[str], None],
    ) -> None:
        self._primary = primary
        self._limit_s = max(PING_LIMIT_S, interval_ms / 1000)
        self._reporter = reporter
        self._clock = clock
        self._entropy = entropy
        self._is_wanted = is_wanted
        self._on_accepted = on_accepted
        self._waiting: Counter[str] = Counter()
        self._lock = tasks.lock()
        #: Ask for a ping so long before it is due.
        self.ahead_ms = min(AHEAD_MS, interval_ms)

    def ping(self, path: str, due_ms: int) -> None:
        """Send one ping when it is due; nothing if the entity is healthy by then."""
        with self._lock:
            if self._waiting[path] >= PINGS_WAITING_MAX:
                return
            self._waiting[path] += 1
        senders: list[ServiceBusSender] = []
        said: str | None
        try:
            try:
                with tasks.limit(self._limit_s + self.ahead_ms / 1000):
                    said = self._try(path, due_ms, senders)
            except Exception as error:  # noqa: BLE001 - it is told, and the next ping comes
                said = str(error) or type(error).__name__
            finally:
                with self._lock:
                    self._waiting[path] -= 1
                    if not self._waiting[path]:
                        del self._waiting[path]
            if said is not None:
                self._reporter.tell(PingSent(path, said))
                if not said:
                    self._on_accepted(path)
        finally:
            for sender in senders:
                _leave(sender)

    def _try(self, path: str, due_ms: int, senders: list[ServiceBusSender]) -> str | None:
        """Open a link and send; return an empty text, or None if that was no longer wanted.

        Args:
            path: The entity.
            due_ms: When.
            senders: The link is added, for the caller to close.
        """
        while True:
            sender = self._primary.get_queue_sender(path)
            senders.append(sender)
            try:
                tasks.within(self._limit_s, sender.__enter__)
            except Exception:
                _leave(senders.pop())
                left_ms = due_ms - self._clock.monotonic_ms()
                if left_ms <= 0:
                    raise
                tasks.sleep(min(PAUSE_MS, left_ms) / 1000)
                if not self._is_wanted(path):
                    return None
            else:
                break
        left_ms = due_ms - self._clock.monotonic_ms()
        if left_ms > 0:
            tasks.sleep(left_ms / 1000)
        if not self._is_wanted(path):
            return None
        sender.send_messages(ping(str(self._entropy.uuid())), timeout=self._limit_s)
        return ""


def _leave(sender: ServiceBusSender) -> None:
    # It is given up, whatever it says.
    with contextlib.suppress(AzureError, OSError):
        sender.close()
