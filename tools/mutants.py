"""Change the code, one small fault at a time, and see whether a test notices.

``python tools/mutants.py [--rooms auth,spark] [--count 300] [--seed 19] [--workers 2]``. For each room the mutants of
its modules are put into an order that the seed draws, and the first so many are tried against the nearest tests:
those that touch the changed line. What was tried is kept in ``.build/mutants/<room>.jsonl``, and not tried again;
``--again`` tries those again that survived, ``--later`` has the slower programs of the room judge them, ``--report``
tells the rates.

What survives and shall is argued in ``tests/unit/mutants/argued.json``, one sentence each.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
PLACE: Final = ROOT / ".build" / "mutants"
#: mutmut and what it needs here live apart from the project's own packages. Its runner and its screen are not used, so
#: that nothing else of what it asks for is installed; behind all others on the path, it replaces none of ours.
LIBRARY: Final = PLACE / "tools"
REQUIRED: Final = ("mutmut", "libcst", "coverage", "PyYAML")
ARGUED: Final = ROOT / "tests" / "unit" / "mutants" / "argued.json"
#: The states in which no test has noticed.
ALIVE: Final = ("survived", "uncovered")


@dataclass(frozen=True, slots=True)
class Room:
    """Some modules and the tests that are nearest to them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    #: Programs that take a module's mutant from a file: tests that start servers, simulations.
    later: tuple[tuple[str, ...], ...] = ()
    without: tuple[str, ...] = ()
    #: Of those tests only these, as pytest's ``-k`` and ``-m`` have it.
    keyword: str = ""
    marks: str = "not slow"


def _campaign(world: str, seeds: int = 20) -> tuple[str, ...]:
    return ("-m", "simulation.campaign", "--world", world, "--seeds", str(seeds))


def _tests(*names: str) -> tuple[str, ...]:
    return ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *names)


def _modules(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"src/duobus/{folder}/{name}.py" for name in names)


ROOMS: Final = {
    "fragment": Room(
        ("src/duobus/fragment/*.py", "src/duobus/fragment/*/*.py"),
        (
            "tests/unit/broker",
            "tests/unit/fragment",
            "tests/unit/cluster",
            "tests/unit/testing",
            "tests/integration/testing",
            "tests/unit/simulation/checkers",
            "tests/unit/simulation/world",
            "tests/integration/gateway/test_session_transactions.py",
            "tests/integration/gateway/test_transactions.py",
            "tests/integration/gateway/test_via.py",
            "tests/unit/mutants/seeds.py",
        ),
        (_campaign("queues"), _campaign("topics")),
    ),
    "sqlite": Room(
        (
            "src/duobus/storage/sqlite/*.py",
            *_modules("storage", "checksums", "commit_checks", "writer_pool", "writers"),
            *_modules("storage/backup", "snapshot"),
        ),
        (
            "tests/unit/storage",
            "tests/integration/storage",
            "tests/unit/durability",
            "tests/integration/durability",
            "tests/acceptance/durability",
            "tests/acceptance/faults/test_flipped_bits.py",
            "tests/unit/broker/test_store_timeouts.py",
        ),
        (
            _tests(
                "tests/unit/durability",
                "tests/integration/durability",
                "tests/acceptance/durability",
                "tests/integration/cli/test_backup_and_restore.py",
            ),
        ),
        without=("tests/*/storage/test_*postgres*", "tests/integration/durability/test_upgrade_under_load.py"),
        keyword="not postgres",
    ),
    "deliveries": Room(
        (
            *_modules("gateway/amqp", "byte_budget", "deliveries", "mapping", "meter", "pacing"),
            *_modules("gateway/amqp/links", "incoming_link", "outgoing_link", "session_link", "session_writer"),
        ),
        (
            "tests/unit/gateway",
            "tests/integration/gateway",
            "tests/unit/codec/test_trailing_annotations.py",
            "tests/unit/mutants/seeds.py",
        ),
        (
            _campaign("queues"),
            _tests(
                "tests/acceptance/conformance/test_raw_deliveries.py",
                "tests/acceptance/conformance/test_raw_sessions.py",
            ),
        ),
        without=(
            "tests/*/gateway/test_atom*",
            "tests/integration/gateway/test_rest.py",
            "tests/integration/gateway/test_openapi.py",
        ),
    ),
    "auth": Room(
        # What signs tokens stands with the rules whose keys sign.
        ("src/duobus/auth/*.py", "src/duobus/model/access_rules.py"),
        (
            "tests/unit/auth",
            "tests/unit/model/test_access_rules.py",
            "tests/integration/gateway/test_token_endpoint.py",
            "tests/integration/hostile/test_wrong_tokens.py",
        ),
        (
            _tests("tests/unit/auth/test_authorizer_against_a_table.py"),
            _tests(
                "tests/acceptance/conformance/test_sdk_rights_and_errors.py",
                "tests/acceptance/conformance/test_sdk_bearer_tokens.py",
            ),
        ),
    ),
    "ha": Room(
        ("src/duobus/ha/*.py", "src/duobus/ha/aio/*.py"),
        (
            "tests/unit/ha",
            "tests/integration/ha",
        ),
        (
            _tests(
                "tests/integration/ha/test_pair_faults.py",
                "tests/integration/ha/test_pair_anywhere.py",
                "tests/integration/ha/test_outbox_crash.py",
            ),
        ),
        without=(
            "tests/integration/ha/test_pair_anywhere.py",
            "tests/integration/ha/test_pair_faults.py",
            "tests/integration/ha/test_pair_metering.py",
            "tests/integration/ha/test_outbox_crash.py",
            "tests/integration/ha/test_syphon_command.py",
            "tests/integration/ha/test_threaded_pair.py",
            "tests/integration/ha/test_twins.py",
        ),
        # Those that start two servers see much of it that no other test does.
        marks="",
    ),
    "spark": Room(
        (
            *_modules("spark/claims", "attempts", "engine", "lock_handles", "runner"),
            *_modules("spark/source", "extents"),
            *_modules("spark", "offsets"),
        ),
        (
            "tests/unit/spark/test_claim_one_checkpoint.py",
            "tests/unit/spark/test_claim_protocol.py",
            "tests/integration/spark/test_claim_reader.py",
            "tests/unit/spark/test_dead_letter_work.py",
            "tests/unit/spark/test_fragment_away.py",
            "tests/unit/spark/test_late_deferral.py",
            "tests/unit/spark/test_peeked.py",
            "tests/integration/spark/test_release_again.py",
            "tests/unit/spark/test_spark_offsets.py",
            "tests/unit/spark/test_spark_planning.py",
            "tests/unit/spark/test_spark_receiving.py",
            "tests/integration/spark/test_spark_source.py",
            "tests/integration/spark/test_store_lost_while_looking.py",
        ),
        (
            _tests(
                "tests/integration/spark/test_broker_killed_under_claims.py",
                "tests/integration/spark/test_two_drivers.py",
            ),
        ),
    ),
}


#: What ``make test`` tries, to see that the tool itself can tell.
SHORT: Final = Room(("src/duobus/auth/sas_tokens.py",), ("tests/unit/auth/test_sas.py",))


def room_of(name: str) -> Room:
    """The room of a name."""
    return SHORT if name == "short" else ROOMS[name]


def install() -> None:
    """Get mutmut into its own place, in the version that constraints.txt names."""
    if not (LIBRARY / "mutmut").exists():
        pinned = ("-c", str(ROOT / "constraints.txt"), "--no-deps", "--target", str(LIBRARY))
        quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-compile")
        subprocess.run([sys.executable, "-m", "pip", "install", *quiet, *pinned, *REQUIRED], check=True, timeout=300)
    if str(LIBRARY) not in sys.path:
        sys.path.append(str(LIBRARY))


def modules_of(room: Room) -> list[str]:
    """The files of a room, in order."""
    return sorted({str(path.relative_to(ROOT)) for pattern in room.modules for path in ROOT.glob(pattern)})


def drawn(room: Room, seed: int, count: int) -> list[Any]:
    """The first mutants in the order of the seed."""
    from mutant_operators import source_of

    found = [mutant for name in modules_of(room) for mutant in source_of(name).mutants()]
    return sorted(found, key=lambda mutant: mutant.place(seed))[:count]


def difference(mutant: Any) -> str:
    """What the mutant changes, as lines that went and lines that came."""
    from mutant_operators import source_of

    source = source_of(mutant.module)
    lines = difflib.unified_diff(source.tree.code.split("\n"), source.mutated(mutant).split("\n"), n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def kept(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """What is known of each mutant of a room; the last word on it counts."""
    path = folder / f"{name}.jsonl"
    found: dict[str, dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            found[entry["key"]] = entry
    return found


def keep(name: str, mutant: Any, found: dict[str, Any], folder: Path) -> None:
    """Write down what became of one."""
    place = {"key": mutant.key, "at": f"{mutant.module}:{mutant.line}", "function": mutant.function}
    entry = {**place, "operator": mutant.operator, "change": difference(mutant), **found}
    with (folder / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\n")


def argued(path: Path = ARGUED) -> dict[str, dict[str, str]]:
    """What survives and why."""
    entries = json.loads(path.read_text()) if path.exists() else []
    return {entry["key"]: entry for entry in entries}


def try_room(name: str, mutants: list[Any], workers: int, until: float, folder: Path) -> int:
    """Try these mutants against the room's tests."""
    import pytest
    from mutant_server import MutantServer

    room = room_of(name)
    counted = Counter[str]()

    def told(mutant: Any, found: dict[str, Any]) -> None:
        keep(name, mutant, found, folder)
        counted[found["state"]] += 1
        print(f"{name} {counted.total()} of {len(mutants)}: {found['state']} {mutant.module}:{mutant.line}", flush=True)

    server = MutantServer(mutants, modules_of(room), told, folder / name, workers, until)
    return pytest.main([*_files(room), "-q", "-m", room.marks, "-k", room.keyword, *_QUIET], plugins=[server])


_QUIET: Final = (
    "-p", "no:cacheprovider", "-p", "no:xdist", "--capture=no", "--timeout=0", "--no-header", "--rootdir", str(ROOT),
)  # fmt: skip


def _files(room: Room) -> list[str]:
    found = []
    for test in room.tests:
        path = ROOT / test
        files = [path] if path.is_file() else sorted(path.glob("test_*.py"))
        names = [str(file.relative_to(ROOT)) for file in files]
        found += [file for file in names if not any(fnmatch.fnmatch(file, pattern) for pattern in room.without)]
    return found


def judge_later(name: str, mutants: list[Any], until: float, folder: Path) -> None:
    """Have the room's slower programs judge what survived: they see the mutant in a tree of its own."""
    from mutant_operators import source_of

    tree = folder / "tree" / str(os.getpid())
    shutil.copytree(ROOT / "src", tree, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        for mutant in mutants:
            if time.time() >= until:
                return
            target = tree / Path(mutant.module).relative_to("src")
            text = target.read_text()
            target.write_text(source_of(mutant.module).mutated(mutant))
            by = _first_failing(room_of(name).later, environment)
            target.write_text(text)
            found = {"state": "killed", "by": by} if by else {"state": "survived", "later": True}
            keep(name, mutant, found, folder)
            print(f"{name} later: {found['state']} {mutant.module}:{mutant.line} {by}", flush=True)
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def _first_failing(programs: Iterable[tuple[str, ...]], environment: dict[str, str]) -> str:
    for program in programs:
        try:
            done = subprocess.run(
                [sys.executable, *program], env=environment, cwd=ROOT, capture_output=True, timeout=600, check=False
            )
        except subprocess.TimeoutExpired:
            return " ".join(program)
        if done.returncode:
            return " ".join(program)
    return ""


def report(names: Iterable[str], seed: int, count: int, folder: Path) -> str:
    """The table of the documentation."""
    why = argued()
    lines = ["| room | mutants | tried | killed | equivalent | left | killed of those that are not equivalent |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name in names:
        known = kept(name, folder)
        everything = drawn(room_of(name), seed, sys.maxsize)
        tried = [mutant for mutant in everything[:count] if known.get(mutant.key, {}).get("state", "unfit") != "unfit"]
        equivalent = sum(why.get(mutant.key, {}).get("verdict") == "equivalent" for mutant in tried)
        alive = [mutant for mutant in tried if known[mutant.key]["state"] in ALIVE]
        left = sum(why.get(mutant.key, {}).get("verdict") != "equivalent" for mutant in alive)
        killed = len(tried) - len(alive)
        rate = 100 * killed / max(1, killed + left)
        lines.append(f"| {name} | {len(everything)} | {len(tried)} | {killed} | {equivalent} | {left} | {rate:.1f} % |")
    return "\n".join(lines)


def _show_alive(names: list[str], folder: Path) -> None:
    why = argued()
    for name in names:
        for entry in kept(name, folder).values():
            if entry["state"] in ALIVE and entry["key"] not in why:
                print(f"{name} {entry['key']} {entry['at']} {entry['function']} {entry['operator']} {entry['state']}")
                print("    " + entry["change"].replace("\n", "\n    "))


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rooms", default=",".join(ROOMS), help="which, with commas between")
    parser.add_argument("--count", type=int, default=300, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing later than that")
    parser.add_argument("--keys", default="", help="these too, whatever the seed draws")
    parser.add_argument("--folder", type=Path, default=PLACE, help="where it is kept what was tried")
    parser.add_argument("--again", action="store_true", help="try those again that survived")
    parser.add_argument("--slow", action="store_true", help="try those again that only a time limit noticed")
    parser.add_argument("--later", action="store_true", help="have the slower programs judge those that survived")
    parser.add_argument("--alive", action="store_true", help="show those that survived and are not argued")
    parser.add_argument("--report", action="store_true", help="show the rates, and try nothing")
    options = parser.parse_args()
    names = options.rooms.split(",")
    folder = options.folder.resolve()
    install()
    if options.alive:
        _show_alive(names, folder)
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    until = time.time() + options.minutes * 60
    for name in [] if options.report else names:
        chosen = _chosen(name, options, folder)
        if options.later:
            judge_later(name, chosen, until, folder)
        elif chosen:
            # One process for each room: it has imported that room's tests and no others.
            pid = os.fork()
            if pid == 0:
                os._exit(try_room(name, chosen, options.workers, until, folder))
            os.waitpid(pid, 0)
    print(report(names, options.seed, options.count, folder))
    return 0


def _chosen(name: str, options: argparse.Namespace, folder: Path) -> list[Any]:
    """Which mutants of a room there is something to do about."""
    known = kept(name, folder)
    everything = drawn(room_of(name), options.seed, sys.maxsize)
    named = options.keys.split(",")
    mutants = everything[: options.count] + [one for one in everything[options.count :] if one.key in named]
    if not options.again and not options.later and not options.slow:
        return [mutant for mutant in mutants if mutant.key not in known]
    why = argued()
    if options.slow:
        return [mutant for mutant in mutants if known.get(mutant.key, {}).get("state") == "timeout"]
    alive = [mutant for mutant in mutants if known.get(mutant.key, {}).get("state") in ALIVE]
    return [mutant for mutant in alive if mutant.key not in why]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tools"))
    raise SystemExit(main())
