"""Faults of processes and disks under SDK traffic, over and over: whatever was acknowledged has to come out.

    python tools/faults.py --minutes 10               # the long form: so long for each fault
    python tools/faults.py --minutes 0.1 --fault full --fault freeze
    python tools/faults.py --minutes 0.1 --rate 100   # spares a busy machine
    python tools/faults.py --list

Senders and receivers on the official SDK, synchronous and asyncio, plain and TLS, keep a partitioned queue over two
messaging stores busy, while one fault strikes again and again: the process, or store 1. Then all is well again,
everything is received, and each message is accounted for (I1, I7, I9, I17, I27, I56). What needs
root, a mounted file system or a compiler is skipped, and says so.

Half of the messages have a partition key. What belongs into store 1 is refused while it is away, and its senders try
again until it is back, over several faults if they follow closely: that is the "slowest send with a key". A message
without a key needs no particular store: it must be accepted by the other one, without an error and within KEYLESS_MS
(PE4, I27). Faults of the whole process spare nobody, and have no such bound.

Exit status: 0 nothing lost, altered, revived, left or late; 1 something was, or a run could not be finished.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from killloop import BACKLOG_MAX, DRAIN_LIMIT_S, QUEUE, QUEUE_PROPERTIES, Pace, is_clean, messages

from duobus.clock import Clock
from duobus.testing.server import DemoFailed, ServerProcess, queues_config
from duobus_demo.clients import endpoints_of, silence_sdk_logs
from duobus_demo.dispositions import Dispositions
from duobus_demo.feed import Feed
from duobus_demo.run_state import RunState
from duobus_demo.scenarios.store_loss import TimedMessageAccount
from duobus_demo.workers.traffic import Traffic, WorkerCounts

#: A fault lasts, and traffic flows before the next one, so long, seconds.
FAULT_S: Final = (0.2, 2.0)
WELL_S: Final = (0.3, 1.5)
#: The disk of store 1 in the faults that need one of its own.
DISK_BYTES: Final = 64 << 20
START_LIMIT_S: Final = 60.0
SHIM: Final = Path(__file__).resolve().parents[1] / "tests" / "acceptance" / "faults" / "sync_faults.c"


class Skipped(Exception):
    """This machine cannot have the fault; the text says why."""


class Stage:
    """Where a fault strikes.

    Attributes:
        server: The broker.
        store: The file of store 1.
        disk: Its file system, if it has one of its own.
        order: File that tells the syncs of store 1 what to do, if they can be told.
        dice: For what is left to chance.
    """

    def __init__(self, server: ServerProcess, store: Path, disk: Path, order: Path, dice: random.Random) -> None:
        self.server = server
        self.store = store
        self.disk = disk
        self.order = order
        self.dice = dice

    def tell_syncs(self, text: str) -> None:
        """Put an order in place at once, since the broker may be reading."""
        fresh = self.order.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.order)


#: A fault: what begins it, and what ends it.
Fault = tuple[Callable[[Stage], None], Callable[[Stage], None]]


def _fill(stage: Stage) -> None:
    with (stage.disk / "filler").open("ab", buffering=0) as file:
        for size in (65_536, 4_096, 512, 1):
            try:
                while file.write(b"\0" * size) == size:
                    pass
            except OSError:
                continue


def _empty(stage: Stage) -> None:
    (stage.disk / "filler").unlink(missing_ok=True)


def _remount(option: str) -> Callable[[Stage], None]:
    def remount(stage: Stage) -> None:
        # A file that is open for writing keeps a file system from becoming read-only; its files can be made so. On a
        # file system that did become read-only no file can be changed, so that it comes back first.
        flag = "+i" if option == "ro" else "-i"
        files = [str(path) for path in stage.store.parent.glob("store-1.db*")]
        words = ["chattr", flag, *files], ["mount", "-o", f"remount,{option}", str(stage.disk)]
        for command in words if option == "ro" else reversed(words):
            subprocess.run(command, check=False, capture_output=True)

    return remount


def _away(stage: Stage) -> None:
    stage.store.rename(stage.store.with_name("away.db"))


def _back(stage: Stage) -> None:
    away = stage.store.with_name("away.db")
    if away.exists():
        away.replace(stage.store)


FAULTS: Final[dict[str, Fault]] = {
    "kill": (lambda stage: stage.server.kill(), lambda stage: stage.server.start()),
    "freeze": (lambda stage: stage.server.freeze(), lambda stage: stage.server.thaw()),
    "full": (_fill, _empty),
    "read-only": (_remount("ro"), _remount("rw")),
    "failing-syncs": (lambda stage: stage.tell_syncs("fail"), lambda stage: stage.tell_syncs("well")),
    "slow-syncs": (
        lambda stage: stage.tell_syncs(f"slow {stage.dice.randint(50, 500)}"),
        lambda stage: stage.tell_syncs("well"),
    ),
    "removed": (_away, _back),
}
#: Faults of the whole process, which no other store can make up for.
_OF_THE_PROCESS: Final = {"kill", "freeze"}
#: What a send without a key may take at most while another store is well, milliseconds (PE4).
KEYLESS_MS: Final = 5_000
#: Times in a report, and what they are of.
_SLOWEST: Final = (("keyless_", "without a key"), ("", "with"), ("attempt_", "one attempt"))
_OWN_DISK: Final = {"full", "read-only"}
_SHIMMED: Final = {"failing-syncs", "slow-syncs"}


@contextmanager
def _disk(folder: Path) -> Iterator[Path]:
    """A file system of its own for store 1."""
    if os.geteuid() != 0:
        raise Skipped("only root can mount a file system")
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    if made.returncode:
        raise Skipped(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@contextmanager
def _shim(folder: Path) -> Iterator[Path]:
    """Have processes that are started now ask a file what syncs of store 1 do; yields the file."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise Skipped("there is no C compiler to build the shim with")
    library, order = folder / "sync_faults.so", folder / "order"
    words = [compiler, "-shared", "-fPIC", "-O1", str(SHIM), "-o", str(library), "-ldl"]
    subprocess.run(words, check=True, capture_output=True)
    order.write_text("well")
    added = {"FAULTY_SYNC": str(order), "FAULTY_PATH": "store-1.db", "LD_PRELOAD": str(library)}
    os.environ |= added
    try:
        yield order
    finally:
        for name in added:
            del os.environ[name]


def run_fault(name: str, folder: Path, seconds: float, seed: int, rate: float | None) -> dict[str, Any]:
    """Let one fault strike for so long; returns the counts. ``rate`` is in messages a second, None without a limit.

    Raises:
        DemoFailed: The broker did not start, or the end did not come in its time.
        Skipped: This machine cannot have the fault.
    """
    clock = Clock()
    with ExitStack() as stack:
        stores = folder / "data" / "stores"
        stores.mkdir(parents=True)
        store, disk = stores / "store-1.db", stores
        if name in _OWN_DISK:
            disk = stack.enter_context(_disk(folder / "disk"))
            # SQLite keeps the log beside the file that the link leads to.
            store.symlink_to(disk / "store-1.db")
            store = disk / "store-1.db"
        order = stack.enter_context(_shim(folder)) if name in _SHIMMED else folder / "order"
        arguments = ("--emulator", "--tls-self-signed", "--stores", "2")
        server = ServerProcess(
            folder, config=queues_config({QUEUE: QUEUE_PROPERTIES}), arguments=arguments, clock=clock
        )
        stack.enter_context(server)
        try:
            return _play(Stage(server, store, disk, order, random.Random(seed)), name, seconds, clock, rate)
        except DemoFailed as error:
            raise DemoFailed(f"{error}\nThe end of the broker's log:\n{server.log_tail()}") from error


def _play(stage: Stage, name: str, seconds: float, clock: Clock, rate: float | None) -> dict[str, Any]:
    begin, end = FAULTS[name]
    dice = stage.dice
    account = TimedMessageAccount(clock)
    feed = Feed(messages(random.Random(dice.random())), limit=BACKLOG_MAX if rate is None else 1)
    run = RunState(QUEUE, feed, account, Dispositions(), clock, seconds + START_LIMIT_S + DRAIN_LIMIT_S)
    pace = Pace(run, rate)
    strikes = 0
    with Traffic(run, endpoints_of(stage.server), WorkerCounts(senders=2, async_senders=2)) as traffic:
        run.wait_until(lambda: account.settled_sends > 0, START_LIMIT_S, "a first send is accepted")
        until_ms = clock.monotonic_ms() + int(seconds * 1000)
        while clock.monotonic_ms() < until_ms or not strikes:
            pace.live(dice.uniform(*WELL_S))
            begin(stage)
            try:
                pace.live(dice.uniform(*FAULT_S))
            finally:
                end(stage)
            strikes += 1
        account.watch_sends()
        feed.allow(None)
        run.wait_until(lambda: account.first_acknowledged_ms is not None, START_LIMIT_S, "a send after the last fault")
        feed.finish()
        run.wait_until(lambda: account.in_flight == 0, START_LIMIT_S, "the last sends have an outcome")
        left = traffic.drain(DRAIN_LIMIT_S)
    return {
        "fault": name,
        "strikes": strikes,
        **account.report(),
        "left": left,
        "missing": account.missing()[:10],
        "altered_how": dict(list(account.altered().items())[:10]),
        "seen": account.seen.summary(),
    }


def campaign(names: list[str], seconds: float, seed: int, rate: float | None) -> Iterator[dict[str, Any]]:
    """Run faults one after the other; yields the result of each, or why it was skipped or could not be finished."""
    for name in names:
        with tempfile.TemporaryDirectory(prefix=f"duobus-{name}-") as temporary:
            try:
                yield run_fault(name, Path(temporary), seconds, seed, rate)
            except Skipped as error:
                yield {"fault": name, "skipped": str(error)}
            except DemoFailed as error:
                yield {"fault": name, "unfinished": str(error)}


def is_good(result: dict[str, Any]) -> bool:
    """Whether nothing is wrong with a result."""
    return "skipped" in result or ("unfinished" not in result and is_clean(result) and not complaints(result))


def complaints(result: dict[str, Any]) -> list[str]:
    """What senders of messages without a key have to complain of, while another store was well."""
    if result["fault"] in _OF_THE_PROCESS:
        return []
    seen = result["seen"]
    found = [f"{number} {error} without a key" for error, number in seen["failed_keyless"].items()]
    if seen["slowest_keyless_ms"] > KEYLESS_MS:
        found.append(f"a send without a key took {seen['slowest_keyless_ms'] / 1000:.1f} s")
    return found


def main() -> int:
    """Parse the command line and run; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="how long each fault strikes (default: 1)")
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), help="this one only; repeatable")
    parser.add_argument("--rate", type=float, help="messages a second (default: as many as the machine can do)")
    parser.add_argument("--seed", type=int, help="seed of the moments and messages (default: a new one, printed)")
    parser.add_argument("--json", action="store_true", help="print each result as one JSON object")
    parser.add_argument(
        "--journal", action=argparse.BooleanOptionalAction, help="whether the broker's stores have journals"
    )
    parser.add_argument("--list", action="store_true", help="name the faults")
    options = parser.parse_args()
    if options.list:
        print("\n".join(FAULTS))
        return 0
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    if options.journal is not None:
        # Each server that is started takes it from here.
        os.environ["DUOBUS_JOURNAL"] = str(int(options.journal))
    silence_sdk_logs()
    good = True
    for result in campaign(options.fault or list(FAULTS), options.minutes * 60, seed, options.rate):
        good = good and is_good(result)
        if options.json:
            print(json.dumps({"seed": seed, **result}), flush=True)
        else:
            print(_text(result), flush=True)
    if not good:
        print(f"again: python tools/faults.py --seed {seed}", file=sys.stderr)
    return 0 if good else 1


def _text(result: dict[str, Any]) -> str:
    name = result["fault"]
    for why in ("skipped", "unfinished"):
        if why in result:
            return f"{name:14} {why}: {result[why]}"
    names = (
        "strikes",
        "acknowledged",
        "sends_unknown",
        "lost",
        "altered",
        "revived",
        "overtaken",
        "left",
        "duplicates",
    )
    counts = ", ".join(f"{result[one]} {one}" for one in names)
    seen = result["seen"]
    slowest = ", ".join(f"{seen[f'slowest_{one}ms'] / 1000:.1f} s {what}" for one, what in _SLOWEST)
    text = f"{name:14} {counts}; slowest send {slowest}"
    return "; ".join([text, *complaints(result)])


if __name__ == "__main__":
    sys.exit(main())
