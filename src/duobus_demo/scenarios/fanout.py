"""Part ``fanout``: a topic with rules, actions and a hop to a queue, with three kills while copies are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from duobus.clock import Clock
from duobus.testing.server import ServerProcess
from duobus_demo.clients import endpoints_of, sync_endpoints
from duobus_demo.corpus import Outgoing, standard_library
from duobus_demo.dispositions import Dispositions
from duobus_demo.expectations.fanout import FanoutExpectations
from duobus_demo.expectations.fanout_plan import RECEIVE_PATHS, TOPIC, chosen, expected_of, fanout_config, looks_of
from duobus_demo.feed import Feed
from duobus_demo.kills import freeze_in_the_middle, kill_failures, play_with_server
from duobus_demo.message_account import MessageAccount
from duobus_demo.progress import Watcher
from duobus_demo.registry import Scenario
from duobus_demo.run_state import POLL_S, RunState
from duobus_demo.workers.fanout_workers import look_for_rest, run_publisher, run_subscriber
from duobus_demo.workers.threads import WorkerThreads

KILLS = 3
#: What each kill has to meet.
COPIES_HELD_MIN = 1
UNSETTLED_SENDS_MIN = 1

PUBLISHERS = 3
#: Subscribers of each receive path, each over another kind of connection.
SUBSCRIBERS = 2

#: Messages that are published without anybody receiving, right before a kill.
_PILE = 30

#: With no completion for so long the run is over, and what is missing is lost: longer than any lock can last.
STALLED_S = 20.0
_PHASE_TIMEOUT_S = 60.0
_LOOKS = 5


class FanoutScenario:
    """One run of this part.

    Args:
        server: The broker, running, with what ``fanout_config`` describes.
        messages: What to publish.
        watcher: Told how it goes.
        clock: Time.
        limit_s: The part may take this long.
    """

    def __init__(
        self, server: ServerProcess, messages: Sequence[Outgoing], watcher: Watcher, clock: Clock, limit_s: float
    ) -> None:
        self._server = server
        self._total = len(messages)
        self._watcher = watcher
        self._clock = clock
        self._looks = looks_of(messages)
        self._expectations = FanoutExpectations(expected_of(self._looks))
        self._feed = Feed(messages)
        self._account = MessageAccount(clock)
        self._run = RunState(TOPIC, self._feed, self._account, Dispositions(0), clock, limit_s)
        self._endpoints = endpoints_of(server)
        self._kills: list[dict[str, Any]] = []

    def play(self) -> dict[str, Any]:
        """Publish, kill, drain; return the result's members.

        Raises:
            DemoFailed: Something did not happen in its time.
        """
        began_ms = self._clock.monotonic_ms()
        with WorkerThreads(self._run, self._jobs()):
            for number in range(1, KILLS + 1):
                self._until_sent(number * self._total // (KILLS + 1) - _PILE)
                # From here on copies pile up, so that every subscriber has some when the broker dies.
                self._run.may_receive.clear()
                self._until_sent(number * self._total // (KILLS + 1))
                self._kill(number)
            self._until_sent(self._total)
            left = self._drain()
        sends = self._account.report()
        transports = {
            name: {"sent": counts["sent"], "received": self._expectations.completions_over(name)}
            for name, counts in sends["transports"].items()
        }
        return {
            "part": "fanout",
            **{name: sends[name] for name in ("sent", "acknowledged", "sent_again", "sends_unknown")},
            **self._expectations.report(),
            "left": left,
            "kills": self._kills,
            "transports": transports,
            **self._expectations.examples(),
            "seconds": round((self._clock.monotonic_ms() - began_ms) / 1000, 2),
        }

    def _jobs(self) -> list[tuple[str, Callable[[], None]]]:
        run, endpoints = self._run, sync_endpoints(self._endpoints)
        jobs: list[tuple[str, Callable[[], None]]] = []
        for index in range(PUBLISHERS):
            endpoint = endpoints[index % len(endpoints)]
            jobs.append((f"publisher {index}", partial(run_publisher, run, endpoint, self._looks)))
        for index in range(SUBSCRIBERS * len(RECEIVE_PATHS)):
            receive_path, endpoint = RECEIVE_PATHS[index // SUBSCRIBERS], endpoints[index % len(endpoints)]
            jobs.append(
                (
                    f"subscriber {index} of {receive_path}",
                    partial(run_subscriber, run, endpoint, self._expectations, receive_path),
                )
            )
        return jobs

    def _until_sent(self, number: int) -> None:
        self._feed.allow(number)

        def look() -> bool:
            self._show()
            return self._account.settled_sends >= number

        self._run.wait_until(look, _PHASE_TIMEOUT_S, f"{number} messages are published")

    def _is_held(self) -> bool:
        return self._expectations.unsettled >= COPIES_HELD_MIN

    def _is_busy(self) -> bool:
        return self._account.in_flight >= UNSETTLED_SENDS_MIN and self._is_held()

    def _kill(self, number: int) -> None:
        server = self._server
        self._run.may_receive.set()
        # What is left to publish is gone in a fifth of a second: subscribers that are late after the last kill would
        # hold their first copies when no send is on its way any more.
        self._run.wait_until(self._is_held, _PHASE_TIMEOUT_S, "a subscriber holds copies")
        self._feed.allow(None)
        freeze_in_the_middle(self._run, server, self._is_busy)
        kill: dict[str, Any] = {"unsettled_sends": self._account.in_flight, "locks_held": self._expectations.unsettled}
        self._feed.allow(self._feed.taken)
        server.kill()
        self._kills.append(kill)
        self._watcher.note(
            f"Kill {number}: {kill['unsettled_sends']} sends unsettled, {kill['locks_held']} copies held."
        )
        server.start()
        kill["restart_seconds"] = round((self._clock.monotonic_ms() - server.started_at_ms) / 1000, 3)

    def _drain(self) -> int:
        """Wait until every copy is taken over and a look finds nothing, or nothing moves; returns what is left.

        The subscribers go on meanwhile, so that copies that should not be there are seen as well.
        """
        left = 0
        for _look in range(_LOOKS):
            self._until_taken()
            left = look_for_rest(self._endpoints[0])
            if not left:
                break
        return left

    def _until_taken(self) -> None:
        settled, moved_ms = -1, self._clock.monotonic_ms()
        while any(self._expectations.missing().values()):
            self._run.check()
            self._show()
            now_ms = self._clock.monotonic_ms()
            if self._expectations.settled != settled:
                settled, moved_ms = self._expectations.settled, now_ms
            elif now_ms - moved_ms > STALLED_S * 1000:
                return
            self._run.stopping.wait(POLL_S * 10)

    def _show(self) -> None:
        self._watcher.progress(self._expectations.settled, self._expectations.total)


_MUST_BE_ZERO = (
    ("lost", "missing", "copies never came out"),
    ("altered", "altered_how", "copies came out altered"),
    ("wrong", "wrong_which", "copies came out that should not be there"),
    ("revived", "wrong_which", "deliveries of copies whose completion had been acknowledged"),
    ("left", "missing", "messages are left and are not delivered"),
)


def failures_of(result: dict[str, Any]) -> list[str]:
    """Return what makes a result a failure, one sentence each; empty when it is none."""
    failures = [f"{result[name]} {text}: {result[detail]}." for name, detail, text in _MUST_BE_ZERO if result[name]]
    return failures + kill_failures(result["kills"], KILLS, UNSETTLED_SENDS_MIN, COPIES_HELD_MIN, "copies")


def play_fanout(folder: Path, watcher: Watcher, clock: Clock, limit_s: float) -> dict[str, Any]:
    """Run the part in ``folder`` with a broker of its own; return the result's members.

    Raises:
        DemoFailed: It could not be finished; the text ends with the broker's last words.
    """
    return play_with_server(
        folder,
        fanout_config(),
        clock,
        lambda server: FanoutScenario(server, chosen(standard_library()), watcher, clock, limit_s).play(),
    )


PART = Scenario("A topic with rules, actions and a hop", play_fanout, failures_of)
