"""A real store on a real file system that is full again and again (I1, I17); tools/fulldisk.py does the work."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parents[2]
TOOL = Path(__file__).parents[3] / "tools" / "fulldisk.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fulldisk", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: Opens a store and commits to it, with each number of KiB from none on that the disk has left for that.
SQUEEZED = """
import os, sys
from contextlib import suppress
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from kits.store_builders import Broker
from duobus.errors import StoreFailed
from duobus.storage.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1] + "/stores/store-1.db", 1)
broker = Broker(store)
(source,) = broker.add()
broker.send(source, [b"x" * 1000] * 100)
filler, failed = Path(sys.argv[1], "filler"), 0
for kib in range(32):
    store.close()
    # What SQLite keeps there it makes anew, and the room of the old one would be enough for that.
    Path(sys.argv[1], "stores", "store-1.db-shm").unlink(missing_ok=True)
    with filler.open("ab", buffering=0) as file:
        for size in (65536, 1024):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
        os.fdatasync(file.fileno())
    os.truncate(filler, filler.stat().st_size - 1024 * kib)
    try:
        broker.open()
        broker.send(source, [b"y" * 1000] * 20)
    except StoreFailed:
        failed += 1
store.close()
filler.unlink()
broker.open()
print(failed, len(store.load(1, 1, 1 << 30)) >= 100)
"""


#: Counts on a disk that is full, to its last block, after every page of the counts was written out.
COUNTING = """
import os, sys
from contextlib import suppress
from pathlib import Path
from duobus.telemetry.metering_journal import MeteringJournal, left_behind, read_journal
journal = MeteringJournal(Path(sys.argv[1], "metering"), 1, "server", 0)
places = [journal.enter(number, "n", "e" * 100, "send", "key") for number in range(1, 4001)]
for round in range(1, 4):
    for place in places:
        journal.put(place, round, round, round)
    os.sync()
    with suppress(OSError), Path(sys.argv[1], f"filler-{round}").open("ab", buffering=0) as file:
        for size in (1048576, 4096, 512):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
        os.fdatasync(file.fileno())
print(sum(record.messages > 0 for record in read_journal(left_behind(Path(sys.argv[1], "metering"))[0])))
"""


def outcome_on(tool: ModuleType, kind: str, folder: Path, program: str) -> list[str]:
    """What a program prints that has a file system of its own and lives until its end."""
    try:
        with tool.mounted(kind, folder) as place:
            words = [sys.executable, "-c", program, str(place), str(TESTS)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
    except tool.Unmounted as refused:
        pytest.skip(f"no file system can be mounted here: {refused}")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ext4-1k", "xfs", "btrfs"])
def test_counting_on_a_disk_that_is_full_does_not_end_the_process(tool: ModuleType, tmp_path: Path, kind: str) -> None:
    assert outcome_on(tool, kind, tmp_path, COUNTING) == ["4000"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tmpfs", "ext4", "ext4-1k", "xfs", "btrfs"])
def test_a_disk_that_is_full_up_to_any_block_does_not_end_the_process(
    tool: ModuleType, tmp_path: Path, kind: str
) -> None:
    # In blocks of 1 KiB the pages of a mapped file have holes, and a hole that cannot be filled is a SIGBUS.
    failed, is_whole = outcome_on(tool, kind, tmp_path, SQUEEZED)
    assert int(failed) > 0
    assert is_whole == "True"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tmpfs", "ext4-1k"])
def test_a_store_whose_disk_is_full_again_and_again_holds_what_it_acknowledged(kind: str) -> None:
    words = [sys.executable, str(TOOL), "--seconds", "4", "--disk", kind, "--seed", "7"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "no difference" in done.stdout


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({1: b"a", 2: b"b", 3: b"c"}, r"revived \[3\]"),
        ({1: b"a"}, r"lost \[2\]"),
        ({1: b"a", 2: b"other"}, r"altered \[2\]"),
    ],
)
def test_what_differs_from_the_last_commit_is_told(tool: ModuleType, found: dict[int, bytes], words: str) -> None:
    model = tool.Model()
    model.held, model.last_commit_no = {1: b"a", 2: b"b"}, 5

    with pytest.raises(tool.Difference, match=words):
        model.judge(5, found)


def test_a_commit_that_failed_may_be_there_whole_or_not_at_all(tool: ModuleType) -> None:
    model = tool.Model()
    model.held, model.last_commit_no = {1: b"a"}, 5
    model.attempt = 6, {2: b"b"}
    model.judge(6, {2: b"b"})
    assert (model.held, model.last_commit_no) == ({2: b"b"}, 6)

    model.attempt = 7, {}
    model.judge(6, {2: b"b"})
    assert model.last_commit_no == 6

    with pytest.raises(tool.Difference, match="should be one of"):
        model.judge(4, {2: b"b"})
