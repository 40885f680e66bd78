"""Part ``paired``: a pair of namespaces whose primary is killed, and later loses a store, in the midst of traffic."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Final

from duobus.clock import Clock
from duobus.ha.sync.backlog_queues import paths
from duobus.testing.server import DEFAULT_OPTIONS, DemoFailed, ServerProcess, queues_config
from duobus_demo.clients import UNKNOWN_OUTCOME, endpoints_of, silence_sdk_logs
from duobus_demo.corpus import Outgoing, standard_library
from duobus_demo.dispositions import Dispositions
from duobus_demo.drills import operate, state_of, stores_of
from duobus_demo.expectations.pairs import CARTS, ORDERS, VISITS, PairExpectations, divide, key_of, queue_of
from duobus_demo.feed import Feed
from duobus_demo.kills import freeze_in_the_middle, kill_failures
from duobus_demo.message_account import MessageAccount
from duobus_demo.progress import Watcher
from duobus_demo.registry import Scenario
from duobus_demo.run_state import RunState
from duobus_demo.workers.paired_workers import BACKLOG_QUEUES, PRIMARY_NAME, PairedTraffic
from duobus_demo.workers.threads import WorkerThreads

#: A fifth before the kill, one while the primary is away, one when it is back, one while a store of it is away, and one
#: when that is back.
MESSAGES: Final = 900
FIFTHS: Final = 5
DRILL: Final = 3
MESSAGE_BYTES_MAX: Final = 50_000
BACKLOGS: Final = tuple(paths(PRIMARY_NAME, BACKLOG_QUEUES))
UNSETTLED_SENDS_MIN: Final = 1
#: While the primary is dead, the SDK's tries to connect take most of the processor; on a busy machine that is minutes.
_PHASE_TIMEOUT_S: Final = 120.0
_CONFIG: Final = {ORDERS: {}, VISITS: {"RequiresSession": True}, CARTS: {"EnablePartitioning": True}}
_OPTIONS: Final = (*DEFAULT_OPTIONS, "--allow-drills", "--stores", "4")
#: As pairing makes them (PN6); the syphon tries again every second.
BACKLOG: Final = {"MaxDeliveryCount": 2_147_483_647, "DeadLetteringOnMessageExpiration": True}


class PairScenario:
    """One run of this part.

    Args:
        primary: The broker that applications send to, running.
        secondary: The broker with the backlog queues, running.
        messages: What is sent.
        watcher: Told how it goes.
        clock: Time.
        limit_s: The part may take this long.
    """

    def __init__(
        self,
        primary: ServerProcess,
        secondary: ServerProcess,
        messages: list[Outgoing],
        watcher: Watcher,
        clock: Clock,
        limit_s: float,
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._messages = messages
        self._total = len(messages)
        fifth = self._total // FIFTHS
        # What no fifth has, because the number of messages is no multiple of five, is sent behind the last one.
        divide(messages, with_carts=False)
        # The partitioned queue shows what a lost store leaves. Of a dead server it would show what the others do.
        divide(messages[DRILL * fifth : (DRILL + 1) * fifth], with_carts=True)
        self._watcher = watcher
        self._clock = clock
        self._account = MessageAccount(clock)
        self._expectations = PairExpectations(clock)
        self._feed = Feed(messages)
        self._run = RunState(ORDERS, self._feed, self._account, Dispositions(0), clock, limit_s)
        self._kill: dict[str, Any] = {}
        self._drill: dict[str, Any] = {}

    def play(self) -> dict[str, Any]:
        """Send, kill, divert, start again, lose a store, divert, heal it, syphon; return the result's members.

        Raises:
            DemoFailed: Something did not happen in its time.
        """
        began_ms = self._clock.monotonic_ms()
        traffic = PairedTraffic(
            self._run, self._expectations, endpoints_of(self._primary)[0], endpoints_of(self._secondary)[0]
        )
        fifth = self._total // FIFTHS
        expectations, account = self._expectations, self._account
        with WorkerThreads(self._run, [("asyncio", traffic)]):
            self._feed.allow(fifth)
            self._wait(lambda: account.settled_sends >= fifth // 2, "half of the first fifth is sent")
            self._kill_primary()
            self._wait(lambda: expectations.troubled == {ORDERS, VISITS}, "both queues have failed over")
            self._send_until(2 * fifth)
            self._primary.start()
            self._kill["restart_seconds"] = round((self._clock.monotonic_ms() - self._primary.started_at_ms) / 1000, 3)
            self._note("primary started again")
            self._wait(lambda: not expectations.troubled, "a ping has found each queue healthy")
            self._send_until(DRILL * fifth)
            self._lose_store((DRILL + 1) * fifth)
            self._feed.allow(None)
            self._wait(lambda: account.settled_sends >= self._total, "all messages are sent")
            self._note("all messages sent")
            self._wait(
                lambda: not account.missing() and expectations.syphoned >= expectations.diverted,
                "all messages are received",
            )
            self._note("all messages received")
        counts = account.report()
        del counts["per_fragment"]  # One queue of three is partitioned.
        return {
            "part": "paired",
            **counts,
            **expectations.report(),
            "left": self._look(),
            "kills": [self._kill],
            "drills": [self._drill],
            "missing": account.missing()[:10],
            "altered_how": dict(list(account.altered().items())[:10]),
            "timeline": expectations.timeline,
            "seconds": round((self._clock.monotonic_ms() - began_ms) / 1000, 2),
        }

    def _kill_primary(self) -> None:
        freeze_in_the_middle(self._run, self._primary, lambda: self._account.in_flight >= UNSETTLED_SENDS_MIN)
        self._kill.update(unsettled_sends=self._account.in_flight, locks_held=0)
        self._primary.kill()
        self._note("primary killed")

    def _lose_store(self, until: int) -> None:
        """Send up to ``until`` while the store of ORDERS, and of some fragments of CARTS, is away; then heal it."""
        (store,) = stores_of(self._primary, ORDERS)
        before = self._account.settled_sends
        operate(self._primary, "fail", store)
        self._note(f"store {store} of the primary fails")
        self._send_until(until)
        troubled = self._expectations.troubled
        # Those without a key go on at the primary, although other messages of the queue cannot.
        keyless = [one for one in self._messages[before:until] if queue_of(one) == CARTS and key_of(one) is None]
        diverted = self._expectations.diverted_of(self._messages[before:until])
        operate(self._primary, "heal", store)
        self._note(f"store {store} of the primary healed")
        healed_ms = self._clock.monotonic_ms()
        self._wait(lambda: state_of(self._primary, store) == "open", f"store {store} is back")
        self._wait(lambda: not self._expectations.troubled, "a ping has found what lies in it healthy")
        self._drill.update(
            drill="fail",
            store=store,
            failed_over=sorted(troubled),
            sends=until - before,
            diverted=diverted,
            direct=until - before - diverted,
            keyless=len(keyless),
            keyless_diverted=self._expectations.diverted_of(keyless),
            back_seconds=round((self._clock.monotonic_ms() - healed_ms) / 1000, 3),
        )

    def _send_until(self, count: int) -> None:
        self._feed.allow(count)
        self._wait(lambda: self._account.settled_sends >= count, f"{count} messages are sent")

    def _look(self) -> int:
        """Count what is left in the backlog queues and their dead letters."""
        left = 0
        try:
            with endpoints_of(self._secondary)[0].client() as client:
                for queue in BACKLOGS:
                    for sub_queue in (None, "deadletter"):
                        with client.get_queue_receiver(queue, sub_queue=sub_queue) as receiver:
                            left += len(receiver.peek_messages(max_message_count=10, timeout=10))
        except UNKNOWN_OUTCOME as error:
            raise DemoFailed(f"The backlog queues could not be looked at: {error}") from error
        return left

    def _note(self, text: str) -> None:
        self._expectations.note(text)
        self._watcher.note(f"{text[0].upper()}{text[1:]}.")

    def _wait(self, is_reached: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            self._watcher.progress(self._account.received_ids, self._total)
            return is_reached()

        self._run.wait_until(look, _PHASE_TIMEOUT_S, what)


_MUST_BE_ZERO: Final = (
    ("lost", "missing", "acknowledged messages never came out"),
    ("altered", "altered_how", "messages came out altered"),
    ("properties_lost", "properties_lost_how", "messages came out with other properties"),
    ("revived", "missing", "deliveries of messages whose completion had been acknowledged"),
    ("left", "missing", "messages are left in backlog queues"),
)


def failures_of(result: dict[str, Any]) -> list[str]:
    """Return what makes a result a failure, one sentence each; empty when it is none."""
    failures = [f"{result[name]} {text}: {result[detail]}." for name, detail, text in _MUST_BE_ZERO if result[name]]
    if not result["diverted"]:
        failures.append("No message was diverted.")
    if result["restored"] != result["diverted_ids"]:
        failures.append(f"{result['restored']} of {result['diverted_ids']} diverted messages came out as they were.")
    return (
        failures
        + kill_failures(result["kills"], 1, UNSETTLED_SENDS_MIN, 0, "locks")
        + _drill_failures(result["drills"])
    )


def _drill_failures(drills: list[dict[str, Any]]) -> list[str]:
    if len(drills) != 1:
        return [f"{len(drills)} drills instead of 1."]
    (drill,) = drills
    failures = []
    if ORDERS not in drill["failed_over"]:
        failures.append(f"The queue {ORDERS} has not failed over when its store was away.")
    if not any(place.startswith(f"{CARTS} ") for place in drill["failed_over"]):
        failures.append(f"No key of the queue {CARTS} has failed over when a store of it was away.")
    if not drill["diverted"] or not drill["direct"]:
        failures.append(
            f"{drill['diverted']} messages were diverted and {drill['direct']} were not while a store was away, at "
            "least 1 of each needed."
        )
    if drill["keyless_diverted"]:
        failures.append(
            f"{drill['keyless_diverted']} messages without a key were diverted although other stores were there."
        )
    return failures


def play_paired(folder: Path, watcher: Watcher, clock: Clock, limit_s: float) -> dict[str, Any]:
    """Run the part in ``folder`` with two brokers of its own; return the result's members.

    Raises:
        DemoFailed: It could not be finished; the text ends with the brokers' last words.
    """
    silence_sdk_logs()
    config = queues_config(_CONFIG)
    primary = ServerProcess(folder / "primary", config=config, arguments=_OPTIONS, clock=clock)
    backlogs = queues_config(dict.fromkeys(BACKLOGS, BACKLOG))
    secondary = ServerProcess(folder / "secondary", config=backlogs, clock=clock)
    small = (message for message in standard_library() if len(message.read()) <= MESSAGE_BYTES_MAX)
    messages = list(islice(small, MESSAGES))
    try:
        with primary, secondary:
            return PairScenario(primary, secondary, messages, watcher, clock, limit_s).play()
    except DemoFailed as error:
        said = "\n".join(server.log_tail() for server in (primary, secondary))
        raise DemoFailed(f"{error}\nThe end of the brokers' logs:\n{said}") from error


PART = Scenario(
    "The standard library through a pair of namespaces, one of which is killed and loses a store",
    play_paired,
    failures_of,
)
