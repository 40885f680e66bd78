"""What more servers, stores and databases would carry: a queueing model, beside what was measured on one machine.

    python -m benchmarks.scale            the model against the measured configurations, then extrapolated

A pure simulation from one seed (``Plant``): messages circulate as in the workloads of ``benchmarks.run``. A server is
one interpreter, which takes what has arrived in a turn, and works for its stores. A store has one commit in flight,
which takes everything that waits; its end is a sync on a disk (or in a PostgreSQL server) that does one at a time.
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
#: How much the time of a sync varies, as a share of it.
SPREAD: Final = 0.3


class Costs(NamedTuple):
    """What one kind of store costs, in microseconds.

    Attributes:
        turn: A turn of the interpreter, whatever it has to do; the hand-over to the store's thread included.
        message: One message in a turn: reading, deciding, storing, answering.
        sync: One commit on the disk, whatever is in it; nothing else happens on that disk meanwhile.
        row: One message in a commit, on the disk or in the database.
        client: From an answer to the next message of its client, which is one turn of that.
        passed: One message at a server that passes it on, in addition.
    """

    turn: float
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
        # Messages that wait for the next commit of a store, and whether one is under way.
        self._waiting = [layout.window] * stores
        self._is_busy = [False] * stores
        # Until when an interpreter and a disk are taken.
        self._server_free = [0.0] * layout.servers
        self._disk_free = [0.0] * layout.disks
        self._turns = [0] * layout.servers
        self.commits = 0
        self.done = 0

    def rate(self) -> float:
        """Messages a second."""
        for store, number in enumerate(self._waiting):
            # Not all at once: half of them come while the first commit is under way.
            self._waiting[store] = 0
            self._at(0.0, _ARRIVED, store, number - number // 2)
            self._at(1.0, _ARRIVED, store, number // 2)
        end = WARM_US + COUNTED_US
        while self._events:
            now, _, kind, store, number = heapq.heappop(self._events)
            if now > end:
                break
            _STEPS[kind](self, store, number, now)
        return self.done / COUNTED_US * 1e6

    def arrived(self, store: int, number: int, now: float) -> None:
        """Clients have sent; what has no key goes to a store of the server's in turn."""
        store = self._next_of(store)
        self._waiting[store] += number
        if not self._is_busy[store]:
            self._begin(store, now)

    def _next_of(self, store: int) -> int:
        """The store of the same server whose turn it is."""
        servers = self._layout.servers
        server, count = store % servers, self._layout.stores
        self._turns[server] = (self._turns[server] + 1) % count
        return server + servers * self._turns[server]

    def _begin(self, store: int, now: float) -> None:
        """A turn decides everything that waits, and hands it to the store."""
        number, self._waiting[store] = self._waiting[store], 0
        self._is_busy[store] = number > 0
        if not number:
            return
        costs, layout = self._costs, self._layout
        server = store % layout.servers
        start = max(now, self._server_free[server])
        self._server_free[server] = start + costs.turn + number * costs.message
        if layout.passed:
            # Its neighbour has its own work with them, before and after: both ways are counted here.
            other = (server + 1) % layout.servers
            self._server_free[other] = max(self._server_free[other], now) + number * layout.passed * costs.passed
        self._at(self._server_free[server], _PREPARED, store, number)

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
        self._at(now + self._costs.client, _ARRIVED, store, number)
        self._begin(store, now)

    def _at(self, when: float, kind: int, store: int, number: int) -> None:
        if number:
            self._serial += 1
            heapq.heappush(self._events, (when, self._serial, kind, store, number))


_ARRIVED: Final = 0
_PREPARED: Final = 1
_COMMITTED: Final = 2
_STEPS: Final = (Plant.arrived, Plant.prepared, Plant.committed)


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
        client: The generator's time for one message in D, for one of two turns.
        is_fitted: Whether the rate of A1000 is an input, too: what a message costs in the database is not seen else.
    """

    stores: int
    rates: Mapping[str, float]
    cpu: Mapping[str, float]
    client: float
    is_fitted: bool = False


#: benchmarks/results/69b114e-rabbitmq.json (plain, partitioned), bbec94f-rabbitmq.json (PostgreSQL).
MEASURED: Final[Mapping[str, Measured]] = {
    "file": Measured(
        1,
        {"A100": 102_040, "A1000": 192_150, "C1x1": 145_487, "C4x4": 150_530, "D": 1_525},
        {"A100": 7.98, "A1000": 4.85, "C1x1": 6.58, "C4x4": 7.42, "D": 448.2},
        38.1,
    ),
    "partitioned": Measured(
        4,
        {"A100": 85_089, "A1000": 151_472, "C1x1": 110_058, "C4x4": 133_225, "D": 1_536},
        {"A100": 9.52, "A1000": 7.57, "C1x1": 9.92, "C4x4": 9.49, "D": 533.7},
        34.3,
    ),
    "postgres": Measured(
        1,
        {"A100": 65_485, "A1000": 125_938, "C1x1": 83_667, "C4x4": 90_804, "D": 872},
        {"A100": 8.05, "A1000": 4.47, "C1x1": 7.82, "C4x4": 7.12, "D": 610.4},
        53.9,
        is_fitted=True,
    ),
}
#: Messages under way in each workload, over all clients.
WINDOWS: Final = {"A100": 100, "A1000": 1_000, "C1x1": 1_000, "C4x4": 4_000}
#: Work of a server that passes a message on, in microseconds.
PASSED_US: Final = 6.0
#: Bytes of a connection that a server holds (``make connections``); an owner has one more for each that is passed.
CONNECTION_BYTES: Final = 13_271


def costs_of(measured: Measured, workload: str = "A1000") -> Costs:
    """The costs of a configuration; a message costs what it does in ``workload``."""
    message = measured.cpu[workload]
    # D has two commits for a message, its sending and its settling, with nothing else in them.
    turn = measured.cpu["D"] / 2 - measured.cpu["A1000"]
    sync = max(0.0, 1e6 / measured.rates["D"] / 2 - measured.client - measured.cpu["D"] / 2)
    return Costs(turn, message, sync, row_of(measured, turn, sync), measured.client, PASSED_US)


def row_of(measured: Measured, turn: float, sync: float) -> float:
    """What a message costs in the database, so that A1000 comes out as it was measured; 0 for a file."""
    low, high = 0.0, 200.0
    for _ in range(20 if measured.is_fitted else 0):
        middle = (low + high) / 2
        costs = Costs(turn, measured.cpu["A1000"], sync, middle, measured.client)
        is_faster = rate(Layout(1, 1, 1, WINDOWS["A1000"]), costs) > measured.rates["A1000"]
        low, high = (middle, high) if is_faster else (low, middle)
    return low


def validation() -> Iterator[tuple[str, str, float, float]]:
    """Kind, workload, measured and modelled rate; of what was no input."""
    for kind, measured in MEASURED.items():
        for workload, window in WINDOWS.items():
            if not (measured.is_fitted and workload == "A1000"):
                layout = Layout(1, measured.stores, 1, max(1, window // measured.stores))
                # What a turn costs is counted by itself: a message costs what it does where turns are full.
                full = "A1000" if workload.startswith("A") else "C1x1"
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
    costs = costs_of(MEASURED["postgres"], "C1x1")
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
