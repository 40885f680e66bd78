"""Cut the networks of servers and databases in each pattern, with each fault, and judge what clients of the SDK saw.

    python tools/cuts.py                                       # each pair of pattern and fault for one minute
    python tools/cuts.py --pattern bridge --fault kill_server --minutes 0.5 --seed 7
    python tools/cuts.py --worst 6                             # then the six worst pairs for ten minutes each
    python tools/cuts.py --list

Three servers and two PostgreSQL servers, one with the catalog and half of the stores, the other with the rest, are in
network namespaces of their own. Clients of the official SDK see all servers and use plain and partitioned queues, with
sessions, duplicates, scheduled messages, and a topic with a rule that forwards. In rounds the network is cut in a
pattern and a fault strikes; then both are taken back, and all has to be served again.

What clients observed is judged alone: nothing may be lost, repeated, doubled, revived, shared, unordered, early or
misruled (tests/kits/client_record.py says what that is). A pair for which anything was found has its history and the
logs of its servers in a folder of --keep.

Each result is a line of JSON in the file of --results. Pairs that are there with the same seed and minutes are not
played again, so that a run that was stopped goes on with the same command. The worst pairs are those that took longest
until all was served again: servedMaxS tells how long, and lookS how much of it the questions take when all is well.
Ended are servers that ended by themselves and were started again. It has to be root on Linux, and PostgreSQL comes from
the wheel of the tests.

Exit status: 0 nothing was found; 1 something was, or a pair could not be finished; 2 there can be no such network here.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
# The kits stand beside the tests that have the short form.
sys.path[:0] = [str(ROOT / "tests" / "integration" / "cluster" / name) for name in ("cuts", ".")]
sys.path.insert(0, str(ROOT / "tests"))

from azure.core.exceptions import AzureError  # noqa: E402
from kit_network import reason_against  # noqa: E402
from kit_pairs import play_pair  # noqa: E402
from kit_patterns import PATTERNS  # noqa: E402
from kit_strikes import STRIKES  # noqa: E402

from duobus.testing.postgres_server import PostgresError, programs  # noqa: E402
from duobus_demo.clients import silence_sdk_logs  # noqa: E402

#: Plays a pattern and a fault with a seed for so many minutes, with a folder for what was found.
Play = Callable[[str, str, int, float, Path | None], dict[str, Any]]
Pair = tuple[str, str]
#: What ends a pair before its time: a cluster that does not come up, a command that fails.
BROKEN: Final = (AssertionError, OSError, subprocess.SubprocessError, AzureError, PostgresError)
FIGURES: Final = ("rounds", "acknowledged", "received", "servedMaxS", "lookS", "ended")


def pairs_of(patterns: Sequence[str], faults: Sequence[str], seed: int) -> list[Pair]:
    """All pairs, in an order of the seed: what a stopped run has played is of all kinds."""
    found = list(product(patterns, faults))
    random.Random(seed).shuffle(found)
    return found


def known_results(path: Path) -> list[dict[str, Any]]:
    """The results in a file; a line that a stop has left unfinished is none."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def key_of(result: dict[str, Any]) -> tuple[str, str, int, float]:
    """What a pair is known by."""
    return result["pattern"], result["fault"], result["seed"], float(result["minutes"])


def play_all(
    pairs: Sequence[Pair], seed: int, minutes: float, results: Path, keep: Path, play: Play
) -> Iterator[dict[str, Any]]:
    """Play the pairs that the file has not; yield a result for each pair, known or new."""
    known = {key_of(one): one for one in known_results(results) if "broken" not in one}
    results.parent.mkdir(parents=True, exist_ok=True)
    for number, (pattern, fault) in enumerate(pairs, 1):
        result = known.get((pattern, fault, seed, float(minutes)))
        if result is None:
            result = _played(pattern, fault, seed, minutes, keep, play)
            _add(results, result)
            print(f"{number} of {len(pairs)}: {line_of(result)}", file=sys.stderr, flush=True)
        yield result


def _add(results: Path, result: dict[str, Any]) -> None:
    # A line that a stop has left unfinished is ended first.
    known = results.read_text() if results.exists() else ""
    with results.open("a") as file:
        file.write("\n" * (known[-1:] not in ("", "\n")) + json.dumps(result) + "\n")


def _played(pattern: str, fault: str, seed: int, minutes: float, keep: Path, play: Play) -> dict[str, Any]:
    try:
        return play(pattern, fault, seed, minutes, keep)
    except BROKEN as error:
        # The next pair has a cluster of its own.
        traceback.print_exc()
        about = {"pattern": pattern, "fault": fault, "seed": seed, "minutes": minutes, "found": {}}
        return {**about, **dict.fromkeys(FIGURES, 0), "broken": f"{type(error).__name__}: {error}"[:500]}


def line_of(result: dict[str, Any]) -> str:
    """A result in one line."""
    figures = (
        f"{result['rounds']} rounds, {result['acknowledged']} acknowledged, {result['received']} received, "
        f"all served again after {result['servedMaxS']:.2f} s at most (to ask takes {result['lookS']:.2f} s), "
        f"{result['ended']} servers ended by themselves"
    )
    return f"{result['pattern']} with {result['fault']}, seed {result['seed']}: {figures}; {verdict_of(result)}"


def verdict_of(result: dict[str, Any]) -> str:
    """What was found, in words."""
    if "broken" in result:
        return f"BROKEN {result['broken']}"
    return ", ".join(f"{number} {kind.upper()}" for kind, number in result["found"].items()) or "nothing found"


def worst_of(results: Sequence[dict[str, Any]], number: int) -> list[Pair]:
    """The pairs that took longest until all was served again."""
    ordered = sorted(results, key=lambda one: -one["servedMaxS"])
    return [(one["pattern"], one["fault"]) for one in ordered[:number]]


def table_of(results: Sequence[dict[str, Any]]) -> str:
    """The results, a row each."""
    head = ("pattern", "fault", "minutes", *FIGURES, "found")
    rows = [(*(str(one.get(name, "")) for name in head[:-1]), verdict_of(one)) for one in results]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in (head, *rows))
    return "\n".join(line.rstrip() for line in lines)


def is_good(result: dict[str, Any]) -> bool:
    """Whether nothing is wrong with a pair."""
    return not result["found"] and "broken" not in result


def main(words: list[str] | None = None, play: Play = play_pair) -> int:
    """Parse the command line and do what it says."""
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="cuts", description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="for each pair (1)")
    parser.add_argument("--seed", type=int, default=1, help="of what is left to chance (1)")
    parser.add_argument("--pattern", action="append", choices=tuple(PATTERNS), help="only this one; may be repeated")
    parser.add_argument("--fault", action="append", choices=tuple(STRIKES), help="only this one; may be repeated")
    parser.add_argument("--worst", type=int, default=0, help="play so many of the worst pairs for longer (0)")
    parser.add_argument("--worst-minutes", type=float, default=10.0, help="for each of the worst pairs (10)")
    parser.add_argument("--results", type=Path, default=Path(".build/cuts.jsonl"), help="(.build/cuts.jsonl)")
    parser.add_argument(
        "--keep", type=Path, default=Path(".build/cuts"), help="folder for what was found (.build/cuts)"
    )
    parser.add_argument("--json", action="store_true", help="print results as lines of JSON in place of a table")
    parser.add_argument("--list", action="store_true", help="print the patterns and faults, and end")
    options = parser.parse_args(words)
    if options.list:
        print(f"patterns: {', '.join(PATTERNS)}\nfaults: {', '.join(STRIKES)}")
        return 0
    if play is play_pair:
        reason = _reason_against()
        if reason is not None:
            print(reason, file=sys.stderr)
            return 2
        silence_sdk_logs()
    place = options.results, options.keep, play
    pairs = pairs_of(options.pattern or tuple(PATTERNS), options.fault or tuple(STRIKES), options.seed)
    results = list(play_all(pairs, options.seed, options.minutes, *place))
    worst = worst_of(results, options.worst)
    results += play_all(worst, options.seed, options.worst_minutes, *place)
    if options.json:
        for one in results:
            print(json.dumps(one))
    else:
        print(table_of(results))
    return 0 if all(map(is_good, results)) else 1


def _reason_against() -> str | None:
    try:
        programs()
    except PostgresError as error:
        return str(error)
    reason: str | None = reason_against()
    return reason


if __name__ == "__main__":
    sys.exit(main())
