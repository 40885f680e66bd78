"""Part ``store-loss``: messages without a key through a partitioned queue while stores stall and fail.

The drills are the commands that an operator has: ``duobus store stall``, ``fail`` and ``heal``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from duobus.clock import Clock
from duobus.testing.client_report import ClientReport
from duobus.testing.server import ServerProcess, queues_config
from duobus_demo.clients import endpoints_of
from duobus_demo.corpus import Outgoing, standard_library
from duobus_demo.dispositions import Dispositions
from duobus_demo.drills import operate, state_of
from duobus_demo.feed import Feed
from duobus_demo.kills import play_with_server
from duobus_demo.message_account import MessageAccount, loss_failures
from duobus_demo.progress import Watcher
from duobus_demo.registry import Scenario
from duobus_demo.run_state import RunState
from duobus_demo.workers.traffic import Traffic, WorkerCounts

QUEUE: Final = "spread"

_QUEUE_PROPERTIES: Final = {
    "EnablePartitioning": True,
    "LockDuration": "PT10S",
    # Messages of a lost store come again, and must not go to the dead-letter queue for it.
    "MaxDeliveryCount": 1000,
    "DefaultMessageTimeToLive": "PT1H",
}
SERVER_OPTIONS: Final = ("--emulator", "--tls-self-signed", "--allow-drills", "--stores", "4")

#: Drill and store, in the order in which they are played.
DRILLS: Final = (("stall", 2), ("fail", 3))
#: What a send may take, in seconds, whatever store is away (PE4).
SLOWEST_SEND_S: Final = 5.0
#: Sends that each drill has to meet for the run to prove anything.
SENDS_MIN: Final = 100

_PHASE_TIMEOUT_S: Final = 60.0


class TimedMessageAccount(MessageAccount):
    """A message account that also knows what clients saw.

    Attributes:
        seen: What they saw.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.seen = ClientReport(clock)

    @property
    def slowest_ms(self) -> int:
        """The slowest send, with all its attempts."""
        return self.seen.slowest_ms

    def sending(self, message_id: str, body: bytes, partition_key: str | None) -> None:
        """See ``MessageAccount.sending``; a send that is repeated has begun with its first attempt."""
        self.seen.sending(message_id, partition_key)
        super().sending(message_id, body, partition_key)

    def acknowledged(self, message_id: str, transport: str) -> None:
        """See ``MessageAccount.acknowledged``."""
        super().acknowledged(message_id, transport)
        self.seen.accepted(message_id)

    def send_unknown(self, message_id: str, _why: str = "") -> None:
        """See ``MessageAccount.send_unknown``."""
        super().send_unknown(message_id)
        self.seen.failed(message_id, _why or "an error")

    def received(
        self,
        message_id: str,
        body: bytes,
        *,
        digest: str | None,
        partition_key: str | None,
        number: int,
        locked_until_ms: int | None = None,
    ) -> None:
        """See ``MessageAccount.received``."""
        super().received(
            message_id,
            body,
            digest=digest,
            partition_key=partition_key,
            number=number,
            locked_until_ms=locked_until_ms,
        )
        self.seen.received(message_id, number)


class StoreLossScenario:
    """One run of this part.

    Args:
        server: The broker, running with SERVER_OPTIONS and QUEUE in its configuration.
        messages: What to send; their keys are left out.
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
        pool: WorkerCounts = WorkerCounts(2, 2, 2, 2),  # noqa: B008 - immutable
    ) -> None:
        self._server = server
        self._total = len(messages)
        self._watcher = watcher
        self._clock = clock
        self._limit_s = limit_s
        for message in messages:
            message.partition_key = None
        self._feed = Feed(messages)
        self._account = TimedMessageAccount(clock)
        self._run = RunState(QUEUE, self._feed, self._account, Dispositions(), clock, limit_s)
        self._pool = pool
        self._drills: list[dict[str, Any]] = []

    def play(self) -> dict[str, Any]:
        """Send, lose and heal stores, drain; return the result's members.

        Raises:
            DemoFailed: Something did not happen in its time.
        """
        began_ms = self._clock.monotonic_ms()
        # Before each drill, in it, and after the last: so many parts of the messages.
        shares = 2 * len(DRILLS) + 1
        with Traffic(self._run, endpoints_of(self._server), self._pool) as traffic:
            for index, (drill, store) in enumerate(DRILLS):
                self._send_until((2 * index + 1) * self._total // shares)
                self._drill(drill, store, (2 * index + 2) * self._total // shares)
            self._feed.allow(None)
            self._wait(lambda: self._account.settled_sends >= self._total, "all messages are sent")
            left = traffic.drain(self._limit_s, self._show)
        self._watcher.note(f"What clients saw: {self._account.seen.text()}.")
        return {
            "part": "store-loss",
            **self._account.report(),
            "left": left,
            "slowest_send_seconds": round(self._account.slowest_ms / 1000, 3),
            "drills": self._drills,
            "seen": self._account.seen.summary(),
            "missing": self._account.missing()[:10],
            "altered_how": dict(list(self._account.altered().items())[:10]),
            "seconds": round((self._clock.monotonic_ms() - began_ms) / 1000, 2),
        }

    def _drill(self, drill: str, store: int, until: int) -> None:
        """Send up to ``until`` while a store is away, then heal it and wait until it is back."""
        before = self._account.settled_sends
        self._feed.allow(until)
        operate(self._server, drill, store)
        self._wait(lambda: state_of(self._server, store) != "open", f"store {store} is taken out")
        self._send_until(until)
        state = operate(self._server, "heal", store)
        healed_ms = self._clock.monotonic_ms()
        self._wait(lambda: state_of(self._server, store) == "open", f"store {store} is back")
        found = {
            "drill": drill,
            "store": store,
            "sends": until - before,
            "reason": state["reason"],
            "back_seconds": round((self._clock.monotonic_ms() - healed_ms) / 1000, 3),
        }
        self._drills.append(found)
        self._watcher.note(f"Store {store}: {drill}, {found['sends']} sends, back in {found['back_seconds']:.1f} s.")

    def _send_until(self, count: int) -> None:
        self._feed.allow(count)
        self._wait(lambda: self._account.settled_sends >= count, f"{count} messages are sent")

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
    if result["sends_unknown"]:
        failures.append(f"{result['sends_unknown']} sends without a key failed although other stores were there.")
    if result["slowest_send_seconds"] > SLOWEST_SEND_S:
        failures.append(
            f"The slowest send took {result['slowest_send_seconds']:.1f} s, more than {SLOWEST_SEND_S:g} s."
        )
    if len(result["drills"]) != len(DRILLS):
        failures.append(f"{len(result['drills'])} drills instead of {len(DRILLS)}.")
    failures += [
        f"Only {drill['sends']} sends met the drill {drill['drill']}, at least {SENDS_MIN} needed."
        for drill in result["drills"]
        if drill["sends"] < SENDS_MIN
    ]
    return failures


def play_store_loss(folder: Path, watcher: Watcher, clock: Clock, limit_s: float) -> dict[str, Any]:
    """Run the part in ``folder`` with a broker of its own; return the result's members.

    Raises:
        DemoFailed: It could not be finished; the text ends with the broker's last words.
    """
    return play_with_server(
        folder,
        queues_config({QUEUE: _QUEUE_PROPERTIES}),
        clock,
        lambda server: StoreLossScenario(server, standard_library(), watcher, clock, limit_s).play(),
        SERVER_OPTIONS,
    )


PART: Final = Scenario("A partitioned queue that loses two of its four messaging stores", play_store_loss, failures_of)
