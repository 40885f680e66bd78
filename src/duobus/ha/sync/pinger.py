# Generated from duobus/ha/aio/pinger.py by `make twins`; change that one.
"""Pinger: asks the primary whether an entity that has failed over takes messages again (PN9, PN13; I46).

The SDK takes half a second to open a link, wherever the service is, because it polls each step of the opening every 50
milliseconds. So the link of a ping is opened before the ping is due, with as many attempts as necessary, and the answer
of the primary is reported before the link is closed. Otherwise senders would return to the primary half a second later.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from duobus.concurrency import sync as tasks
from duobus.ha.events import PingSent, Reporter
from duobus.ha.failover import Place
from duobus.ha.options import PINGS_WAITING_MAX
from duobus.ha.outage_scope import KeyGroup
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
        reporter: Gets an event for each ping.
        clock: The time.
        entropy: Randomness, for the session of a ping.
        is_wanted: Returns whether an entity is still failed over.
        on_accepted: Called when the primary took a ping of an entity.
        key_of: Returns a key of a group that begins with the given text; None if the group is healthy again.
    """

    def __init__(
        self,
        primary: ServiceBusClient,
        interval_ms: int,
        reporter: Reporter,
        clock: Clock,
        entropy: Entropy,
        *,
        is_wanted: Callable[[Place], bool],
        on_accepted: Callable[[Place], None],
        key_of: Callable[[KeyGroup, str], str | None],
    ) -> None:
        self._primary = primary
        self._limit_s = max(PING_LIMIT_S, interval_ms / 1000)
        self._reporter = reporter
        self._clock = clock
        self._entropy = entropy
        self._is_wanted = is_wanted
        self._on_accepted = on_accepted
        self._key_of = key_of
        self._waiting: Counter[Place] = Counter()
        self._lock = tasks.lock()
        #: Ask for a ping so long before it is due.
        self.ahead_ms = min(AHEAD_MS, interval_ms)

    def ping(self, place: Place, due_ms: int) -> None:
        """Send one ping when it is due; nothing if the entity, or the group of its keys, is healthy by then."""
        path, fragment = place if isinstance(place, KeyGroup) else (place, "")
        with self._lock:
            if self._waiting[place] >= PINGS_WAITING_MAX:
                return
            self._waiting[place] += 1
        senders: list[ServiceBusSender] = []
        said: str | None
        try:
            try:
                with tasks.limit(self._limit_s + self.ahead_ms / 1000):
                    said = self._try(place, due_ms, senders)
            except Exception as error:  # noqa: BLE001 - it is told, and the next ping comes
                said = str(error) or type(error).__name__
            finally:
                with self._lock:
                    self._waiting[place] -= 1
                    if not self._waiting[place]:
                        del self._waiting[place]
            if said is not None:
                self._reporter.tell(PingSent(path, said, fragment))
                if not said:
                    self._on_accepted(place)
        finally:
            for sender in senders:
                _leave(sender)

    def _try(self, place: Place, due_ms: int, senders: list[ServiceBusSender]) -> str | None:
        """Open a link and send; return an empty text, or None if that was no longer wanted.

        Args:
            place: The entity, or the group of its keys.
            due_ms: When.
            senders: The link is added, for the caller to close.
        """
        path = place.entity if isinstance(place, KeyGroup) else place
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
                if not self._is_wanted(place):
                    return None
            else:
                break
        left_ms = due_ms - self._clock.monotonic_ms()
        if left_ms > 0:
            tasks.sleep(left_ms / 1000)
        if not self._is_wanted(place):
            return None
        fresh = str(self._entropy.uuid())
        # Only the fragment itself can say that it is back: the others have been there all the time.
        key = self._key_of(place, fresh) if isinstance(place, KeyGroup) else None
        sender.send_messages(ping(key or fresh, is_key=key is not None), timeout=self._limit_s)
        return ""


def _leave(sender: ServiceBusSender) -> None:
    # It is given up, whatever it says.
    with contextlib.suppress(Exception):
        sender.close()
