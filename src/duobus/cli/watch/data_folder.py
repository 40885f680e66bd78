"""What ``duobus doctor`` finds in a data folder and under it: rights, room, file system, disk, stores, certificates.

Nothing of the server's is opened or written: only a file of its own, for the measurement of the disk.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from duobus.cli.watch.findings import FAILURE, OK, WARNING, Finding
from duobus.clock import AHEAD_MAX_MS, Clock, Witness
from duobus.file_sync import sync_data
from duobus.server.clock_record import read_record
from duobus.storage.folder_lock import holder_of

_MIB: Final = 1 << 20
#: Room below which stores are about to refuse, and below which it is time to look.
_ROOM_FAILURE: Final = 64 * _MIB
_ROOM_WARNING: Final = 1024 * _MIB
_FILES_LEFT_FEW: Final = 1_000
#: Writes that are timed, and their size: a page.
_SYNCS: Final = 30
_SYNC_BYTES: Final = 4_096
_SYNC_SLOW_MS: Final = 20.0
_SYNC_STUCK_MS: Final = 1_000.0
_SECOND_MS: Final = 1_000
_DAY_MS: Final = 86_400_000
_BEHIND_MS: Final = 60_000
_CERTIFICATE_SOON_DAYS: Final = 30
#: In the words that a server leaves in its lock file.
_PROCESS: Final = re.compile(r"process id (\d+)")
_SQLITE_MAGIC: Final = b"SQLite format 3\x00"

#: Kinds of file systems, and what is to be said of them.
_OF_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs"})
_OF_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_OF_CONTAINER: Final = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})


class SyncTimes(NamedTuple):
    """How long a disk takes for one small durable write, in milliseconds."""

    mean_ms: float
    worst_ms: int


def of_folder(mode: int, owner: int, user: int, is_writable: bool) -> Finding:
    """Who may look into the data folder, which holds keys."""
    found = f"mode {mode:04o}"
    if not is_writable:
        return Finding("data folder", FAILURE, f"{found}, not writable for this user", "Run the server as its owner.")
    if mode & 0o077:
        return Finding("data folder", WARNING, f"{found}: others can look into it, and it holds keys", "chmod 700 it.")
    if owner != user:
        return Finding("data folder", OK, f"{found}, of another user (id {owner})")
    return Finding("data folder", OK, found)


def of_room(free: int, total: int, files_left: int | None) -> Finding:
    """Whether there is room for what comes."""
    found = f"{free // _MIB:,} of {total // _MIB:,} MiB free"
    if free < _ROOM_FAILURE:
        remedy = "Make room: stores refuse messages when a disk is full, and go on by themselves when there is room."
        return Finding("room", FAILURE, found, remedy)
    if files_left is not None and files_left < _FILES_LEFT_FEW:
        return Finding(
            "room", WARNING, f"{found}, but only {files_left} more files", "Make room for more files (inodes)."
        )
    if free < _ROOM_WARNING:
        return Finding("room", WARNING, found, "Make room soon.")
    return Finding("room", OK, found)


def of_file_system(kind: str) -> Finding:
    """Whether a file system is one that stores can be on."""
    if kind in _OF_NETWORK:
        remedy = "Use a disk of the machine, or stores in PostgreSQL: locks and syncs of this kind cannot be relied on."
        return Finding("file system", FAILURE, f"{kind}, over a network", remedy)
    if kind in _OF_MEMORY:
        return Finding(
            "file system", WARNING, f"{kind}: gone when the machine stops", "Use a disk, unless this is a test."
        )
    if kind in _OF_CONTAINER:
        remedy = "Mount a volume on the data folder: this is gone with its container."
        return Finding("file system", WARNING, f"{kind}, the container's own", remedy)
    return Finding("file system", OK, kind or "unknown")


def of_sync(times: SyncTimes) -> Finding:
    """Whether the disk is quick enough: a commit lasts as long as one sync."""
    found = f"a durable write takes {times.mean_ms:.1f} ms in the mean of {_SYNCS}, {times.worst_ms} ms at worst"
    if times.worst_ms >= _SYNC_STUCK_MS:
        remedy = (
            "A store whose disk does not answer for 3 s is given up. Look who else writes to the disk, or replace it."
        )
        return Finding("disk", FAILURE, found, remedy)
    if times.mean_ms >= _SYNC_SLOW_MS:
        remedy = "Each commit takes as long, and senders wait for it. Use a faster disk, or one with a protected cache."
        return Finding("disk", WARNING, found, remedy)
    return Finding("disk", OK, found)


def of_clock(now_ms: int, boot: tuple[str, int] | None, record: Witness | None) -> Finding:
    """Whether the clock agrees with what a server wrote down the last time."""
    if record is None:
        return Finding("clock", OK, "no server has written down a time here yet")
    behind_ms = record.broker_ms - now_ms
    if behind_ms > _BEHIND_MS:
        remedy = "Set the clock. If an earlier one was ahead: docs/how-to/wrong-clock.md, duobus store clock --reset."
        return Finding("clock", FAILURE, f"{behind_ms / 3_600_000:.1f} hours behind what a server recorded", remedy)
    if boot is not None and boot[0] == record.boot:
        ahead_ms = now_ms - (record.broker_ms + boot[1] - record.boot_ms)
        if ahead_ms > AHEAD_MAX_MS:
            remedy = "Set the clock; if it is right, start the server with --accept-clock."
            found = f"{ahead_ms / 3_600_000:.1f} hours ahead of the time that has passed since a server recorded it"
            return Finding("clock", FAILURE, found, remedy)
    return Finding("clock", OK, f"{-behind_ms // _SECOND_MS} s after the time that a server recorded last")


def of_certificate(name: str, end_ms: int | None, now_ms: int, *, renews_itself: bool) -> Finding:
    """How long a certificate is good."""
    subject = f"certificate {name}"
    if end_ms is None:
        return Finding(subject, FAILURE, "cannot be read", "Give a readable certificate in PEM, or remove the file.")
    days = (end_ms - now_ms) // _DAY_MS
    remedy = "Start the server anew: it makes another one." if renews_itself else "Replace it, then send SIGHUP."
    if days < 0:
        return Finding(subject, FAILURE, f"ended {-days} days ago", remedy)
    if days < _CERTIFICATE_SOON_DAYS:
        return Finding(subject, WARNING, f"ends in {days} days", remedy)
    return Finding(subject, OK, f"ends in {days} days")


def folder_findings(data: Path, clock: Clock) -> Iterator[Finding]:
    """Look at everything about a data folder."""
    if not data.exists():
        parent = next(folder for folder in data.absolute().parents if folder.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            yield Finding(
                "data folder", FAILURE, f"{data} cannot be made in {parent}", "Make it for the server's user."
            )
            return
        yield Finding("data folder", OK, f"{data} is not there yet; the server makes it")
        yield from _disk_findings(parent, clock)
        return
    if not data.is_dir():
        yield Finding("data folder", FAILURE, f"{data} is no folder", "Give another --data.")
        return
    status = data.stat()
    writable = os.access(data, os.W_OK | os.X_OK)
    yield of_folder(stat.S_IMODE(status.st_mode), status.st_uid, os.geteuid(), writable)
    holder = user_of(data)
    yield Finding("use", OK, f"in use by {holder}" if holder else "no server runs on it")
    yield from _contents(data)
    yield from _disk_findings(data, clock)
    yield of_clock(clock.now_ms(), clock.boot(), read_record(data))
    yield from certificate_findings(sorted((data / "tls").glob("*.pem")), clock, renews_itself=True)


def _disk_findings(folder: Path, clock: Clock) -> Iterator[Finding]:
    usage, about = shutil.disk_usage(folder), os.statvfs(folder)
    # File systems that make room for files as they come tell of none.
    yield of_room(usage.free, usage.total, about.f_favail if about.f_files else None)
    yield of_file_system(file_system_of(folder))
    try:
        yield of_sync(sync_times(folder, clock))
    except OSError as error:
        yield Finding("disk", FAILURE, f"refuses a durable write: {error.strerror}", "Look at the disk, and its log.")


def _contents(data: Path) -> Iterator[Finding]:
    """Catalog and stores, by their first bytes: whoever runs may hold them, and nobody else may open them."""
    files = [path for path in (data / "catalog.db", *sorted((data / "stores").glob("store-*.db"))) if path.exists()]
    stores = [path for path in files if path.parent.name == "stores"]
    if not files:
        yield Finding("contents", OK, "no catalog and no stores yet: a first start makes them")
        return
    if not (data / "catalog.db").exists():
        remedy = "Put the catalog back, or rebuild it: docs/how-to/lost-catalog.md."
        yield Finding("contents", FAILURE, f"{len(stores)} stores and no catalog", remedy)
    for path in files:
        fault = _fault_of(path)
        if fault:
            remedy = "docs/how-to/lost-catalog.md" if path.name == "catalog.db" else "docs/how-to/lost-store.md"
            yield Finding(path.name, FAILURE, fault, f"Put it back from a backup; otherwise {remedy}.")
    size = sum(path.stat().st_size for path in files)
    yield Finding("contents", OK, f"{len(stores)} stores in files, {size // _MIB:,} MiB with the catalog")


def _fault_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE_MAGIC))
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    # A new file is empty until its first commit is brought over from its log.
    return "" if head in (_SQLITE_MAGIC, b"") else "is no database: its first bytes are others"


def certificate_findings(paths: list[Path], clock: Clock, *, renews_itself: bool) -> Iterator[Finding]:
    """Look at the certificates among some files; keys are passed over, unread."""
    for path in paths:
        if not path.name.endswith("-key.pem"):
            from duobus.gateway.tls import certificate_end_ms

            end_ms = certificate_end_ms(path)
            yield of_certificate(path.name, end_ms, clock.now_ms(), renews_itself=renews_itself)


def user_of(data: Path) -> str:
    """Return who has a data folder, as its lock says; empty when nobody has, or the lock cannot be read."""
    try:
        return holder_of(data) or ""
    except OSError:
        return ""


def server_pid(data: Path) -> int | None:
    """Return the process id of the server that has a data folder; None when nobody has, or nobody says."""
    match = _PROCESS.search(user_of(data))
    return None if match is None else int(match[1])


def server_address(data: Path) -> str | None:
    """Return host and port of the server that has a data folder; None when nobody has, or nobody says."""
    match = re.search(r", at (\S+:\d+)$", user_of(data))
    return None if match is None else match[1]


def file_system_of(folder: Path) -> str:
    """Return the kind of file system that a folder is on; empty where the system does not tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    # Later mounts hide earlier ones.
    for line in reversed(lines):
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return ""


def sync_times(folder: Path, clock: Clock) -> SyncTimes:
    """Measure durable writes of a page, each over the last one as those of a log that has its size.

    Raises:
        OSError: The disk refuses.
    """
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
        fd, worst_ms = file.fileno(), 0
        page = b"\xa5" * _SYNC_BYTES
        os.pwrite(fd, page, 0)
        sync_data(fd)
        began_ms = last_ms = clock.monotonic_ms()
        for _ in range(_SYNCS):
            os.pwrite(fd, page, 0)
            sync_data(fd)
            now_ms = clock.monotonic_ms()
            worst_ms, last_ms = max(worst_ms, now_ms - last_ms), now_ms
        return SyncTimes((last_ms - began_ms) / _SYNCS, worst_ms)
