"""Cut the power of a messaging store, again and again, and see whether anything acknowledged is lost (I1, F3).

    python tools/powercut.py --cuts 100            # needs root: ext4 on a loop device
    python tools/powercut.py --cuts 5 --unsafe-no-sync   # the planted fault; must lose

Each cut: a writer commits as fast as it can and prints a line after each commit; it is frozen, the file system is
shut down without flushing its log, the writer is killed, everything is taken apart and put together again, and
the store is recovered. The order matters: a file system that is shut down under a running writer can report
success for an fsync that did nothing, and real power loss stops the sender too.

Exit status: 0 nothing lost, 1 something was lost or damaged, 3 power cuts cannot be made here.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from duobus.errors import StoreFailed
from duobus.storage.interface import CommitBatch, Put
from duobus.storage.journal.store import JournalStore, store_in_file
from duobus.storage.sqlite.file import StoreOptions
from duobus.storage.sqlite.log_space import LAID_OUT_MAX_BYTES
from duobus.storage.sqlite.store import SqliteStore

EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
#: The log is laid out ahead as a server does it, so often that cuts fall into that, too.
COMMITS_PER_PIECE = 16
IMAGE_BYTES = 256 * 1024 * 1024
#: Messages that the writer leaves in the store, so that it deletes as much as it inserts.
BACKLOG = 300
IMPOSSIBLE = 3
#: Until the file system of a cut is let go of, seconds.
RELEASE_LIMIT_S = 30.0


def payload_of(count: int) -> bytes:
    """Return the one body that the message with this count can have; 40 to about 3,000 bytes."""
    digest = hashlib.sha256(str(count).encode()).digest()
    return digest * (1 + digest[0] % 96) + str(count).encode()


def write_until_killed(path: str, *, is_unsafe: bool, has_journal: bool) -> None:
    """Commit for ever; after each commit print its number, the next count and the last count removed."""
    kind = JournalStore if has_journal else SqliteStore
    store = kind(path, 1, options=StoreOptions(unsafe_no_sync=is_unsafe))
    contents = store.open()
    store.begin_generation([])
    fragment, (source,) = store.add_fragment(1, 0, [0])
    removed_to = int(source.counters or b"0")
    threading.Thread(target=checkpoint_for_ever, args=(store,), daemon=True).start()
    dice = random.Random(os.getpid())
    commit_no, next_count = contents.last_commit_no, source.next_count
    while True:
        commit_no += 1
        batch = CommitBatch(commit_no, commit_no)
        batch.epochs = [(fragment.fragment_key, fragment.epoch)]
        size = dice.choice((1, 1, 1, 5, 60))
        payloads = [payload_of(next_count + i) for i in range(size)]
        batch.puts.append(Put(source.source_key, next_count, 1, payloads))
        next_count += size
        last_removed = max(removed_to, next_count - BACKLOG)
        batch.removed.append((source.source_key, removed_to + 1, last_removed))
        removed_to = last_removed
        batch.sources.append((source.source_key, next_count, 0, b"%d" % removed_to))
        store.commit(batch)
        os.write(1, b"%d %d %d\n" % (commit_no, next_count, removed_to))
        if not commit_no % COMMITS_PER_PIECE:
            store.make_room(LAID_OUT_MAX_BYTES)


def checkpoint_for_ever(store: SqliteStore | JournalStore) -> None:
    """Checkpoint beside the commits, as a server does."""
    pause = threading.Event()
    while not pause.wait(0.02):
        store.checkpoint_aside()


class Machine:
    """An ext4 file system on a loop device, whose power can be cut.

    Args:
        folder: Where image and mount point are made.
    """

    def __init__(self, folder: Path) -> None:
        self._image = folder / "disk.img"
        self.mount_point = folder / "mnt"
        self._device = ""

    def make(self) -> None:
        """Make the file system."""
        self.mount_point.mkdir()
        with self._image.open("wb") as image:
            image.truncate(IMAGE_BYTES)
        call("mkfs.ext4", "-q", "-F", str(self._image))

    def power_on(self) -> None:
        """Attach and mount; the long commit interval keeps the journal from saving what was not synced."""
        self._device = call("losetup", "-f", "--show", str(self._image)).strip()
        call("mount", "-o", "commit=300", self._device, str(self.mount_point))

    def cut(self) -> None:
        """Shut the file system down as it is: what is not on disk is gone."""
        fd = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def take_apart(self) -> None:
        """Unmount and detach; harmless when there is nothing to.

        On a busy machine the file system is in use for a moment after its last user has gone. Detached while it is
        mounted, it would be there twice at the next attachment, and spoil itself.
        """
        if self._device:
            deadline = time.monotonic() + RELEASE_LIMIT_S
            while self.mount_point.is_mount():
                result = subprocess.run(["umount", str(self.mount_point)], capture_output=True, text=True, check=False)
                if result.returncode and time.monotonic() > deadline:
                    raise OSError(f"umount {self.mount_point}: {result.stderr.strip()}")
                if result.returncode:
                    time.sleep(0.05)
            call("losetup", "-d", self._device)
            self._device = ""
            # A device that anybody still holds, as a file system does that is mounted in another namespace, goes later.
            while holders := call("losetup", "-j", str(self._image)).strip():
                if time.monotonic() > deadline:
                    raise OSError(f"{self._image} is still attached: {holders}")
                time.sleep(0.05)

    def check(self) -> str:
        """Return what e2fsck has to say against the file system, or an empty text."""
        result = subprocess.run(["e2fsck", "-fn", str(self._image)], capture_output=True, text=True, check=False)
        return "" if result.returncode == 0 else result.stdout


def call(*command: str) -> str:
    """Run a system command and return its output; its error text becomes the exception's."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise OSError(f"{' '.join(command)}: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout


def why_impossible() -> str:
    """Return why no power can be cut here, or an empty text."""
    if os.geteuid() != 0:
        return "needs root, to mount a file system"
    for tool in ("mkfs.ext4", "losetup", "mount", "umount", "e2fsck"):
        if shutil.which(tool) is None:
            return f"{tool} is missing (packages e2fsprogs and util-linux)"
    with tempfile.TemporaryDirectory() as name:
        machine = Machine(Path(name))
        try:
            machine.make()
            machine.power_on()
        except OSError as error:
            return f"no ext4 on a loop device: {error}"
        finally:
            machine.take_apart()
    return ""


def load_and_cut(
    machine: Machine, seconds: float, *, is_unsafe: bool, has_journal: bool
) -> tuple[int, int, int] | None:
    """Let a writer write for a while, cut the power, and return the last line it printed, if any."""
    command = [sys.executable, __file__, "--writer", str(machine.mount_point / "store" / "f0.db")]
    command += ["--unsafe-no-sync"] * is_unsafe + ["--journal"] * has_journal
    writer = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    lines: list[bytes] = []
    timer = threading.Timer(seconds, os.kill, (writer.pid, signal.SIGSTOP))
    # The load starts with the first acknowledgement, not with the start of the interpreter.
    lines.append(writer.stdout.readline())
    timer.start()
    reader = threading.Thread(target=lambda: lines.extend(writer.stdout or ()))
    reader.start()
    os.waitpid(writer.pid, os.WUNTRACED)
    machine.cut()
    writer.kill()
    reader.join()
    writer.wait()
    writer.stdout.close()
    # A line that is not whole was not said: the freeze caught the writer before its commit was acknowledged.
    whole = [line for line in lines if line.endswith(b"\n")]
    if not whole:
        return None
    commit_no, next_count, removed_to = (int(word) for word in whole[-1].split())
    return commit_no, next_count, removed_to


def inspect(path: str, acknowledged: tuple[int, int, int]) -> dict[str, Any]:
    """Recover the store and compare it with what was acknowledged."""
    commit_no, next_count, removed_to = acknowledged
    store = store_in_file(Path(path), 1, must_exist=True)
    found: dict[str, Any] = {"lost": 0, "altered": 0, "returned": 0, "problems": []}
    try:
        contents = store.open()
        (source,) = contents.sources
        messages = {m.count: m.payload for m in store.load(source.source_key, 1, 1_000_000)}
        found["problems"] = store.verify()
    except (StoreFailed, ValueError) as error:
        found["problems"] = [str(error)]
        found["lost"] = next_count - 1 - removed_to
        return found
    finally:
        store.close()
    removed_now = int(source.counters or b"0")
    found["lost_commits"] = max(0, commit_no - contents.last_commit_no)
    found["lost"] = sum(count not in messages for count in range(max(removed_to, removed_now) + 1, next_count))
    found["returned"] = sum(count <= removed_to for count in messages)
    found["altered"] = sum(payload != payload_of(count) for count, payload in messages.items())
    if contents.last_commit_no > commit_no + 1:
        found["problems"].append(f"commit {contents.last_commit_no} is there, {commit_no} was the last acknowledged")
    if sorted(messages) != list(range(removed_now + 1, source.next_count)):
        found["problems"].append("a commit is there in part")
    return found


def run(cuts: int, *, is_unsafe: bool, has_journal: bool, seed: int, is_quiet: bool) -> dict[str, Any]:
    """Make ``cuts`` power cuts of one store and return the sums of what was found."""
    dice = random.Random(seed)
    total: dict[str, Any] = dict.fromkeys(("cuts", "acknowledged", "lost", "lost_commits", "returned", "altered"), 0)
    total["problems"] = []
    folder = Path(tempfile.mkdtemp(prefix="powercut-"))
    machine = Machine(folder)
    try:
        machine.make()
        for number in range(1, cuts + 1):
            machine.power_on()
            said = load_and_cut(machine, dice.uniform(0.01, 0.25), is_unsafe=is_unsafe, has_journal=has_journal)
            machine.take_apart()
            machine.power_on()
            if said is None:
                raise OSError("the writer ended before its first commit; see its messages above")
            found = inspect(str(machine.mount_point / "store" / "f0.db"), said)
            machine.take_apart()
            total["cuts"] += 1
            total["acknowledged"] = said[1] - 1
            for name, value in found.items():
                total[name] += value
            if not is_quiet:
                print(f"cut {number}: commit {said[0]}, {said[1] - 1} messages; found {found}", flush=True)
        complaint = machine.check()
        if complaint:
            total["problems"].append(complaint)
    finally:
        machine.take_apart()
        shutil.rmtree(folder)
    return total


def is_sound(total: dict[str, Any]) -> bool:
    """Say whether nothing was lost, changed or brought back."""
    return not (total["lost"] or total["lost_commits"] or total["returned"] or total["altered"] or total["problems"])


def main() -> int:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cuts", type=int, default=20, help="number of power cuts")
    parser.add_argument("--seed", type=int, default=1, help="of the lengths of the loads")
    parser.add_argument("--json", action="store_true", help="print only a JSON summary")
    parser.add_argument("--check", action="store_true", help="only say whether power can be cut here")
    parser.add_argument("--unsafe-no-sync", action="store_true", help="plant the fault: commit without sync")
    parser.add_argument("--journal", action="store_true", help="the store has a journal")
    parser.add_argument("--writer", metavar="PATH", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.writer:
        write_until_killed(arguments.writer, is_unsafe=arguments.unsafe_no_sync, has_journal=arguments.journal)
    reason = why_impossible()
    if reason or arguments.check:
        print(reason or "power can be cut here")
        return IMPOSSIBLE if reason else 0
    total = run(
        arguments.cuts,
        is_unsafe=arguments.unsafe_no_sync,
        has_journal=arguments.journal,
        seed=arguments.seed,
        is_quiet=arguments.json,
    )
    print(json.dumps(total, indent=None if arguments.json else 2))
    return 0 if is_sound(total) else 1


if __name__ == "__main__":
    sys.exit(main())
