"""A store on a disk that is full again and again, opened over and over: what it acknowledged is what it holds.

    python tools/fulldisk.py --seconds 600            # on a tmpfs of its own, and on ext4 in files
    python tools/fulldisk.py --seconds 60 --disk ext4 --seed 7
    python tools/fulldisk.py --seconds 60 --disk xfs --disk btrfs

One process, no network and no SDK: a ``SqliteStore`` on a small file system, its checkpoints on a thread of their own
as in a server, commits that put and delete messages by the thousand, and another thread that takes the last byte of the
disk and gives it back at any moment: within a commit, a checkpoint, or the laying out of the log. A call that fails is
followed by what a message broker does: close, open, begin a generation, until that succeeds.

After each opening the rows must be those of the commit that the store says was its last one: the last that was
acknowledged, or the one that failed (I1, I17, I56). A message that is there although its deletion was acknowledged has
*revived*; one that is missing is *lost*. Needs root on Linux, for the file systems. That a signal ends the process
would be a finding, too (decision 0037).

Exit status: 0 no difference; 1 one was found, and the files are kept; 3 no file system can be mounted here.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from duobus.clock import Clock
from duobus.errors import StoreFailed
from duobus.storage.interface import CommitBatch, Put
from duobus.storage.journal.store import JournalStore
from duobus.storage.sqlite import log_space as log_room
from duobus.storage.sqlite.store import SqliteStore

DISK_BYTES: Final = 24 << 20
#: Of a journal's segments, six of which a disk of that size can hold.
_SEGMENT_BYTES: Final = 256 << 10
#: How each kind that lies in a file is made. ext4 makes blocks of 1 KiB by itself when it is that small.
MAKE: Final = {
    "ext4": ["mkfs.ext4", "-q", "-m", "0", "-b", "4096"],
    "ext4-1k": ["mkfs.ext4", "-q", "-m", "0", "-b", "1024"],
    "xfs": ["mkfs.xfs", "-q"],
    "btrfs": ["mkfs.btrfs", "-q"],
}
#: These are never as small as ``DISK_BYTES``: the rest is taken from them at the start.
LARGE_BYTES: Final = {"xfs": 512 << 20, "btrfs": 512 << 20}
#: Those that every machine has, and that overwrite in place.
KINDS: Final = ("tmpfs", "ext4", "ext4-1k")
#: How long the disk is full, and how long it is not, seconds.
FULL_S: Final = (0.0, 0.15)
ROOM_S: Final = (0.0, 0.25)
#: Messages of a commit, and how many the store holds before deletions prevail.
COMMIT_MESSAGES: Final = 40
HELD_MAX: Final = 3_000
#: Payload bytes of commits after which the log is made to begin anew, as a server does from a length on. A log as large
#: as what the disk has left could never be copied home, whoever gives back what else is there.
LOG_BYTES: Final = 2 << 20
#: Tries to open it before a store counts as one that never comes back.
OPEN_TRIES: Final = 400
_PAUSE_S: Final = 0.02


class Difference(Exception):
    """The store holds something else than it said."""


class Unmounted(Exception):
    """No file system can be mounted here."""


@contextmanager
def mounted(kind: str, folder: Path) -> Iterator[Path]:
    """A small file system: memory (``tmpfs``), or a file with another one in it; see ``MAKE``."""
    place = folder / "disk"
    place.mkdir()
    if kind == "tmpfs":
        words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    else:
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(LARGE_BYTES.get(kind, DISK_BYTES))
        make = [*MAKE[kind], str(image)]
        if shutil.which(make[0]) is None:
            raise Unmounted(f"there is no {make[0]} here")
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        words = ["mount", "-o", "loop", str(image), str(place)]
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    if made.returncode:
        raise Unmounted(made.stderr.strip())
    try:
        if kind in LARGE_BYTES:
            _take_all_but(place, DISK_BYTES)
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def _take_all_but(place: Path, size: int) -> None:
    disk = os.statvfs(place)
    with (place / "taken").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - size)


class Filler(threading.Thread):
    """Takes what is left of a disk and gives it back, until it is stopped."""

    def __init__(self, place: Path, dice: random.Random) -> None:
        super().__init__(daemon=True)
        self.strikes = 0
        self._file = place / "filler"
        self._dice = dice
        self._stopped = threading.Event()

    def run(self) -> None:
        """See the class."""
        while not self._stopped.wait(self._dice.uniform(*ROOM_S)):
            with suppress(OSError):
                self._fill()
            self.strikes += 1
            self._stopped.wait(self._dice.uniform(*FULL_S))
            # Now and then a part of it only: what needs little room goes on, and what needs more does not.
            if self._dice.random() < 0.3:
                with suppress(OSError):
                    os.truncate(self._file, max(0, self._file.stat().st_size - self._dice.randint(1, 1 << 18)))
                self._stopped.wait(self._dice.uniform(*FULL_S))
            self._file.unlink(missing_ok=True)

    def stop(self) -> None:
        """Leave the disk with room."""
        self._stopped.set()
        self.join()
        self._file.unlink(missing_ok=True)

    def _fill(self) -> None:
        with self._file.open("ab", buffering=0) as file:
            for size in (65_536, 4_096, 512):
                with suppress(OSError):
                    while file.write(bytes(size)) == size and not self._stopped.is_set():
                        pass
            # Of a file system that allocates late, this is when the room is taken.
            with suppress(OSError):
                os.fdatasync(file.fileno())


class Checkpoints(threading.Thread):
    """Copies the log home beside the commits, as ``CheckpointThread`` does."""

    def __init__(self, store: SqliteStore | JournalStore) -> None:
        super().__init__(daemon=True)
        self.in_log = 0
        self._store = store
        self._stopped = threading.Event()

    def run(self) -> None:
        """See the class."""
        while not self._stopped.wait(_PAUSE_S):
            with suppress(StoreFailed):
                self.in_log, _ = self._store.checkpoint_aside()

    def stop(self) -> None:
        """End."""
        self._stopped.set()
        self.join()


class Model:
    """What the store has to hold: after the last commit that was acknowledged, and after the one that failed."""

    def __init__(self) -> None:
        self.held: dict[int, bytes] = {}
        self.last_commit_no = 0
        self.next_count = 1
        self.attempt: tuple[int, dict[int, bytes]] | None = None

    def judge(self, last_commit_no: int, found: dict[int, bytes]) -> None:
        """Compare with what an opened store says and holds; it goes on from there.

        Raises:
            Difference: It is something else.
        """
        wanted = {self.last_commit_no: self.held}
        if self.attempt is not None:
            wanted[self.attempt[0]] = self.attempt[1]
        held = wanted.get(last_commit_no)
        if held is None:
            raise Difference(f"the last commit is {last_commit_no}, and should be one of {sorted(wanted)}")
        if found != held:
            revived = sorted(found.keys() - held.keys())
            lost = sorted(held.keys() - found.keys())
            altered = sorted(count for count in found.keys() & held.keys() if found[count] != held[count])
            raise Difference(f"revived {revived[:9]}, lost {lost[:9]}, altered {altered[:9]} after {last_commit_no}")
        self.held, self.last_commit_no, self.attempt = held, last_commit_no, None


class Run:
    """One store and its model."""

    def __init__(self, place: Path, seed: int, *, has_journal: bool = False) -> None:
        self.dice = random.Random(seed)
        self.model = Model()
        path = str(place / "stores" / "store-1.db")
        self.store: SqliteStore | JournalStore = SqliteStore(path, 1)
        if has_journal:
            self.store = JournalStore(path, 1, segment_bytes=_SEGMENT_BYTES)
        self.checkpoints = Checkpoints(self.store)
        self.commits = self.failures = self.refused_openings = self.ambiguous = 0
        self._pause = threading.Event()
        self._source = self._fragment = 0
        self._epoch = 0
        self._logged = 0

    def open(self) -> None:
        """Open the store as a message broker does: again and again until it is there; then look at all of it.

        Raises:
            Difference: It does not come back, or holds something else.
        """
        refused: StoreFailed | None = None
        for _ in range(OPEN_TRIES):
            try:
                self.store.close()
                contents = self.store.open()
                self.store.begin_generation([])
                fragment, (source,) = self.store.add_fragment(1, 0, [0])
                found = {one.count: one.payload for one in self.store.load(source.source_key, 1, 1 << 30)}
            except StoreFailed as error:
                refused = error
                self.refused_openings += 1
                self._pause.wait(_PAUSE_S)
                continue
            self._fragment, self._epoch, self._source = fragment.fragment_key, fragment.epoch, source.source_key
            if self.model.attempt is not None and contents.last_commit_no == self.model.attempt[0]:
                self.ambiguous += 1
            self.model.judge(contents.last_commit_no, found)
            return
        raise Difference(f"the store was not opened in {OPEN_TRIES} tries: {refused}")

    def step(self) -> None:
        """One commit, or one of the other things that the thread of a store does; opened again if that fails."""
        try:
            draw = self.dice.random()
            if self._logged > LOG_BYTES:
                self._logged = 0
                self.store.checkpoint()
            elif draw < 0.9:
                self._commit()
            elif draw < 0.96:
                self.store.make_room(log_room.wanted(max(self.checkpoints.in_log, 1 << 19)))
            elif draw < 0.99:
                self.store.checkpoint()
            else:
                self.store.probe()
        except StoreFailed:
            self.failures += 1
            self.open()

    def _commit(self) -> None:
        model, dice = self.model, self.dice
        number = model.last_commit_no + 1
        batch = CommitBatch(number, number)
        batch.epochs.append((self._fragment, self._epoch))
        held = dict(model.held)
        if held and dice.random() < len(held) / HELD_MAX:
            gone = dice.sample(sorted(held), min(len(held), dice.randint(1, 3 * COMMIT_MESSAGES)))
            batch.removed += [(self._source, count, count) for count in sorted(gone)]
            for count in gone:
                del held[count]
        first = model.next_count
        payloads = [
            dice.randbytes(dice.choice((20, 1_000, 1_000, 9_000))) for _ in range(dice.randint(1, COMMIT_MESSAGES))
        ]
        batch.puts.append(Put(self._source, first, number, payloads))
        held |= dict(enumerate(payloads, first))
        # A number is never used again, whatever becomes of its commit.
        model.next_count = first + len(payloads)
        batch.sources.append((self._source, model.next_count, 0, b""))
        model.attempt = number, held
        self._logged += sum(map(len, payloads))
        self.store.commit(batch)
        model.held, model.last_commit_no, model.attempt = held, number, None
        self.commits += 1


def campaign(kind: str, seconds: float, seed: int, folder: Path, *, has_journal: bool = False) -> Run:
    """Run on one kind of disk for so long.

    Raises:
        Difference: See there.
    """
    clock = Clock()
    with mounted(kind, folder) as place:
        run, filler = Run(place, seed, has_journal=has_journal), Filler(place, random.Random(seed + 1))
        run.open()
        run.checkpoints.start()
        filler.start()
        try:
            until_ms = clock.monotonic_ms() + int(seconds * 1000)
            while clock.monotonic_ms() < until_ms:
                run.step()
            filler.stop()
            run.open()
            faults = run.store.verify()
            if faults:
                raise Difference(f"the store's own check finds {faults[:5]}")
        except Difference:
            for path in (place / "stores").iterdir():
                shutil.copy(path, folder / path.name)
            raise
        finally:
            run.checkpoints.stop()
            filler.stop()
            run.store.close()
        print(
            f"{kind}: {filler.strikes} times full, {run.commits} commits, {run.failures} failed calls, "
            f"{run.ambiguous} of them stored all the same, {run.refused_openings} refused openings; no difference",
            flush=True,
        )
        return run


def main() -> int:
    """Parse the command line and run; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long in all (default: 60)")
    parser.add_argument("--disk", choices=("tmpfs", *MAKE), action="append", help="this one only; repeatable")
    parser.add_argument("--journal", action="store_true", help="the store has a journal")
    parser.add_argument("--seed", type=int, help="of what is stored and when (default: a new one, printed)")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    # A disk of this size has no room to spare; the log is to be laid out all the same.
    log_room.FREE_LEAST_BYTES = 0  # type: ignore[misc]
    kinds = options.disk or list(KINDS)
    for kind in kinds:
        folder = Path(tempfile.mkdtemp(prefix=f"duobus-fulldisk-{kind}-"))
        try:
            campaign(kind, options.seconds / len(kinds), seed, folder, has_journal=options.journal)
        except Difference as found:
            print(f"{kind}: {found}; seed {seed}, files in {folder}", file=sys.stderr)
            return 1
        except Unmounted as refused:
            print(f"{kind}: {refused}", file=sys.stderr)
            folder.joinpath("disk").rmdir()
            return 3
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
