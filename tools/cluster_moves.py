"""Move fragments between the stores of three servers under SDK traffic, again and again, and account for each message.

    python tools/cluster_moves.py --moves 20
    python tools/cluster_moves.py --moves 1000 --results .build/moves.jsonl      # the long form
    python tools/cluster_moves.py --moves 1000 --seed 7 --kill-every 10

Senders and receivers on the official SDK use a partitioned queue with duplicate detection, scheduled and deferred
messages, one with sessions, and a topic with rules and a subscription that forwards, at all servers at a time. Shards
and whole entities move to stores of other servers; one in so many moves has a server killed in the midst of it and
started again. At the end of each round everything is received: nothing may be lost, doubled, out of its session's order
or before its time, and no move may be left behind.

A run goes by rounds of 25 moves, each with a cluster and a seed of its own. Results of rounds are added to the file of
``--results``; a run that is begun again goes on behind them.

Exit status: 0 nothing is wrong; 1 something is, or the run could not be finished.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient

from duobus.clock import Clock
from duobus.model.access_rules import sign_token
from duobus.testing.postgres_server import PostgresServer
from duobus.testing.server import DemoFailed, ServerProcess
from duobus_demo.clients import endpoints_of, silence_sdk_logs
from duobus_demo.expectations.cluster_account import ClusterAccount
from duobus_demo.workers.cluster_workers import FeatureTraffic, cluster_config

SERVERS = 3
STORES = 6
MOVES_A_ROUND = 25
#: Pause between two moves, seconds; and after which a server is killed in a move.
PAUSE_S = (0.0, 0.5)
KILL_AFTER_S = (0.0, 1.0)
#: Bounds on a move, on tries to begin one, and on the end of a round.
MOVE_S = 60.0
DRAIN_S = 120.0
POLL_S = 0.1
FAULTS = ("lost", "doubled", "disordered", "early", "left")


class Cluster:
    """Three servers over one PostgreSQL, as operators see them."""

    def __init__(self, folder: Path, url: str, clock: Clock) -> None:
        self._clock = clock
        arguments = ("--emulator", "--join", url, "--stores", str(STORES), "--tls-port", "0")
        self.servers = [
            ServerProcess(folder / f"server-{number}", config=cluster_config(), arguments=arguments, clock=clock)
            for number in range(SERVERS)
        ]

    def client(self, number: int) -> ServiceBusClient:
        """A client of a server."""
        return endpoints_of(self.servers[number % SERVERS])[0].client()

    def ask(self, method: str, path: str, **query: str) -> Any:
        """What any server that answers says; None when none does, or it is refused."""
        for server in self.servers:
            if not server.is_running:
                continue
            base = str(server.ready["admin_url"])
            token = sign_token(base, "RootManageSharedAccessKey", "SAS_KEY_VALUE", self._clock.now_ms() // 1000 + 600)
            url = f"{base}/$duobus/{path}?{urllib.parse.urlencode(query)}"
            asked = urllib.request.Request(url, method=method, headers={"Authorization": token})
            try:
                with urllib.request.urlopen(asked, timeout=10) as answer:
                    return json.load(answer)
            except (OSError, ValueError):
                continue
        return None


def play_round(folder: Path, seed: int, moves: int, kill_every: int, clock: Clock) -> dict[str, Any]:
    """Make so many moves under traffic, and receive everything.

    Raises:
        DemoFailed: It could not be finished.
    """
    rng = random.Random(f"cluster-moves:{seed}")
    outcomes: Counter[str] = Counter()
    account = ClusterAccount()
    held: list[int] = []
    pause = threading.Event()
    with ExitStack() as stack:
        postgres_folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="duobus-moves-pg-"))
        Path(postgres_folder).chmod(0o755)
        postgres = PostgresServer(Path(postgres_folder) / "server", durable=True)
        stack.callback(postgres.remove)
        postgres.create()
        postgres.start()
        cluster = Cluster(folder, postgres.url(), clock)
        for server in cluster.servers:
            stack.callback(server.kill)
        with ThreadPoolExecutor(SERVERS) as pool:
            list(pool.map(ServerProcess.start, cluster.servers))
        _wait(lambda: len(cluster.ask("GET", "fragments") or ()) == 64, clock, "all entities")
        with FeatureTraffic(cluster.client, account, clock, drain_s=DRAIN_S):
            for number in range(moves):
                pause.wait(rng.uniform(*PAUSE_S))
                is_killed = bool(kill_every) and number % kill_every == kill_every - 1
                outcome = _move(cluster, rng, clock, is_killed=is_killed)
                outcomes[outcome["state"]] += 1
                if outcome["state"] == "done":
                    held.append(outcome["heldMs"])
        _wait(lambda: _is_cleared(cluster), clock, "the end of all moves")
    return {
        "seed": seed,
        "moves": outcomes["done"],
        "failed": outcomes["failed"],
        **account.report(),
        "left": 0,
        "heldMs": sorted(held),
        "details": account.details(),
    }


def _is_cleared(cluster: Cluster) -> bool:
    found = cluster.ask("GET", "cluster")
    return found is not None and found["moves"] == []


def _move(cluster: Cluster, rng: random.Random, clock: Clock, *, is_killed: bool) -> dict[str, Any]:
    """Move some fragment to some other store, and wait for its end."""
    begun: list[dict[str, Any]] = []

    def is_begun() -> bool:
        rows = cluster.ask("GET", "fragments")
        if not rows:
            return False
        row = rng.choice(rows)
        to = rng.choice([store for store in range(1, STORES + 1) if store != row["store"]])
        wanted = {"entity": row["entity"], "fragment": str(row["fragment"]), "to": str(to)}
        status = cluster.ask("POST", "moves", **wanted)
        begun.extend([] if status is None else [status])
        return status is not None

    _wait(is_begun, clock, "a move to begin")
    killed = rng.choice(cluster.servers) if is_killed else None
    if killed is not None:
        threading.Event().wait(rng.uniform(*KILL_AFTER_S))
        killed.kill()
    status, ended = begun[0], dict[str, Any]()
    key = {name: status[name] for name in ("entity", "fragment", "from", "to", "begunMs")}

    def is_ended() -> bool:
        found = cluster.ask("GET", "moves")
        mine = [one for one in found or () if key.items() <= one.items()]
        if mine:
            ended.update(mine[0])
        elif found is not None and killed is not None:
            # Whoever made it is gone: the catalog alone knows what became of it.
            ended.update(key, state="failed")
        return ended.get("state") in ("done", "failed")

    try:
        _wait(is_ended, clock, f"the end of {key}")
    finally:
        if killed is not None:
            killed.start()
    return ended


def _wait(is_reached: Any, clock: Clock, what: str) -> None:
    pause, end_ms = threading.Event(), clock.monotonic_ms() + int(MOVE_S * 1000)
    while not is_reached():
        if clock.monotonic_ms() > end_ms:
            raise DemoFailed(f"The time was over while waiting for {what}.")
        pause.wait(POLL_S)


def run_rounds(moves: int, seed: int, kill_every: int, results: Path | None) -> list[dict[str, Any]]:
    """Play rounds until there are so many moves; those that ``results`` holds are not played again."""
    done = [json.loads(line) for line in results.read_text().splitlines()] if results and results.exists() else []
    clock = Clock()
    while sum(one["moves"] + one["failed"] for one in done) < moves:
        left = moves - sum(one["moves"] + one["failed"] for one in done)
        with tempfile.TemporaryDirectory(prefix="duobus-moves-") as folder:
            found = play_round(Path(folder), seed + len(done), min(MOVES_A_ROUND, left), kill_every, clock)
        done.append(found)
        print(json.dumps({name: value for name, value in found.items() if name != "heldMs"}), flush=True)
        if results is not None:
            results.parent.mkdir(parents=True, exist_ok=True)
            with results.open("a") as file:
                file.write(json.dumps(found) + "\n")
    return done


def failures_of(rounds: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the results of rounds, in words."""
    wrong = []
    for one in rounds:
        faults = [f"{one[name]} {name}" for name in FAULTS if one[name]]
        if faults:
            wrong.append(f"Round with seed {one['seed']}: {', '.join(faults)}: {one['details']}")
        if not one["acknowledged"]:
            wrong.append(f"Round with seed {one['seed']}: nothing was sent.")
    if not sum(one["moves"] for one in rounds):
        wrong.append("Nothing has moved.")
    return wrong


def main(words: list[str] | None = None) -> int:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="cluster_moves", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--moves", type=int, default=1000, help="so many moves (1000)")
    parser.add_argument("--seed", type=int, default=1, help="of the first round (1)")
    parser.add_argument("--kill-every", type=int, default=10, help="kill a server in one of so many; 0: none (10)")
    parser.add_argument("--results", type=Path, help="add rounds to this file, and go on behind them")
    options = parser.parse_args(words)
    silence_sdk_logs()
    try:
        rounds = run_rounds(options.moves, options.seed, options.kill_every, options.results)
    except DemoFailed as error:
        print(error, file=sys.stderr)
        return 1
    held = sorted(ms for one in rounds for ms in one["heldMs"])
    names = ("moves", "failed", "acknowledged", "received", "repeats", *FAULTS)
    total = {name: sum(one[name] for one in rounds) for name in names}
    print(json.dumps({**total, "medianHeldMs": held[len(held) // 2] if held else None}))
    wrong = failures_of(rounds)
    for one in wrong:
        print(one, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
