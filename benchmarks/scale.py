"""What more servers, stores and databases would carry: a queueing model, beside what was measured on one machine.

    python -m benchmarks.scale            the model against the measured configurations, then extrapolated

A pure simulation from one seed (``Plant``): messages circulate as in the workloads of ``benchmarks.run``. A server is
one interpreter. A turn of its loop reads what has arrived, lays it evenly into its stores, and begins a commit of each
store that has none under way, with everything that waits there. The end of a commit is a sync on a disk (or in a
PostgreSQL server) that does one at a time.
Inputs are processor time per message and per commit and the rate of D, as ``make bench`` measures them (``Measured``);
for a database also the rate of A1000. The rates of the other workloads validate the model.

It knows nothing of networks that are full, of databases that vacuum, or of processors that are shared: what it says of
many machines is an upper bound for the part that it models. ``docs/explanation/scale.md`` carries its table.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

SEED: Final = 1
#: Of virtual time, in microseconds: before anything is counted, and counted.
WARM_US: Final = 300_000
COUNTED_US: Final = 1_500_000
#: In so many pieces the first messages arrive.
PIECES: Final = 8
#: How much the time of a sync varies, as a share of it.
SPREAD: Final = 0.3


class Costs(NamedTuple):
    """What one kind of store costs, in microseconds.

    Attributes:
        turn: A turn of the interpreter, whatever it has to do.
        commit: One commit that a turn begins, whatever is in it: work of the store's thread in the same interpreter.
        message: One message in a turn: reading, deciding, storing, answering.
        sync: One commit on the disk, whatever is in it; nothing else happens on that disk meanwhile.
        row: One message in a commit, on the disk or in the database.
        client: From an answer to the next message of its client, which is one turn of that.
        passed: One message at a server that passes it on, in addition.
    """

    turn: float
    commit: float
    message: float
    sync: float
    row: float
    client: float
    passed: float = 0.0


class Layout(NamedTuple):
    """What there is.

    Attributes:
        servers: Interpreters.
        stores: Of each server.
        disks: Which the stores share evenly: disks, or PostgreSQL servers with one each.
        window: Messages under way for each store.
        passed: Share of the messages that come in at a server that is not the owner.
    """

    servers: int
    stores: int
    disks: int
    window: int
    passed: float = 0.0


class Plant:
    """The model: closed loops of messages over servers, stores and disks."""

    def __init__(self, layout: Layout, costs: Costs, seed: int = SEED) -> None:
        self._layout = layout
        self._costs = costs
        self._random = random.Random(f"scale:{seed}")
        self._events: list[tuple[float, int, int, int, int]] = []
        self._serial = 0
        stores = layout.servers * layout.stores
        # What has come to a server and was not read yet, and whether a turn is to come.
        self._unread = [0] * layout.servers
        self._has_turn = [False] * layout.servers
        # Messages that wait for the next commit of a store, and whether one is under way.
        self._waiting = [0] * stores
        self._is_busy = [False] * stores
        # Until when an interpreter and a disk are taken.
        self._server_free = [0.0] * layout.servers
        self._disk_free = [0.0] * layout.disks
        # Which store of a server gets the next message that is one too many for all.
        self._next = [0] * layout.servers
        self.commits = 0
        self.done = 0

    def rate(self) -> float:
        """Messages a second."""
        number = self._layout.window * self._layout.stores
        for server in range(self._layout.servers):
            # Not all at once: some come while the first commits are under way.
            for at in range(PIECES):
                self._at(at * self._costs.turn, _ARRIVED, server, (number + at) // PIECES)
        end = WARM_US + COUNTED_US
        while self._events:
            now, _, kind, place, number = heapq.heappop(self._events)
            if now > end:
                break
            _STEPS[kind](self, place, number, now)
        return self.done / COUNTED_US * 1e6

    def arrived(self, server: int, number: int, now: float) -> None:
        """Clients have sent."""
        self._unread[server] += number
        self._ask_turn(server, now)

    def _ask_turn(self, server: int, now: float) -> None:
        if not self._has_turn[server]:
            self._has_turn[server] = True
            self._at(max(now, self._server_free[server]), _TURNED, server, 1)

    def turned(self, server: int, _number: int, now: float) -> None:
        """A turn reads what has come, and begins what commits it can."""
        costs, layout = self._costs, self._layout
        if self._server_free[server] > now:
            # A neighbour has given it work meanwhile.
            self._at(self._server_free[server], _TURNED, server, 1)
            return
        self._has_turn[server] = False
        number, self._unread[server] = self._unread[server], 0
        stores = [server + layout.servers * at for at in range(layout.stores)]
        for at, store in enumerate(stores):
            behind = (at - self._next[server]) % layout.stores
            self._waiting[store] += number // layout.stores + (behind < number % layout.stores)
        self._next[server] = (self._next[server] + number) % layout.stores
        begun = [store for store in stores if self._waiting[store] and not self._is_busy[store]]
        free = now + costs.turn + number * costs.message + len(begun) * costs.commit
        self._server_free[server] = free
        if layout.passed:
            # Its neighbour has its own work with them, before and after: both ways are counted here.
            other = (server + 1) % layout.servers
            self._server_free[other] = max(self._server_free[other], now) + number * layout.passed * costs.passed
        for store in begun:
            waiting, self._waiting[store] = self._waiting[store], 0
            self._is_busy[store] = True
            self._at(free, _PREPARED, store, waiting)

    def prepared(self, store: int, number: int, now: float) -> None:
        """The commit goes to the disk."""
        disk = store % self._layout.disks
        vary = 1 + SPREAD * (2 * self._random.random() - 1)
        start = max(now, self._disk_free[disk])
        self._disk_free[disk] = start + self._costs.sync * vary + number * self._costs.row
        self._at(self._disk_free[disk], _COMMITTED, store, number)

    def committed(self, store: int, number: int, now: float) -> None:
        """It is durable, and answered; the next one begins with what has come meanwhile."""
        if now > WARM_US:
            self.commits += 1
            self.done += number
        server = store % self._layout.servers
        self._at(now + self._costs.client, _ARRIVED, server, number)
        self._is_busy[store] = False
        if self._waiting[store]:
            self._ask_turn(server, now)

    def _at(self, when: float, kind: int, place: int, number: int) -> None:
        if number:
            self._serial += 1
            heapq.heappush(self._events, (when, self._serial, kind, place, number))


_ARRIVED: Final = 0
_TURNED: Final = 1
_PREPARED: Final = 2
_COMMITTED: Final = 3
_STEPS: Final = (Plant.arrived, Plant.turned, Plant.prepared, Plant.committed)


def rate(layout: Layout, costs: Costs) -> float:
    """Messages a second of a layout."""
    return Plant(layout, costs).rate()


# -- inputs -----------------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """A configuration as ``make bench`` has measured it.

    Attributes:
        stores: Of the server.
        rates: Workload to messages a second.
        cpu: Workload to processor time of the server per message, in microseconds.
        loop_cpu: That of its event loop alone in D and A1000.
        client: The generator's time for one message in D, for one of two turns.
        is_fitted: Whether the rate of A1000 is an input, too: what a message costs in the database is not seen else.
    """

    stores: int
    rates: Mapping[str, float]
    cpu: Mapping[str, float]
    loop_cpu: Mapping[str, float]
    client: float
    is_fitted: bool = False


#: benchmarks/results/619299e4-rabbitmq-artemis.json.
MEASURED: Final[Mapping[str, Measured]] = {
    "file": Measured(
        1,
        {"A100": 53_458, "A1000": 98_506, "C1x1": 107_275, "C4x4": 126_456, "D": 1_071},
        {"A100": 17.46, "A1000": 10.16, "C1x1": 9.57, "C4x4": 8.64, "D": 659.71},
        {"A1000": 4.39, "D": 404.48},
        59.3,
    ),
    "partitioned": Measured(
        4,
        {"A100": 49_640, "A1000": 87_034, "C1x1": 79_727, "C4x4": 101_856, "D": 983},
        {"A100": 19.87, "A1000": 12.05, "C1x1": 13.64, "C4x4": 11.1, "D": 767.15},
        {"A1000": 4.79, "D": 466.37},
        61.5,
    ),
    "postgres": Measured(
        1,
        {"A100": 34_807, "A1000": 73_616, "C1x1": 62_346, "C4x4": 57_612, "D": 630},
        {"A100": 14.75, "A1000": 6.8, "C1x1": 10.04, "C4x4": 9.67, "D": 708.25},
        {"A1000": 4.41, "D": 421.0},
        80.7,
        is_fitted=True,
    ),
}
#: Messages under way in each workload, over all clients.
WINDOWS: Final = {"A100": 100, "A1000": 1_000, "C1x1": 1_000, "C4x4": 4_000}
#: Where turns are fullest when messages are received, too.
FULL: Final = "C4x4"
#: Work of a server that passes a message on, in microseconds.
PASSED_US: Final = 6.0
#: Bytes of a connection that a server holds (``make connections``); an owner has one more for each that is passed.
CONNECTION_BYTES: Final = 13_271


def costs_of(measured: Measured, workload: str = "A1000") -> Costs:
    """The costs of a configuration; a message costs what it does in ``workload``."""
    message = measured.cpu[workload]
    # D has two commits for a message, its sending and its settling, with nothing else in them.
    turn = measured.loop_cpu["D"] / 2 - measured.loop_cpu["A1000"]
    commit = measured.cpu["D"] / 2 - measured.cpu["A1000"] - turn
    sync = max(0.0, 1e6 / measured.rates["D"] / 2 - measured.client - measured.cpu["D"] / 2)
    costs = Costs(turn, commit, message, sync, 0.0, measured.client, PASSED_US)
    return costs._replace(row=row_of(measured, costs))


def row_of(measured: Measured, costs: Costs) -> float:
    """What a message costs in the database, so that A1000 comes out as it was measured; 0 for a file."""
    low, high = 0.0, 200.0
    for _ in range(20 if measured.is_fitted else 0):
        middle = (low + high) / 2
        tried = costs._replace(message=measured.cpu["A1000"], row=middle)
        is_faster = rate(Layout(1, 1, 1, WINDOWS["A1000"]), tried) > measured.rates["A1000"]
        low, high = (middle, high) if is_faster else (low, middle)
    return low


def validation() -> Iterator[tuple[str, str, float, float]]:
    """Kind, workload, measured and modelled rate; of what was no input."""
    for kind, measured in MEASURED.items():
        for workload, window in WINDOWS.items():
            if not (measured.is_fitted and workload == "A1000"):
                layout = Layout(1, measured.stores, 1, max(1, window // measured.stores))
                # What a turn costs is counted by itself: a message costs what it does where turns are full.
                full = "A1000" if workload.startswith("A") else FULL
                yield kind, workload, measured.rates[workload], rate(layout, costs_of(measured, full))


#: What is extrapolated: servers and databases, a store for each server.
PLANTS: Final = ((1, 1), (2, 1), (4, 1), (4, 4), (16, 4), (16, 16), (64, 16), (64, 64))
WINDOW: Final = 1_000


class Plan(NamedTuple):
    """One line of the table: messages a second, commits a second of each database, and with clients at any server."""

    servers: int
    databases: int
    rate: float
    commits: float
    passed: float


def extrapolated() -> Iterator[Plan]:
    """Messages that are sent and received (C1x1), with stores in PostgreSQL."""
    costs = costs_of(MEASURED["postgres"], FULL)
    for servers, databases in PLANTS:
        plant = Plant(Layout(servers, 1, databases, WINDOW), costs)
        owned = plant.rate()
        commits = plant.commits / COUNTED_US * 1e6 / databases
        # Clients that know nothing of owners meet the right one by chance.
        away = Layout(servers, 1, databases, WINDOW, (servers - 1) / servers)
        yield Plan(servers, databases, owned, commits, rate(away, costs))


def table() -> str:
    """Both tables, as the page has them."""
    lines = ["| store | workload | measured | model | off |", "|---|---|---|---|---|"]
    for kind, workload, measured, modelled in validation():
        lines.append(f"| {kind} | {workload} | {measured:,.0f} | {modelled:,.0f} | {modelled / measured - 1:+.0%} |")
    lines += ["", "| servers | databases | messages/s | commits/s of a database | messages/s, clients anywhere |"]
    lines.append("|---|---|---|---|---|")
    lines += [
        f"| {plan.servers} | {plan.databases} | {plan.rate:,.0f} | {plan.commits:,.0f} | {plan.passed:,.0f} |"
        for plan in extrapolated()
    ]
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    """Print both tables."""
    argparse.ArgumentParser(prog="python -m benchmarks.scale", description=(__doc__ or "").split("\n")[0]).parse_args(
        words
    )
    print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
