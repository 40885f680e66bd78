"""Kill the broker with SIGKILL under SDK traffic, again and again, and see whether anything acknowledged is lost.

    python tools/killloop.py --kills 10
    python tools/killloop.py --kills 1000 --json      # the long form, half an hour
    python tools/killloop.py --kills 10 --rush 0.3    # spares a busy machine
    python tools/killloop.py --kills 3 --unsafe-ephemeral   # the planted fault; must lose
    python tools/killloop.py --kills 300 --take-files --results .build/taken.jsonl

Senders and receivers on the official SDK, synchronous and asyncio, plain and TLS, keep a partitioned queue busy. The
broker is killed at a random moment after each start and started again on the same data folder. At the end everything
is received, and each message is accounted for (I1, I7, I17). With ``--rush`` the senders do so only for the last moment
before each kill, and a few messages a second flow in between.

With ``--take-files`` somebody takes files away, too, while the broker runs or after it was killed: a store's log, the
catalog, its log; or puts an older copy in their place. Then nothing that was acknowledged may be lost, or the broker
refuses the store or its start and says what to do, which is done; what is in one queue never comes out of another; a
broker whose files were left alone refuses nothing. Such a run goes by rounds of 25 kills, each with a folder and a seed
of its own. Results of rounds are added to the file of ``--results``; a run that is begun again goes on behind them.

Exit status: 0 nothing lost, altered, revived or left; 1 something was, or the run could not be finished.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from duobus.clock import Clock
from duobus.testing.server import DemoFailed, ServerProcess, queues_config
from duobus_demo.clients import endpoints_of, silence_sdk_logs
from duobus_demo.corpus import Outgoing
from duobus_demo.dispositions import Dispositions
from duobus_demo.feed import Feed
from duobus_demo.message_account import MessageAccount
from duobus_demo.run_state import RunState
from duobus_demo.workers.traffic import Traffic, WorkerCounts

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

#: What may be taken away, and how often beside each other; "nothing" shows that a broker left alone refuses nothing.
STRIKES = {
    "nothing": 3,
    "log while running": 3,
    "log": 3,
    "older log": 3,
    "catalog log while running": 1,
    "catalog log": 1,
    "older catalog log": 1,
    "catalog while running": 1,
    "catalog": 1,
    "older catalog": 1,
}
ROUND_KILLS = 25
#: In a queue of its own, which nobody uses meanwhile.
QUIET, QUIET_MESSAGES = "quiet", 20
#: What a refusal has to say, in whatever words.
ADVICE = "put"
#: Until a store is open again after its file was put back.
BACK_LIMIT_S = 30.0

#: Between kills with ``--rush``, messages a second.
CALM_PER_S = 50.0

POLL_S = 0.02
PROGRESS_PERIOD = 50


def messages(dice: random.Random) -> Iterator[Outgoing]:
    """Yield messages for ever: unique ids, bodies of up to 4 KiB, and a partition key for half of them."""
    for number in itertools.count(1):
        body = dice.randbytes(dice.choice((16, 256, 1024, 4096)))
        yield Outgoing(f"message-{number}", partition_key=f"key-{number % 37}" if number % 2 else None, body=body)


class Taker:
    """Takes files of a broker away, and puts them back when it says so.

    Attributes:
        strikes: How often each was done.
        refusals: How often the broker refused a store or its start after it.
        wrong: What should not have happened, in words.
    """

    def __init__(self, server: ServerProcess, data: Path, dice: random.Random, clock: Clock) -> None:
        self._server = server
        self._data = data
        self._dice = dice
        self._clock = clock
        self._stash = data.parent / "stash"
        self._stash.mkdir(exist_ok=True)
        # What was there at an earlier kill, and what is away now: path to where it is.
        self._older: dict[Path, Path] = {}
        self._away: dict[Path, Path] = {}
        self._strike = "nothing"
        self._number = 0
        # Where the log of the present life begins.
        self._log_bytes = 0
        self.strikes: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.wrong: list[str] = []

    def while_running(self) -> None:
        """Choose what is taken away in this life, and take it if that is while the broker runs."""
        self._strike = self._dice.choices(list(STRIKES), list(STRIKES.values()))[0]
        self.strikes[self._strike] += 1
        if self._strike.endswith("while running"):
            self._take(self._file())

    def while_stopped(self) -> None:
        """Take it now, or put an older copy in its place."""
        file = self._file()
        if self._strike.startswith("older"):
            older = self._older.get(file)
            if older is not None and file.exists():
                self._take(file)
                shutil.copyfile(older, file)
        elif self._strike in ("log", "catalog", "catalog log"):
            self._take(file)
        for path in [self._data / "catalog.db", self._data / "catalog.db-wal", *self._logs()]:
            # For a later strike: older by a whole life at least.
            if path.exists() and path not in self._away and self._dice.random() < 0.3:
                copy = self._older[path] = self._name()
                shutil.copyfile(path, copy)

    def start(self) -> None:
        """Start the broker; if it refuses that, or a store, do what it says."""
        self._log_bytes = self._server.log_path.stat().st_size
        try:
            self._server.start()
        except DemoFailed as error:
            self._refused("the start", str(error))
            self._put_back()
            self._server.start()
        self._see_to_stores()
        self._away.clear()

    def _see_to_stores(self) -> None:
        pause = threading.Event()
        until_ms = self._clock.monotonic_ms() + int(BACK_LIMIT_S * 1000)
        while away := [number for number, state in self._states().items() if state != "open"]:
            told = self._told()
            if any(path.name in told for path in self._away):
                self._refused(f"store {away}", told)
                self._put_back()
            elif self._strike == "nothing" and not self.wrong:
                self.wrong.append(f"store {away} is not open though nothing was taken: {self._server.log_tail()}")
            if self._clock.monotonic_ms() > until_ms:
                raise DemoFailed(f"After '{self._strike}' store {away} was not opened again.")
            pause.wait(0.2)

    def _told(self) -> str:
        """What the broker has said in this life. A store that is late only is not refused, and gets nothing back."""
        return self._server.log_path.read_bytes()[self._log_bytes :].decode(errors="replace")

    def _refused(self, what: str, text: str) -> None:
        self.refusals[self._strike] += 1
        if not self._away:
            self.wrong.append(f"{what} was refused though nothing was taken: {text}")
        elif ADVICE not in text.lower():
            self.wrong.append(f"{what} was refused without a word of what to do: {text}")

    def _states(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self._server.ready['http_port']}/health"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            found = json.load(error)
        states: dict[str, str] = found["stores"]
        return states

    def _file(self) -> Path:
        if "catalog" in self._strike:
            return self._data / ("catalog.db-wal" if "catalog log" in self._strike else "catalog.db")
        logs = self._logs()
        return self._dice.choice(logs) if logs else self._data / "stores" / "store-1.db-wal"

    def _logs(self) -> list[Path]:
        return sorted((self._data / "stores").glob("store-*.db-wal"))

    def _name(self) -> Path:
        self._number += 1
        return self._stash / str(self._number)

    def _take(self, file: Path) -> None:
        if file.exists() and file not in self._away:
            self._away[file] = file.rename(self._name())

    def _put_back(self) -> None:
        for file, place in self._away.items():
            place.replace(file)
        self._away.clear()


def fill_quiet(server: ServerProcess) -> None:
    """Send what is to lie in a queue of its own until the end."""
    client = ServiceBusClient.from_connection_string(server.connection_string)
    with client, client.get_queue_sender(QUIET) as sender:
        sender.send_messages([ServiceBusMessage(f"quiet-{number}") for number in range(QUIET_MESSAGES)])


def quiet_faults(server: ServerProcess) -> list[str]:
    """What is wrong with the queue that nobody used, in words."""
    client = ServiceBusClient.from_connection_string(server.connection_string)
    with client, client.get_queue_receiver(QUIET) as receiver:
        found = sorted(str(message) for message in receiver.peek_messages(10 * QUIET_MESSAGES))
    wanted = sorted(f"quiet-{number}" for number in range(QUIET_MESSAGES))
    return [] if found == wanted else [f"the queue that nobody used holds {found}"]


def run_rounds(
    folder: Path, kills: int, seed: int, results: Path | None, rush_s: float | None = None
) -> dict[str, Any]:
    """Run rounds with files taken away; return the sums of their counts.

    Rounds that ``results`` holds are not run again.
    """
    done = [json.loads(line) for line in results.read_text().splitlines()] if results and results.exists() else []
    done = [one for one in done if one["of_seed"] == seed]
    while (left := kills - sum(one["kills"] for one in done)) > 0:
        number = len(done)
        place = folder / f"round-{number}"
        counts = run_loop(place, min(left, ROUND_KILLS), seed + number, takes_files=True, rush_s=rush_s)
        kept = {name: value for name, value in counts.items() if name != "restarts"}
        done.append({"of_seed": seed, "round": number, **kept})
        if results is not None:
            results.parent.mkdir(parents=True, exist_ok=True)
            with results.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
        if is_clean(counts):
            shutil.rmtree(place, ignore_errors=True)
        total = _sums(done)
        print(
            f"round {number}: {total['kills']} kills, lost {total['lost']}, strikes {total['strikes']}", file=sys.stderr
        )
    return _sums(done)


def _sums(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("kills", "acknowledged", "received", "lost", "altered", "revived", "left", "duplicates")
    sums: dict[str, Any] = {name: sum(one[name] for one in rounds) for name in names}
    for name in ("strikes", "refusals"):
        sums[name] = dict(sum((Counter(one[name]) for one in rounds), Counter()))
    sums["wrong"] = [text for one in rounds for text in one["wrong"]]
    return sums


def run_loop(
    folder: Path,
    kills: int,
    seed: int,
    *,
    is_ephemeral: bool = False,
    takes_files: bool = False,
    rush_s: float | None = None,
) -> dict[str, Any]:
    """Run the loop in ``folder``; return the counts and what each restart took.

    ``is_ephemeral`` keeps nothing over a kill: a loop that calls that clean is broken. ``rush_s`` is how long before a
    kill the senders are let go; None lets them send all the time.

    Raises:
        DemoFailed: The broker did not start, or the end did not come in its time.
    """
    clock = Clock()
    dice = random.Random(seed)
    arguments = ["--emulator", "--tls-self-signed", *(["--ephemeral"] if is_ephemeral else [])]
    queues: dict[str, Any] = {QUEUE: QUEUE_PROPERTIES, **({QUIET: {}} if takes_files else {})}
    server = ServerProcess(folder, config=queues_config(queues), arguments=arguments, clock=clock)
    try:
        with server:
            taker = Taker(server, folder / "data", random.Random(f"files:{seed}"), clock) if takes_files else None
            if taker is not None:
                fill_quiet(server)
            return _run(server, clock, dice, kills, taker, rush_s)
    except DemoFailed as error:
        raise DemoFailed(f"{error}\nThe end of the broker's log:\n{server.log_tail()}") from error


def _run(
    server: ServerProcess,
    clock: Clock,
    dice: random.Random,
    kills: int,
    taker: Taker | None,
    rush_s: float | None,
) -> dict[str, Any]:
    began_ms = clock.monotonic_ms()
    account = MessageAccount(clock)
    feed = Feed(messages(random.Random(dice.random())), limit=BACKLOG_MAX if rush_s is None else 1)
    run = RunState(
        QUEUE, feed, account, Dispositions(), clock, (KILL_LIMIT_S + 2 * BACK_LIMIT_S) * kills + DRAIN_LIMIT_S
    )
    pace = Pace(run, None if rush_s is None else CALM_PER_S)
    restarts: list[dict[str, int | None]] = []
    in_flight = 0
    with Traffic(run, endpoints_of(server), WorkerCounts(senders=2, async_senders=2)) as traffic:
        # The first life begins when traffic does: clients take a moment to connect.
        run.wait_until(lambda: account.settled_sends > 0, KILL_LIMIT_S, "a first send is accepted")
        for number in range(1, kills + 1):
            life_s = dice.uniform(*LIFE_S)
            before_s, behind_s = (life_s, 0.0) if taker is None else (life_s / 2, life_s / 2)
            if rush_s is not None:
                behind_s = min(rush_s, life_s)
                before_s = life_s - behind_s
            pace.live(before_s)
            if taker is not None:
                taker.while_running()
            pace.rush(behind_s)
            server.kill()
            if taker is not None:
                taker.while_stopped()
            in_flight += account.in_flight
            if restarts:
                restarts[-1]["first_accepted_send_ms"] = _first_send_ms(account, server)
            if taker is None:
                server.start()
            else:
                taker.start()
            # Only now: an answer of the killed process may have been waiting to be read.
            account.watch_sends()
            restarts.append({"ready_ms": clock.monotonic_ms() - server.started_at_ms, "first_accepted_send_ms": None})
            if number % PROGRESS_PERIOD == 0:
                print(f"{number} kills, {account.settled_sends} accepted", file=sys.stderr)
        feed.allow(None)
        run.wait_until(lambda: account.first_acknowledged_ms is not None, KILL_LIMIT_S, "a send after the last kill")
        restarts[-1]["first_accepted_send_ms"] = _first_send_ms(account, server)
        feed.finish()
        run.wait_until(lambda: account.in_flight == 0, KILL_LIMIT_S, "the last sends have an outcome")
        left = traffic.drain(DRAIN_LIMIT_S)
    return {
        "kills": kills,
        **account.report(),
        "left": left,
        "missing": account.missing()[:10],
        "altered_how": dict(list(account.altered().items())[:10]),
        "sends_in_flight_at_kills": in_flight,
        "ready_ms": _summary([restart["ready_ms"] for restart in restarts]),
        "first_accepted_send_ms": _summary([restart["first_accepted_send_ms"] for restart in restarts]),
        **({} if taker is None else _taken(taker, server)),
        "restarts": restarts,
        "seconds": round((clock.monotonic_ms() - began_ms) / 1000, 1),
    }


def _taken(taker: Taker, server: ServerProcess) -> dict[str, Any]:
    wrong = taker.wrong + quiet_faults(server)
    return {"strikes": dict(taker.strikes), "refusals": dict(taker.refusals), "wrong": wrong}


class Pace:
    """Lets the traffic of a run flow: at most BACKLOG_MAX ahead of the receivers, and at a rate if one is given.

    Args:
        run: What the workers share.
        rate: Messages a second; None for as many as the machine can do.
    """

    def __init__(self, run: RunState, rate: float | None) -> None:
        self._run = run
        self._rate = rate

    def live(self, seconds: float) -> None:
        """Let messages flow for so long."""
        self._flow(seconds, self._rate)

    def rush(self, seconds: float) -> None:
        """Let messages flow for so long, as many as the machine can do."""
        self._flow(seconds, None)

    def _flow(self, seconds: float, rate: float | None) -> None:
        run, clock = self._run, self._run.clock
        begun_ms, taken = clock.monotonic_ms(), run.feed.taken
        until_ms = begun_ms + int(seconds * 1000)
        while (rest_ms := until_ms - clock.monotonic_ms()) > 0:
            run.check()
            most = run.account.received_ids + BACKLOG_MAX
            if rate is not None:
                most = min(most, taken + 1 + int(rate * (clock.monotonic_ms() - begun_ms) / 1000))
            run.feed.allow(most)
            run.stopping.wait(min(POLL_S, rest_ms / 1000))
        if self._rate is not None:
            # While nobody looks, until the next call, only what is on its way is tried again.
            run.feed.allow(run.feed.taken)


def _first_send_ms(account: MessageAccount, server: ServerProcess) -> int | None:
    """Return how long after the process was made a send was accepted; None when it was killed before that."""
    at_ms = account.first_acknowledged_ms
    return None if at_ms is None else at_ms - server.started_at_ms


def _summary(values: list[int | None]) -> dict[str, float]:
    measured = [value for value in values if value is not None]
    return {"measured": len(measured), "median": statistics.median(measured), "max": max(measured)}


def is_clean(result: dict[str, Any]) -> bool:
    """Return whether every acknowledged message came out as it went in, and none after it was completed."""
    wrong = result.get("wrong")
    return not (result["lost"] or result["altered"] or result["revived"] or result["left"] or wrong)


def main() -> int:
    """Parse the command line and run; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=10, help="how often to kill (default: 10)")
    parser.add_argument("--seed", type=int, help="seed of the moments and messages (default: a new one, printed)")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--unsafe-ephemeral", action="store_true", help="planted fault: keep nothing over a kill")
    parser.add_argument(
        "--journal", action=argparse.BooleanOptionalAction, help="whether the broker's stores have journals"
    )
    parser.add_argument("--take-files", action="store_true", help="take logs and the catalog away, too")
    parser.add_argument(
        "--results", type=Path, help="with --take-files: add rounds to this file, and go on behind them"
    )
    parser.add_argument(
        "--rush", type=float, metavar="SECONDS", help="send at full speed only so long before each kill, else a little"
    )
    parser.add_argument("--keep", type=Path, help="keep data and log in this folder")
    options = parser.parse_args()
    if options.kills < 1:
        parser.error("--kills must be at least 1")
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    if options.journal is not None:
        # Each server that is started takes it from here.
        os.environ["DUOBUS_JOURNAL"] = str(int(options.journal))
    silence_sdk_logs()
    with tempfile.TemporaryDirectory(prefix="duobus-killloop-") as temporary:
        try:
            folder = options.keep or Path(temporary)
            if options.take_files:
                counts = run_rounds(folder, options.kills, seed, options.results, options.rush)
            else:
                is_ephemeral = options.unsafe_ephemeral
                counts = run_loop(folder, options.kills, seed, is_ephemeral=is_ephemeral, rush_s=options.rush)
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
