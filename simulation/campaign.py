"""Campaigns of all simulations, with planted bugs or without: ``python -m simulation.campaign --world servers``.

A *world* is a simulation with scenarios, checkers and planted bugs of its own. In every one of them a seed is a whole
run, and the same seed gives the same run.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from simulation import run as simulation
from simulation.mutants import entity_life as life_mutants
from simulation.mutants import forwarding as forwarding_mutants
from simulation.mutants import idle as idle_mutants
from simulation.mutants import queues as queue_mutants
from simulation.mutants import server_moves as server_moves_mutants
from simulation.mutants import servers as servers_mutants
from simulation.mutants import sharding as sharding_mutants
from simulation.mutants import topics as topics_mutants
from simulation.scenarios import (
    catalogs,
    claims,
    clocks,
    entity_life,
    fairness,
    fragment_moves,
    idle,
    journals,
    leases,
    logs,
    servers,
    sharding,
    slow_disk,
    topics,
    wire_topics,
)
from simulation.scenarios.moves import between_servers

#: Of so many seeds one is run twice, where a run has a digest.
TWICE_EVERY: Final = 50
#: Of so many seeds in a row a search for planted bugs tries the quickest first.
FEW: Final = 50


class Found(NamedTuple):
    """What a seed has shown: what is wrong, in words, and the digest of its history (0 where it has none)."""

    wrong: list[str]
    digest: int


class CampaignWorld(NamedTuple):
    """A simulation: what is in it, one run of it, and the bugs that it is to catch."""

    about: str
    run: Callable[[int], Found]
    bugs: Mapping[str, Callable[[], Any]]


def _words(found: Any, digest: int = 0) -> Found:
    return Found([str(one) for one in found], digest)


def _queues(seed: int) -> Found:
    result = simulation.run(seed)
    return _words(result.violations, result.digest)


def _servers(run: Callable[[int], servers.Outcome]) -> Callable[[int], Found]:
    def one(seed: int) -> Found:
        outcome = run(seed)
        return _words(outcome.wrong, outcome.digest)

    return one


WORLDS: Final[Mapping[str, CampaignWorld]] = {
    "queues": CampaignWorld("queues over the wire, kills, power cuts, sick disks", _queues, queue_mutants.MUTANTS),
    "topics": CampaignWorld("fan-out, without the wire", lambda seed: _words(topics.run(seed)), topics_mutants.BUGS),
    "wire-topics": CampaignWorld(
        "topics over the wire, with a subscription that forwards",
        lambda seed: _words(wire_topics.run(seed)),
        {
            **topics_mutants.BUGS,
            **topics_mutants.WIRE_BUGS,
            # Of forwarding, those that a subscription meets that forwards to one queue.
            **{
                name: forwarding_mutants.FORWARDING_BUGS[name]
                for name in ("forwarded-without-record", "dedup-lost-at-restart")
            },
        },
    ),
    "life": CampaignWorld(
        "status, quota and deletion under traffic", lambda seed: _words(entity_life.run(seed)), life_mutants.BUGS
    ),
    "idle": CampaignWorld("queues that delete themselves", lambda seed: _words(idle.run(seed)), idle_mutants.BUGS),
    "clocks": CampaignWorld("starts with a wrong clock", lambda seed: _words(clocks.run(seed)), clocks.BUGS),
    "moves": CampaignWorld(
        "fragments that move between stores", lambda seed: _words(fragment_moves.run(seed)[0]), fragment_moves.BUGS
    ),
    "catalogs": CampaignWorld(
        "catalogs and stores that are lost, older or another's",
        lambda seed: _words(catalogs.run(seed)),
        catalogs.BUGS,
    ),
    "logs": CampaignWorld(
        "logs that are lost, cut, older or another's", lambda seed: _words(logs.run(seed)), logs.BUGS
    ),
    "journals": CampaignWorld(
        "stores with a journal, power cuts, torn writes, damage",
        lambda seed: _words(journals.run(seed)),
        journals.BUGS,
    ),
    "claims": CampaignWorld(
        "streams that claim messages of a queue, beside receivers, moves and purges",
        lambda seed: _words(claims.run(seed)),
        claims.BUGS,
    ),
    "sick-disk": CampaignWorld("stores that are late", lambda seed: _words(slow_disk.run(seed)[0]), slow_disk.BUGS),
    "fair": CampaignWorld("neighbours in one store", lambda seed: _words(fairness.run(seed).wrong), fairness.BUGS),
    "servers": CampaignWorld("servers over one catalog", _servers(servers.run), servers_mutants.BUGS),
    "spread": CampaignWorld("queues over the stores of all servers", _servers(sharding.run), sharding_mutants.BUGS),
    "server-moves": CampaignWorld(
        "entities that move between stores of different servers",
        _servers(between_servers.run),
        server_moves_mutants.BUGS,
    ),
    "owners": CampaignWorld(
        "the leases of stores alone", lambda seed: _words(leases.run(seed).violations), leases.BUGS
    ),
}
#: All of them, one after the other.
ALL: Final = "all"
_INVARIANT: Final = re.compile(r"^(I\d+): |\((I\d+)\)$")
#: The broker asked of a store what its interface forbids.
_BROKEN: Final = "ContractBroken"
#: A run that does not come to its end has shown something.
_ENDLESS: Final = "TimeoutError"
_ERROR: Final = re.compile(r"[A-Za-z]+(Error|Failure|Exception): ")


def findings(world: str, bug: str | None, seed: int, *, twice: bool = False) -> list[str]:
    """All that a seed shows, with a planted bug or without: broken invariants, or how the run failed.

    ``twice``: a run without a finding is repeated, and has to be the same run again.
    """
    chosen = WORLDS[world]
    with ExitStack() as stack:
        if bug is not None:
            stack.enter_context(chosen.bugs[bug]())
        try:
            found = chosen.run(seed)
            if not found.wrong and twice and chosen.run(seed).digest != found.digest:
                return ["the same seed gave two different runs"]
        except Exception as error:  # noqa: BLE001 - any failure of a run is a finding, to be shown with its seed
            return [f"{type(error).__name__}: {error}"]
    return found.wrong


def caught(world: str, bug: str | None, seed: int) -> str | None:
    """The first finding of a seed, with a planted bug or without; None for nothing."""
    return next(iter(findings(world, bug, seed)), None)


def _try(job: tuple[str, int, str | None, bool]) -> tuple[int, str | None]:
    """One seed in a worker: the seed, and what is wrong or None."""
    world, seed, bug, twice = job
    return seed, next(iter(findings(world, bug, seed, twice=twice)), None)


def _silence() -> None:
    """Show no log of a simulated broker: what counts is in its history."""
    logging.getLogger("duobus").addHandler(logging.NullHandler())


def campaign(world: str, first: int, seeds: int, jobs: int, bug: str | None = None) -> Iterator[tuple[int, str | None]]:
    """Run many seeds of a world; yields (seed, what is wrong or None) as they end."""
    work = [(world, seed, bug, seed % TWICE_EVERY == 0) for seed in range(first, first + seeds)]
    if jobs == 1:
        yield from map(_try, work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=_silence) as pool:
        yield from pool.imap_unordered(_try, work, chunksize=4)


def sign_of(how: str | None) -> str | None:
    """By what a finding is known again: the invariant that is broken, or its words without numbers.

    None for nothing, and for what only shows that a planted bug does not fit the code any more: an error of Python's.
    """
    if not how:
        return None
    named = _INVARIANT.search(how)
    if named is not None:
        return named[1] or named[2]
    for finding in (_BROKEN, _ENDLESS):
        if finding in how:
            return finding
    return None if _ERROR.match(how) else re.sub(r"\d+", "#", how.splitlines()[0])[:60]


@cache
def _clean_seeds(world: str, first: int) -> tuple[int, ...]:
    """Of the FEW seeds from ``first`` those that are clean without a bug, the quickest first."""
    times: list[tuple[float, int]] = []
    for seed in range(first, first + FEW):
        begun = time.process_time()
        if not findings(world, None, seed):
            times.append((time.process_time() - begun, seed))
    return tuple(seed for _took, seed in sorted(times))


def quickest_first(world: str, limit: int) -> Iterator[int]:
    """The seeds up to ``limit`` that are clean without a bug; of each FEW in a row those with the shortest runs first.

    Tests run every recorded seed with its bug and without: a short run is worth a longer search.
    """
    for first in range(1, limit + 1, FEW):
        yield from (seed for seed in _clean_seeds(world, first) if seed <= limit)


def search(world: str, bug: str, seeds: Iterable[int]) -> tuple[int, str] | None:
    """The first of these seeds that catches a planted bug, and how the bug shows; None when none of them does."""
    for seed in seeds:
        how = caught(world, bug, seed)
        if how is not None and sign_of(how) is not None:
            return seed, how.splitlines()[0]
    return None


# -- command line -----------------------------------------------------------------------------------------------


def _show(seed: int, bug: str | None, tail: int) -> int:
    result = simulation.run(seed, bug)
    print(f"seed {seed}: {result.scenario}")
    print(f"{len(result.history)} events, digest {result.digest:08x}")
    for violation in result.violations[:10]:
        print(violation)
    if result.violations:
        for event in list(result.history)[-tail:]:
            print("  ", event)
        print(f"again: python -m simulation.campaign --seed {seed}" + (f" --bug {bug}" if bug else ""))
    return 1 if result.violations else 0


def _show_other(world: str, seed: int, bug: str | None) -> int:
    wrong = caught(world, bug, seed)
    print(f"seed {seed} of {world}: {WORLDS[world].about}")
    print("nothing is wrong" if wrong is None else wrong)
    return 0 if wrong is None else 1


def _campaign(world: str, arguments: argparse.Namespace) -> tuple[int, int]:
    """How many seeds passed, and how many failed."""
    bad = done = 0
    for seed, wrong in campaign(world, arguments.first, arguments.seeds, arguments.jobs, arguments.bug):
        done += 1
        if wrong is not None:
            bad += 1
            print(f"{world}, seed {seed}: {wrong}", flush=True)
        if sys.stderr.isatty():
            print(f"\r{world}: {done} of {arguments.seeds} seeds, {bad} bad ", end="", file=sys.stderr)
    if arguments.world == ALL:
        # A campaign of all worlds takes the better part of an hour: a log says how far it is.
        print(f"{world}: {done - bad} passed, {bad} failed", flush=True)
    return done - bad, bad


#: World and bug to the seed that catches it, and the sign by which it shows.
Record = dict[str, dict[str, tuple[int, str]]]


def holds(world: str, bug: str, seed: int, sign: str) -> bool:
    """Whether a recorded seed still catches its bug, in the same way, and is clean without it."""
    return sign_of(caught(world, bug, seed)) == sign and caught(world, None, seed) is None


def _search_bugs(world: str, limit: int, record: Record | None) -> tuple[int, int]:
    """How many planted bugs were caught, and how many were not.

    ``record``: brought up to date; a seed in it that still holds is kept.
    """
    bugs = WORLDS[world].bugs
    known = {} if record is None else record.get(world, {})
    kept: dict[str, tuple[int, str]] = {}
    for bug in bugs:
        if bug in known and holds(world, bug, *known[bug]):
            kept[bug] = known[bug]
            how = f"still caught by seed {known[bug][0]}"
        elif (found := search(world, bug, quickest_first(world, limit))) is not None:
            kept[bug] = found[0], sign_of(found[1]) or ""
            how = f"caught by seed {found[0]}: {found[1]}"
        else:
            how = f"not caught by {limit} seeds"
        print(f"{world}, {bug}: {how}", flush=True)
    if record is not None:
        record[world] = kept
    return len(kept), len(bugs) - len(kept)


def _search_all(worlds: list[str], limit: int, path: Path | None) -> list[tuple[int, int]]:
    if path is None:
        return [_search_bugs(world, limit, None) for world in worlds]
    record: Record = json.loads(path.read_text()) if path.exists() else {}
    sums = [_search_bugs(world, limit, record) for world in worlds]
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return sums


def _parser() -> argparse.ArgumentParser:
    worlds = "\n".join(f"  {name:12} {world.about}" for name, world in WORLDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m simulation.campaign",
        description=f"{(__doc__ or '').splitlines()[0]}\n\nworlds:\n{worlds}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--world", choices=[*WORLDS, ALL], default="queues", help="which simulation (queues)")
    parser.add_argument("--seed", type=int, help="run one seed and show it")
    parser.add_argument("--seeds", type=int, default=200, help="run so many seeds (200)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (1)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--bug", help="plant this bug")
    parser.add_argument("--list-bugs", action="store_true", help="name the planted bugs")
    parser.add_argument("--search-bugs", action="store_true", help="look for a seed that catches each bug")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep the seeds that catch bugs in this JSON file")
    parser.add_argument("--limit", type=int, default=300, help="seeds tried per bug (300)")
    parser.add_argument("--tail", type=int, default=30, help="events shown after a violation (30)")
    return parser


def main(words: list[str] | None = None) -> int:
    """Parse the command line and do what it says; 0 when nothing is wrong."""
    _silence()
    parser = _parser()
    arguments = parser.parse_args(words)
    worlds = list(WORLDS) if arguments.world == ALL else [arguments.world]
    if arguments.bug is not None and (arguments.world == ALL or arguments.bug not in WORLDS[worlds[0]].bugs):
        parser.error(f"--bug: {arguments.world} has no bug {arguments.bug}; --list-bugs names them")
    if arguments.list_bugs:
        for world in worlds:
            for name, plant in WORLDS[world].bugs.items():
                print(f"{world}, {name}: {(plant.__doc__ or '').strip()}")
        return 0
    if arguments.seed is not None:
        if arguments.world == ALL:
            parser.error("--seed: say of which world")
        if arguments.world == "queues":
            return _show(arguments.seed, arguments.bug, arguments.tail)
        return _show_other(arguments.world, arguments.seed, arguments.bug)
    if arguments.search_bugs:
        sums = _search_all(worlds, arguments.limit, arguments.record)
    else:
        sums = [_campaign(world, arguments) for world in worlds]
    failed = sum(bad for _, bad in sums)
    print(f"{sum(good for good, _ in sums)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
