"""Part ``queue``: the standard library through a partitioned queue, with three kills in the middle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver

from duobus.clock import Clock
from duobus.testing.server import ServerProcess, queues_config
from duobus_demo.clients import UNKNOWN_OUTCOME, Endpoint, close_quietly, endpoints_of
from duobus_demo.corpus import Outgoing, standard_library
from duobus_demo.dispositions import Dispositions
from duobus_demo.feed import Feed
from duobus_demo.kills import freeze_in_the_middle, kill_failures, play_with_server
from duobus_demo.message_account import MessageAccount, loss_failures
from duobus_demo.progress import Watcher
from duobus_demo.registry import Scenario
from duobus_demo.run_state import RunState
from duobus_demo.workers.traffic import Traffic, WorkerCounts

QUEUE = "stdlib"

#: Kills and abandons must not send messages to the dead-letter queue that do not belong there.
_QUEUE_PROPERTIES = {
    "EnablePartitioning": True,
    "LockDuration": "PT30S",
    "MaxDeliveryCount": 1000,
    "DefaultMessageTimeToLive": "PT1H",
}

KILLS = 3

#: Each kill has to meet at least so many locks that are held and sends that are not settled.
LOCKS_HELD_MIN = 100
UNSETTLED_SENDS_MIN = 1

#: Messages that are kept back for the moment of a kill, so that senders are busy then.
_RESERVE = 100
_PHASE_TIMEOUT_S = 60.0
#: Asked for beyond LOCKS_HELD_MIN, because some of the locks may be lost to a connection that breaks.
_HELD_TARGET = 120
#: What a lock must have left to count before a kill, which waits for a send that is on its way.
_LASTING_MS = 15_000


class _Holder:
    """A receiver that takes messages and settles none of them, so that their locks are held when the broker dies."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._client: ServiceBusClient = endpoint.client()
        self._receiver: ServiceBusReceiver | None = None
        self._held: list[ServiceBusReceivedMessage] = []

    def hold(self, run: RunState, feed: Feed) -> None:
        """Take messages until there are enough; more are sent when there are none."""
        self._receiver = self._client.get_queue_receiver(run.queue)
        run.wait_until(
            lambda: self._has_enough(run, feed), _PHASE_TIMEOUT_S, f"{LOCKS_HELD_MIN} messages to hold the locks of"
        )

    def count(self, at_ms: int) -> int:
        """Return how many locks last longer than until ``at_ms``, wall clock."""
        return sum(_lasts(message, at_ms) for message in self._held)

    def drop(self) -> None:
        """Forget the messages, whose locks ended with the broker."""
        self._held.clear()
        if self._receiver is not None:
            close_quietly(self._receiver)
            self._receiver = None

    def close(self) -> None:
        """End the client."""
        self.drop()
        self._client.close()

    def _has_enough(self, run: RunState, feed: Feed) -> bool:
        assert self._receiver is not None
        # Where messages come slowly the first locks have run out before the last are there.
        soon_ms = run.clock.now_ms() + _LASTING_MS
        self._held = [message for message in self._held if _lasts(message, soon_ms)]
        wanted = _HELD_TARGET - len(self._held)
        try:
            found = self._receiver.receive_messages(max_message_count=wanted, max_wait_time=1)
        except UNKNOWN_OUTCOME:
            return False
        self._held += found
        if not found:
            # Receivers that were told to stand by have taken what they had asked for before.
            feed.allow(feed.taken + wanted)
        return len(self._held) >= LOCKS_HELD_MIN


def _lasts(message: ServiceBusReceivedMessage, at_ms: int) -> bool:
    end = message.locked_until_utc
    return end is not None and end.timestamp() * 1000 > at_ms


class QueueScenario:
    """One run of this part.

    Args:
        server: The broker, running, with QUEUE in its configuration.
        messages: What to send.
        watcher: Told how it goes.
        clock: Time.
        limit_s: The part may take this long.
        pool: How many workers.
    """

    def __init__(
        self,
        server: ServerProcess,
        messages: Sequence[Outgoing],
        watcher: Watcher,
        clock: Clock,
        limit_s: float,
        pool: WorkerCounts = WorkerCounts(),  # noqa: B008 - immutable
    ) -> None:
        self._server = server
        self._total = len(messages)
        self._watcher = watcher
        self._clock = clock
        self._limit_s = limit_s
        self._feed = Feed(messages)
        self._account = MessageAccount(clock)
        self._run = RunState(QUEUE, self._feed, self._account, Dispositions(), clock, limit_s)
        self._endpoints = endpoints_of(server)
        self._pool = pool
        self._kills: list[dict[str, Any]] = []

    def play(self) -> dict[str, Any]:
        """Send, kill, drain; return the result's members.

        Raises:
            DemoFailed: Something did not happen in its time.
        """
        began_ms = self._clock.monotonic_ms()
        with Traffic(self._run, self._endpoints, self._pool) as traffic:
            # What is deferred early has to survive two kills before anybody asks for it.
            self._run.may_fetch_deferred.clear()
            for number in range(1, KILLS + 1):
                self._send_until(number * self._total // (KILLS + 1) - _RESERVE)
                self._kill(number)
                if number == KILLS - 1:
                    self._run.may_fetch_deferred.set()
            self._feed.allow(None)
            self._wait(lambda: self._account.settled_sends >= self._total, "all messages are sent")
            left = traffic.drain(self._limit_s, self._show)
        return {
            "part": "queue",
            **self._account.report(),
            "left": left,
            "kills": self._kills,
            "missing": self._account.missing()[:10],
            "altered_how": dict(list(self._account.altered().items())[:10]),
            "seconds": round((self._clock.monotonic_ms() - began_ms) / 1000, 2),
        }

    def _send_until(self, count: int) -> None:
        """Let ``count`` messages be sent in all; the last of them with the receivers standing by."""
        half = (count + self._account.settled_sends) // 2
        self._feed.allow(half)
        self._wait(lambda: self._account.settled_sends >= half, f"{half} messages are sent")
        # From here on they pile up for the holder.
        self._run.may_receive.clear()
        self._feed.allow(count)
        self._wait(lambda: self._account.settled_sends >= count, f"{count} messages are sent")

    def _kill(self, number: int) -> None:
        run, server = self._run, self._server
        holder = _Holder(self._endpoints[0])
        try:
            holder.hold(run, self._feed)
            run.may_receive.set()
            self._feed.allow(None)
            freeze_in_the_middle(run, server, lambda: self._account.in_flight >= UNSETTLED_SENDS_MIN)
            kill: dict[str, Any] = {
                "unsettled_sends": self._account.in_flight,
                "locks_held": holder.count(self._clock.now_ms()),
            }
            self._feed.allow(self._feed.taken)
            server.kill()
            self._kills.append(kill)
            self._watcher.note(
                f"Kill {number}: {kill['unsettled_sends']} sends unsettled, {kill['locks_held']} locks held."
            )
            holder.drop()
            server.start()
            kill["restart_seconds"] = round((self._clock.monotonic_ms() - server.started_at_ms) / 1000, 3)
        finally:
            holder.close()

    def _wait(self, is_reached: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            self._show()
            return is_reached()

        self._run.wait_until(look, _PHASE_TIMEOUT_S, what)

    def _show(self) -> None:
        self._watcher.progress(self._account.received_ids, self._total - self._account.too_large)


def failures_of(result: dict[str, Any]) -> list[str]:
    """Return what makes a result a failure, one sentence each; empty when it is none."""
    failures = loss_failures(result)
    return failures + kill_failures(result["kills"], KILLS, UNSETTLED_SENDS_MIN, LOCKS_HELD_MIN, "locks")


def play_queue(folder: Path, watcher: Watcher, clock: Clock, limit_s: float) -> dict[str, Any]:
    """Run the part in ``folder`` with a broker of its own; return the result's members.

    Raises:
        DemoFailed: It could not be finished; the text ends with the broker's last words.
    """
    return play_with_server(
        folder,
        queues_config({QUEUE: _QUEUE_PROPERTIES}),
        clock,
        lambda server: QueueScenario(server, standard_library(), watcher, clock, limit_s).play(),
    )


PART = Scenario("The standard library through a partitioned queue", play_queue, failures_of)
