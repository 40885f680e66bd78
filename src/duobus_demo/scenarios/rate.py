"""Part ``rate``: how many messages go through a partitioned queue in a second when nothing is killed.

The other parts kill brokers and stall stores, so that their rates are those of restarts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from duobus.clock import Clock
from duobus.testing.server import ServerProcess, queues_config
from duobus_demo.clients import endpoints_of
from duobus_demo.corpus import Outgoing
from duobus_demo.dispositions import Dispositions
from duobus_demo.feed import Feed
from duobus_demo.kills import play_with_server
from duobus_demo.message_account import MessageAccount, loss_failures
from duobus_demo.progress import Watcher
from duobus_demo.registry import Scenario
from duobus_demo.run_state import RunState
from duobus_demo.workers.traffic import Traffic, WorkerCounts

QUEUE: Final = "rate"
BODY_BYTES: Final = 1024
#: Messages that are measured: some seconds of work.
MESSAGES: Final = 4_000
#: Messages before them, which come out when all links are open.
WARM_UP: Final = 200

_PHASE_TIMEOUT_S: Final = 60.0
_POOL: Final = WorkerCounts()


def play_rate(folder: Path, watcher: Watcher, clock: Clock, limit_s: float) -> dict[str, Any]:
    """Run the part in ``folder`` with a broker of its own; return the result's members.

    Raises:
        DemoFailed: It could not be finished; the text ends with the broker's last words.
    """
    config = queues_config({QUEUE: {"EnablePartitioning": True}})
    return play_with_server(
        folder, config, clock, lambda server: measure(server, watcher, clock, limit_s, MESSAGES, WARM_UP)
    )


def measure(
    server: ServerProcess, watcher: Watcher, clock: Clock, limit_s: float, messages: int, warm_up: int
) -> dict[str, Any]:
    """Send messages to QUEUE and receive them; return the result's members.

    Every message is sent by a call of its own and completed by one, as an application does that wants to know what
    became of each.
    """
    total = messages + warm_up
    began_ms = clock.monotonic_ms()
    feed, account = Feed(_messages(total), warm_up), MessageAccount(clock)
    run = RunState(QUEUE, feed, account, Dispositions(0), clock, limit_s)

    def wait_for(number: int) -> None:
        def look() -> bool:
            watcher.progress(account.received_ids, total)
            return account.received_ids >= number

        run.wait_until(look, _PHASE_TIMEOUT_S, f"{number} messages come out")

    with Traffic(run, endpoints_of(server), _POOL) as traffic:
        wait_for(warm_up)
        measured_from_ms = clock.monotonic_ms()
        feed.allow(None)
        wait_for(total)
        measured_ms = clock.monotonic_ms() - measured_from_ms
        left = traffic.drain(limit_s, lambda: watcher.progress(account.received_ids, total))
    report = account.report()
    # These are over the time in which links were opened, too.
    del report["rates"]
    return {
        "part": "rate",
        **report,
        "left": left,
        "messages_per_second": round(messages * 1000 / max(1, measured_ms), 1),
        "message_bytes": BODY_BYTES,
        "clients": sum(_POOL),
        "missing": account.missing()[:10],
        "altered_how": dict(list(account.altered().items())[:10]),
        "seconds": round((clock.monotonic_ms() - began_ms) / 1000, 2),
    }


def _messages(number: int) -> Iterator[Outgoing]:
    for count in range(number):
        yield Outgoing(f"message-{count}", body=f"{count:0{BODY_BYTES}}".encode())


PART = Scenario("What goes through when nothing is killed", play_rate, loss_failures)
