"""Part ``sessions``: packages of the standard library as ordered sessions with state, with three kills meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from duobus.clock import Clock
from duobus.testing.server import DemoFailed, ServerProcess, queues_config
from duobus_demo.clients import UNKNOWN_OUTCOME, endpoints_of, sync_endpoints
from duobus_demo.corpus import Outgoing, standard_library
from duobus_demo.dispositions import Dispositions
from duobus_demo.expectations.sessions import SessionExpectations
from duobus_demo.feed import Feed
from duobus_demo.kills import freeze_in_the_middle, kill_failures, play_with_server
from duobus_demo.message_account import MessageAccount
from duobus_demo.progress import Watcher
from duobus_demo.registry import Scenario
from duobus_demo.run_state import RunState
from duobus_demo.workers.session_workers import look_at_sessions, run_session_receiver, run_session_sender
from duobus_demo.workers.threads import WorkerThreads

QUEUE = "sessions"
_QUEUE_PROPERTIES = {
    "EnablePartitioning": True,
    "RequiresSession": True,
    "LockDuration": "PT30S",
    "MaxDeliveryCount": 1000,
}

KILLS = 3
#: What each kill has to meet.
SESSIONS_HELD_MIN = 2
UNSETTLED_SENDS_MIN = 1

#: Messages of one session, and bytes of one message: the part is to take seconds.
SESSION_MESSAGES_MIN, SESSION_MESSAGES_MAX = 3, 50
MESSAGE_BYTES_MAX = 100_000
SENDERS, RECEIVERS = 3, 9

_PHASE_TIMEOUT_S = 60.0
_LOOKS = 5


def sessions_of(messages: Iterable[Outgoing]) -> dict[str, list[Outgoing]]:
    """Take the library's packages as sessions, with the first of their files in the order of their names."""
    sessions: dict[str, list[Outgoing]] = {}
    for message in sorted(messages, key=lambda message: message.message_id):
        package, slash, _ = message.message_id.partition("/")
        found = sessions.setdefault(package if slash else "modules", [])
        if len(found) < SESSION_MESSAGES_MAX and len(message.read()) <= MESSAGE_BYTES_MAX:
            found.append(Outgoing(message.message_id, body=message.read()))
    return {session_id: found for session_id, found in sessions.items() if len(found) >= SESSION_MESSAGES_MIN}


class SessionsScenario:
    """One run of this part.

    Args:
        server: The broker, running, with QUEUE in its configuration.
        sessions: Session id to its messages.
        watcher: Told how it goes.
        clock: Time.
        limit_s: The part may take this long.
    """

    def __init__(
        self,
        server: ServerProcess,
        sessions: dict[str, list[Outgoing]],
        watcher: Watcher,
        clock: Clock,
        limit_s: float,
    ) -> None:
        self._server = server
        self._total = sum(map(len, sessions.values()))
        self._watcher = watcher
        self._clock = clock
        self._account = MessageAccount(clock)
        self._expectations = SessionExpectations(sessions)
        self._run = RunState(QUEUE, Feed([]), self._account, Dispositions(0), clock, limit_s)
        self._endpoints = endpoints_of(server)
        self._kills: list[dict[str, Any]] = []

    def play(self) -> dict[str, Any]:
        """Send, kill, wait until all is applied, look; return the result's members.

        Raises:
            DemoFailed: Something did not happen in its time.
        """
        began_ms = self._clock.monotonic_ms()
        with WorkerThreads(self._run, self._jobs()):
            for number in range(1, KILLS + 1):
                self._until_sent(number * self._total // (KILLS + 1))
                self._kill(number)
            self._until_sent(self._total)
            self._wait(self._is_done, "all messages are applied and completed")
        left = self._look()
        return {
            "part": "sessions",
            **self._account.report(),
            **self._expectations.report(),
            "left": left,
            "kills": self._kills,
            "missing": self._account.missing()[:10],
            "altered_how": dict(list(self._account.altered().items())[:10]),
            "disorder": self._expectations.faults(),
            "seconds": round((self._clock.monotonic_ms() - began_ms) / 1000, 2),
        }

    def _until_sent(self, number: int) -> None:
        self._wait(lambda: self._account.settled_sends >= number, f"{number} messages are sent")

    def _jobs(self) -> list[tuple[str, Callable[[], None]]]:
        run, expectations, endpoints = self._run, self._expectations, sync_endpoints(self._endpoints)
        jobs: list[tuple[str, Callable[[], None]]] = []
        for index in range(SENDERS):
            mine = list(expectations.sessions)[index::SENDERS]
            jobs.append(
                (
                    f"sender {index}",
                    partial(run_session_sender, run, endpoints[index % len(endpoints)], expectations, mine),
                )
            )
        for index in range(RECEIVERS):
            jobs.append(
                (
                    f"receiver {index}",
                    partial(run_session_receiver, run, endpoints[index % len(endpoints)], expectations),
                )
            )
        return jobs

    def _is_done(self) -> bool:
        # Completions may come later than the state that tells of the message.
        return self._expectations.is_done and not self._account.missing()

    def _is_busy(self) -> bool:
        return self._account.in_flight >= UNSETTLED_SENDS_MIN and self._expectations.locked >= SESSIONS_HELD_MIN

    def _kill(self, number: int) -> None:
        server = self._server
        freeze_in_the_middle(self._run, server, self._is_busy)
        kill: dict[str, Any] = {"unsettled_sends": self._account.in_flight, "locks_held": self._expectations.locked}
        server.kill()
        self._kills.append(kill)
        self._watcher.note(
            f"Kill {number}: {kill['unsettled_sends']} sends unsettled, {kill['locks_held']} sessions held."
        )
        server.start()
        kill["restart_seconds"] = round((self._clock.monotonic_ms() - server.started_at_ms) / 1000, 3)

    def _look(self) -> int:
        """The last look, with everybody gone; tried again where a receiver's lock is not free yet."""
        problem: Exception | None = None
        for _attempt in range(_LOOKS):
            try:
                return look_at_sessions(self._run, self._endpoints[0], self._expectations)
            except UNKNOWN_OUTCOME as error:
                problem = error
                self._run.check()
        raise DemoFailed(f"The sessions could not be looked at: {problem}") from problem

    def _wait(self, is_reached: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            self._watcher.progress(self._account.received_ids, self._total)
            return is_reached()

        self._run.wait_until(look, _PHASE_TIMEOUT_S, what)


_MUST_BE_ZERO = (
    ("lost", "missing", "acknowledged messages never came out"),
    ("altered", "altered_how", "messages came out altered"),
    ("revived", "missing", "deliveries of messages whose completion had been acknowledged"),
    ("out_of_order", "disorder", "messages came out of their order"),
    ("states_lost", "disorder", "times a session had another state than was set"),
    ("left", "missing", "sessions have messages that are not delivered"),
)


def failures_of(result: dict[str, Any]) -> list[str]:
    """Return what makes a result a failure, one sentence each; empty when it is none."""
    failures = [f"{result[name]} {text}: {result[detail]}." for name, detail, text in _MUST_BE_ZERO if result[name]]
    if result["states_right"] != result["sessions"]:
        failures.append(
            f"{result['states_right']} of {result['sessions']} sessions tell in the end that each of their messages "
            "was applied once and in order."
        )
    return failures + kill_failures(result["kills"], KILLS, UNSETTLED_SENDS_MIN, SESSIONS_HELD_MIN, "sessions")


def play_sessions(folder: Path, watcher: Watcher, clock: Clock, limit_s: float) -> dict[str, Any]:
    """Run the part in ``folder`` with a broker of its own; return the result's members.

    Raises:
        DemoFailed: It could not be finished; the text ends with the broker's last words.
    """
    return play_with_server(
        folder,
        queues_config({QUEUE: _QUEUE_PROPERTIES}),
        clock,
        lambda server: SessionsScenario(server, sessions_of(standard_library()), watcher, clock, limit_s).play(),
    )


PART = Scenario("Packages of the standard library as sessions with state", play_sessions, failures_of)
