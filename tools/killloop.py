"""Kill the broker with SIGKILL under SDK traffic, again and again, and see whether anything acknowledged is lost.

    python tools/killloop.py --kills 10
    python tools/killloop.py --kills 1000 --json      # the long form, half an hour
    python tools/killloop.py --kills 3 --unsafe-ephemeral   # the planted fault; must lose

Senders and receivers on the official SDK, synchronous and asyncio, plain and TLS, keep a partitioned queue busy. The
broker is killed at a random moment after each start and started again on the same data folder. At the end everything
is received, and each message is accounted for (I1, I7, I17; reliability F1).

Exit status: 0 nothing lost, altered, revived or left; 1 something was, or the run could not be finished.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from duobus.clock import Clock
from duobus.demo.clients import doors_of, silence_sdk_logs
from duobus.demo.corpus import Outgoing
from duobus.demo.dispositions import Dispositions
from duobus.demo.errors import DemoFailed
from duobus.demo.feed import Feed
from duobus.demo.ledger import Ledger
from duobus.demo.run_state import RunState
from duobus.demo.server_process import ServerProcess, queues_config
from duobus.demo.traffic import Crew, Traffic

QUEUE = "killed"
QUEUE_PROPERTIES = {
    "EnablePartitioning": True,
    "LockDuration": "PT15S",
    "MaxDeliveryCount": 1_000_000,
    "DefaultMessageTimeToLive": "P1D",
}

#: A kill comes this long after the broker was ready, seconds.
LIFE_S = (0.2, 1.5)

#: Senders wait while so many messages are out, so that the final drain is short.
BACKLOG_MAX = 1_000

#: Bound on the final drain, and what one kill with its restart may take on a busy machine, seconds.
DRAIN_LIMIT_S = 120.0
KILL_LIMIT_S = 20.0

POLL_S = 0.02
PROGRESS_PERIOD = 50


def messages(dice: random.Random) -> Iterator[Outgoing]:
    """Yield messages for ever: unique ids, bodies of up to 4 KiB, and a partition key for half of them."""
    for number in itertools.count(1):
        body = dice.randbytes(dice.choice((16, 256, 1024, 4096)))
        yield Outgoing(f"message-{number}", partition_key=f"key-{number % 37}" if number % 2 else None, body=body)


def run_loop(folder: Path, kills: int, seed: int, *, is_ephemeral: bool = False) -> dict[str, Any]:
    """Run the loop in ``folder``; return the counts and what each restart took.

    ``is_ephemeral`` keeps nothing over a kill: a loop that calls that clean is broken.

    Raises:
        DemoFailed: The broker did not start, or the end did not come in its time.
    """
    clock = Clock()
    dice = random.Random(seed)
    arguments = ["--emulator", "--tls-self-signed", *(["--ephemeral"] if is_ephemeral else [])]
    server = ServerProcess(folder, config=queues_config({QUEUE: QUEUE_PROPERTIES}), arguments=arguments, clock=clock)
    try:
        with server:
            return _run(server, clock, dice, kills)
    except DemoFailed as error:
        raise DemoFailed(f"{error}\nThe end of the broker's log:\n{server.log_tail()}") from error


def _run(server: ServerProcess, clock: Clock, dice: random.Random, kills: int) -> dict[str, Any]:
    began_ms = clock.monotonic_ms()
    ledger = Ledger(clock)
    feed = Feed(messages(random.Random(dice.random())), limit=BACKLOG_MAX)
    run = RunState(QUEUE, feed, ledger, Dispositions(), clock, KILL_LIMIT_S * kills + DRAIN_LIMIT_S)
    restarts: list[dict[str, int | None]] = []
    in_flight = 0
    with Traffic(run, doors_of(server), Crew(senders=2, async_senders=2)) as traffic:
        # The first life begins when traffic does: clients take a moment to connect.
        run.wait_until(lambda: ledger.settled_sends > 0, KILL_LIMIT_S, "a first send is accepted")
        for number in range(1, kills + 1):
            _live(run, clock, dice.uniform(*LIFE_S))
            server.kill()
            in_flight += ledger.in_flight
            if restarts:
                restarts[-1]["first_accepted_send_ms"] = _first_send_ms(ledger, server)
            server.start()
            # Only now: an answer of the killed process may have been waiting to be read.
            ledger.watch_sends()
            restarts.append({"ready_ms": clock.monotonic_ms() - server.started_at_ms, "first_accepted_send_ms": None})
            if number % PROGRESS_PERIOD == 0:
                print(f"{number} kills, {ledger.settled_sends} accepted", file=sys.stderr)
        feed.allow(None)
        run.wait_until(lambda: ledger.first_acknowledged_ms is not None, KILL_LIMIT_S, "a send after the last kill")
        restarts[-1]["first_accepted_send_ms"] = _first_send_ms(ledger, server)
        feed.finish()
        run.wait_until(lambda: ledger.in_flight == 0, KILL_LIMIT_S, "the last sends have an outcome")
        left = traffic.drain(DRAIN_LIMIT_S)
    return {
        "kills": kills,
        **ledger.report(),
        "left": left,
        "missing": ledger.missing()[:10],
        "altered_how": dict(list(ledger.altered().items())[:10]),
        "sends_in_flight_at_kills": in_flight,
        "ready_ms": _summary([restart["ready_ms"] for restart in restarts]),
        "first_accepted_send_ms": _summary([restart["first_accepted_send_ms"] for restart in restarts]),
        "restarts": restarts,
        "seconds": round((clock.monotonic_ms() - began_ms) / 1000, 1),
    }


def _live(run: RunState, clock: Clock, seconds: float) -> None:
    """Let the traffic flow for so long, and the senders go on as far as the receivers have come."""
    until_ms = clock.monotonic_ms() + int(seconds * 1000)
    while (rest_ms := until_ms - clock.monotonic_ms()) > 0:
        run.check()
        run.feed.allow(run.ledger.received_ids + BACKLOG_MAX)
        run.stopping.wait(min(POLL_S, rest_ms / 1000))


def _first_send_ms(ledger: Ledger, server: ServerProcess) -> int | None:
    """Return how long after the process was made a send was accepted; None when it was killed before that."""
    at_ms = ledger.first_acknowledged_ms
    return None if at_ms is None else at_ms - server.started_at_ms


def _summary(values: list[int | None]) -> dict[str, float]:
    measured = [value for value in values if value is not None]
    return {"measured": len(measured), "median": statistics.median(measured), "max": max(measured)}


def is_clean(result: dict[str, Any]) -> bool:
    """Return whether every acknowledged message came out as it went in, and none after it was completed."""
    return not (result["lost"] or result["altered"] or result["revived"] or result["left"])


def main() -> int:
    """Parse the command line and run; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=10, help="how often to kill (default: 10)")
    parser.add_argument("--seed", type=int, help="seed of the moments and messages (default: a new one, printed)")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--unsafe-ephemeral", action="store_true", help="planted fault: keep nothing over a kill")
    parser.add_argument("--keep", type=Path, help="keep data and log in this folder")
    options = parser.parse_args()
    if options.kills < 1:
        parser.error("--kills must be at least 1")
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    silence_sdk_logs()
    with tempfile.TemporaryDirectory(prefix="duobus-killloop-") as temporary:
        try:
            folder = options.keep or Path(temporary)
            counts = run_loop(folder, options.kills, seed, is_ephemeral=options.unsafe_ephemeral)
            result = {"seed": seed, **counts}
        except DemoFailed as error:
            print(f"seed {seed}: {error}", file=sys.stderr)
            return 1
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            if name != "restarts":
                print(f"{name:24} {value}")
    return 0 if is_clean(result) else 1


if __name__ == "__main__":
    sys.exit(main())
