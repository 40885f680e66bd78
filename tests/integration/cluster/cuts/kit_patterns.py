"""Patterns in which a network is cut, after Jepsen's: halves, bridges, one way, flapping.

A pattern that is drawn is a list of ways, pairs of ends: nothing passes from the first of a pair to the second. Clients
are at the hub, which every end sees in every pattern.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Final, NamedTuple

from kit_network import Network

Ways = list[tuple[str, str]]
#: For how long a network that flaps is cut, and is whole, in seconds.
FLAPPING_S: Final = (0.3, 2.0)


class Ends(NamedTuple):
    """The ends of a network, by what is there.

    Attributes:
        servers: Of duobus.
        databases: Of PostgreSQL; the first one has the catalog.
    """

    servers: tuple[str, ...]
    databases: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Every end."""
        return (*self.servers, *self.databases)


def between(ones: Collection[str], others: Collection[str]) -> Ways:
    """Nothing passes between two groups, in either direction."""
    return [way for one, other in product(ones, others) for way in ((one, other), (other, one))]


def _side(ends: Ends, rng: random.Random) -> tuple[str, ...]:
    """The smaller side of a split: a server, alone or with a database, most often the one without the catalog."""
    database = rng.choice([ends.databases[-1], ends.databases[-1], ends.databases[0], None])
    server = rng.choice(ends.servers)
    return (server,) if database is None else (server, database)


def _rest(ends: Ends, side: Collection[str]) -> list[str]:
    return [end for end in ends.all if end not in side]


def whole(_ends: Ends, _rng: random.Random) -> Ways:
    """Every end sees every other end."""
    return []


def halves(ends: Ends, rng: random.Random) -> Ways:
    """Two sides that do not see each other."""
    side = _side(ends, rng)
    return between(side, _rest(ends, side))


def bridge(ends: Ends, rng: random.Random) -> Ways:
    """One server sees both sides, which do not see each other; a database is on each."""
    _, one, other = rng.sample(ends.servers, 3)
    databases = rng.sample(ends.databases, 2)
    return between((one, databases[0]), (other, databases[1]))


def one_way(ends: Ends, rng: random.Random) -> Ways:
    """What one side sends arrives at the other, and nothing comes back; or so between a server and one other end."""
    side = _side(ends, rng)
    rest = _rest(ends, side)
    if rng.random() < 0.5:
        side, rest = side[:1], [rng.choice(_rest(ends, side[:1]))]
    return list(product(side, rest) if rng.random() < 0.5 else product(rest, side))


def flapping(ends: Ends, rng: random.Random) -> Ways:
    """The cut of halves, which ``cut_network`` heals and makes again and again."""
    return halves(ends, rng)


Pattern = Callable[[Ends, random.Random], Ways]
#: By name.
PATTERNS: Final[dict[str, Pattern]] = {
    pattern.__name__: pattern for pattern in (whole, halves, bridge, one_way, flapping)
}


@contextmanager
def cut_network(network: Network, name: str, ends: Ends, rng: random.Random) -> Iterator[Ways]:
    """A network that is cut in a pattern meanwhile, and whole afterwards."""
    ways = PATTERNS[name](ends, rng)
    is_over = threading.Event()
    threads = []
    if name == flapping.__name__:
        threads.append(threading.Thread(target=_flap, args=(network, ways, random.Random(rng.random()), is_over)))
    else:
        network.block(ways)
    try:
        for thread in threads:
            thread.start()
        yield ways
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        network.heal()


def _flap(network: Network, ways: Ways, rng: random.Random, is_over: threading.Event) -> None:
    while not is_over.is_set():
        network.block(ways)
        is_over.wait(rng.uniform(*FLAPPING_S))
        network.heal()
        is_over.wait(rng.uniform(*FLAPPING_S))
