"""Faults of processes and clocks, for a cluster whose network is cut as well.

A fault is a context: it strikes at its begin, and its end takes it back. What was started again need not serve by then.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from kit_cluster import write_clock

from duobus.testing.postgres_server import PostgresError, PostgresServer

#: By how much a clock is off, in seconds. Ids of duplicates are remembered for 10 minutes of broker time, tokens of the
#: SDK live for longer, and no lock for so long.
CLOCK_OFF_S: Final = (120.0, 240.0)
#: What was killed is started again after so long, seconds: sooner or later than a lease is over (2.5 s).
AGAIN_S: Final = (0.5, 4.0)
_START_TRIES: Final = 100


class Stage(Protocol):
    """Where faults strike."""

    servers: range
    databases: tuple[PostgresServer, ...]

    def kill(self, number: int) -> None:
        """Kill a server."""

    def start(self, number: int) -> None:
        """Start a server."""

    def signal(self, number: int, what: int) -> None:
        """Send a signal to a server."""

    def clock_file(self, number: int) -> Path:
        """The file that tells by how much a server's clock is off."""


Strike = Callable[[Stage, random.Random], AbstractContextManager[Any]]


@contextmanager
def none(_stage: Stage, _rng: random.Random) -> Iterator[None]:
    """Nothing but the network."""
    yield


@contextmanager
def kill_server(stage: Stage, rng: random.Random) -> Iterator[None]:
    """A server is killed, and started again while the network is still cut."""
    victim = rng.choice(stage.servers)
    stage.kill(victim)
    time.sleep(rng.uniform(*AGAIN_S))
    stage.start(victim)
    yield


@contextmanager
def pause_server(stage: Stage, rng: random.Random) -> Iterator[None]:
    """A server stands still for longer than its leases last."""
    victim = rng.choice(stage.servers)
    stage.signal(victim, signal.SIGSTOP)
    try:
        yield
    finally:
        stage.signal(victim, signal.SIGCONT)


@contextmanager
def kill_database(stage: Stage, rng: random.Random) -> Iterator[None]:
    """PostgreSQL is killed, and started again."""
    victim = rng.choice(stage.databases)
    victim.stop("kill")
    time.sleep(rng.uniform(*AGAIN_S))
    start_again(victim)
    yield


@contextmanager
def pause_database(stage: Stage, rng: random.Random) -> Iterator[None]:
    """All processes of PostgreSQL stand still."""
    victim = rng.choice(stage.databases)
    # A process that is made while others are stopped already is found in the next round.
    stopped: set[int] = set()
    while fresh := family(victim.pid) - stopped:
        for pid in fresh:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= fresh
    try:
        yield
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _clock(sign: int) -> Strike:
    @contextmanager
    def off(stage: Stage, rng: random.Random) -> Iterator[None]:
        victim = rng.choice(stage.servers)
        set_clock(stage, victim, sign * rng.uniform(*CLOCK_OFF_S))
        # A server that runs follows a clock that jumps slowly; one that starts, or opens a store, believes it.
        if rng.random() < 0.5:
            stage.kill(victim)
            stage.start(victim)
        try:
            yield
        finally:
            set_clock(stage, victim, 0.0)

    return off


#: By name.
STRIKES: Final[dict[str, Strike]] = {
    "none": none,
    "kill_server": kill_server,
    "pause_server": pause_server,
    "kill_database": kill_database,
    "pause_database": pause_database,
    "clock_ahead": _clock(1),
    "clock_behind": _clock(-1),
}
#: Those in which clocks are wrong.
CLOCKS: Final = ("clock_ahead", "clock_behind")


def tolerance_s(name: str) -> float:
    """How much before its time a scheduled message may come under a fault, by the clock of the client.

    A server that opens a store begins with the later of its own clock and the time that the store has recorded, and
    from then on time does not go back: broker time is ahead of the clients' by what the wrong clock is, and never by
    more. No other fault makes a message due before its time: clients, servers and databases have one clock here.
    """
    return CLOCK_OFF_S[1] if name == "clock_ahead" else 0.0


def set_clock(stage: Stage, number: int, off_s: float) -> None:
    """From now on a server's clock is off by so much, and runs as before."""
    write_clock(stage.clock_file(number), off_s)


def start_again(database: PostgresServer) -> None:
    """Start PostgreSQL; what a kill has left of it has to go first."""
    for _ in range(_START_TRIES):
        try:
            database.start()
        except PostgresError:
            time.sleep(0.1)
        else:
            return
    raise PostgresError(database.log_tail())


def family(pid: int) -> set[int]:
    """A process and its children, which have process groups of their own in PostgreSQL."""
    found = {pid}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # Behind the name, which may have spaces: state, parent.
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.add(int(path.parent.name))
    return found
