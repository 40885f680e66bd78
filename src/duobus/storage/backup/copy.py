"""Copying everything that a server keeps into a folder, from snapshots and a catalog of one instant.

Who takes the snapshots is another matter: a running server does it between its commits (server/backups.py), and
``back_up_stopped`` does it for a data folder that nobody uses.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from duobus.clock import Clock
from duobus.errors import ConfigurationError, StoreFailed
from duobus.storage.backup.manifest import (
    CATALOG,
    FORMAT,
    NAME,
    OTHER_BYTES_MAX,
    OTHER_FOLDERS,
    OTHERS_MAX,
    Manifest,
    StoredFile,
    checksum,
    write_manifest,
    write_private,
)
from duobus.storage.backup.snapshot import Snapshot
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_rows import StoreRow
from duobus.storage.journal.store import bring_left_over
from duobus.storage.postgres.address import is_postgres

#: Bytes that the log of a store may have while it is copied. Then the backup is given up: the log must not fill the
#: disk. At 100 MiB of messages a second that is after 80 s for one store.
LOG_BYTES_MAX: Final = 8 << 30
#: Longest rest after a step, in seconds: a disk that was slow once must not make the backup endless.
_LONGEST_REST_S: Final = 0.25

#: Told after each step: bytes copied, bytes in all. It may raise to give the backup up.
Progress = Callable[[int, int], None]


class Contents:
    """What a backup is made of, all of one instant.

    Attributes:
        catalog: The catalog's file.
        snapshots: Path of each store below the data folder, to its pinned snapshot.
        begun_ms: Wall clock time at which it was asked for.
        is_online: Whether a server is running.
    """

    __slots__ = ("begun_ms", "catalog", "is_online", "snapshots")

    def __init__(self, catalog: bytes, snapshots: Mapping[str, Snapshot], begun_ms: int, *, is_online: bool) -> None:
        self.catalog = catalog
        self.snapshots = snapshots
        self.begun_ms = begun_ms
        self.is_online = is_online


def make_folder(folder: Path) -> None:
    """Make the folder of a backup, which has to be missing or empty.

    Raises:
        ConfigurationError: It is in use, or cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigurationError(f"{folder} is not empty; give a folder that is empty or new.")
    except OSError as error:
        raise ConfigurationError(f"The folder {folder} cannot be made: {error.strerror}.") from error


def discard(folder: Path) -> None:
    """Remove what a backup that was given up has copied: a half takes room, on a disk that may just have run full.

    Never raises: without its manifest the half is refused wherever it is given, so it may as well stay.
    """
    for path in (folder / NAME, *folder.glob("*")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def write_backup(data: Path, folder: Path, contents: Contents, clock: Clock, progress: Progress) -> Manifest:
    """Copy ``contents`` and the certificates and keys of ``data`` to an empty folder; returns what was written last.

    Blocks. After each step it rests as long as the step took, so that the commits have the disk at least half the time.

    Raises:
        StoreFailed: Something cannot be read or written; there is no manifest then, and so no backup.
    """
    try:
        return _write(data, folder, contents, clock, progress)
    except OSError as error:
        discard(folder)
        raise StoreFailed(f"The backup could not be written to {folder}: {error}") from error
    except BaseException:
        # Ctrl-C included.
        discard(folder)
        raise


def _write(data: Path, folder: Path, contents: Contents, clock: Clock, progress: Progress) -> Manifest:
    total = len(contents.catalog) + sum(snapshot.sizes()[0] for snapshot in contents.snapshots.values())
    free = shutil.disk_usage(folder).free
    if free < total:
        raise StoreFailed(f"The backup takes {total} bytes, and {folder} has {free} free. Make room, or give another.")
    states, files = [], []
    write_private(folder / CATALOG, contents.catalog)
    files.append(_named(checksum(folder / CATALOG), CATALOG))
    before = len(contents.catalog)
    resting = threading.Event()
    for name, snapshot in contents.snapshots.items():
        target = folder / name
        target.parent.mkdir(mode=0o700, exist_ok=True)
        states.append(snapshot.state())
        begun_ms, copied = clock.monotonic_ms(), 0
        for copied in snapshot.copy(target):
            progress(before + copied, total)
            _demand_short_logs(contents.snapshots.values())
            if contents.is_online:
                resting.wait(min((clock.monotonic_ms() - begun_ms) / 1000, _LONGEST_REST_S))
            begun_ms = clock.monotonic_ms()
        snapshot.close()
        files.append(_named(checksum(target, partial(progress, before + copied, total)), name))
        before += files[-1].bytes
    files += _others(data, folder)
    progress(total, total)
    manifest = Manifest(FORMAT, contents.begun_ms, clock.now_ms(), contents.is_online, tuple(states), tuple(files))
    write_manifest(folder, manifest)
    return manifest


def _demand_short_logs(snapshots: Iterable[Snapshot]) -> None:
    for snapshot in snapshots:
        if not snapshot.is_closed and snapshot.sizes()[1] > LOG_BYTES_MAX:
            raise StoreFailed(
                f"The backup was given up: meanwhile more than {LOG_BYTES_MAX >> 30} GiB were written to one store. "
                "Take it when there is less traffic, or to a faster disk."
            )


def _others(data: Path, folder: Path) -> list[StoredFile]:
    """Copy certificates and keys."""
    found = [
        path
        for name in OTHER_FOLDERS
        if (data / name).is_dir()
        for path in sorted((data / name).iterdir())
        # What begins with a dot is half written.
        if path.is_file() and not path.name.startswith(".")
    ]
    if len(found) > OTHERS_MAX:
        raise StoreFailed(f"{data} has more than {OTHERS_MAX} certificates and keys; remove those that are not ours.")
    files = []
    for path in found:
        name = f"{path.parent.name}/{path.name}"
        if path.stat().st_size > OTHER_BYTES_MAX:
            raise StoreFailed(f"{path} has more than {OTHER_BYTES_MAX} bytes; it is no certificate or key of ours.")
        (folder / name).parent.mkdir(mode=0o700, exist_ok=True)
        write_private(folder / name, path.read_bytes())
        files.append(_named(checksum(folder / name), name))
    return files


def _named(file: StoredFile, name: str) -> StoredFile:
    return msgspec.structs.replace(file, name=name)


#: One instant of files and databases is more than either can give.
ELSEWHERE: Final = (
    "Some messaging stores of this server are in PostgreSQL. Back those up with PostgreSQL's means, and the data folder"
    " while the server is stopped."
)


def snapshots_of(data: Path, stores: tuple[StoreRow, ...], *, has_journals: bool = False) -> dict[str, Snapshot]:
    """Return a snapshot of each store, not pinned; closes all of them when one cannot be opened.

    Args:
        data: The data folder.
        stores: Of its catalog.
        has_journals: There may be journals beside the files; see ``Snapshot``.
    """
    found: dict[str, Snapshot] = {}
    try:
        for row in stores:
            path = data / row.path
            if not path.exists():
                raise StoreFailed(f"{path}: the store's file is missing; put it back, or give the store up")
            found[row.path] = Snapshot(path, has_journal=has_journals)
    except BaseException:
        for snapshot in found.values():
            snapshot.close()
        raise
    return found


def back_up_stopped(data: Path, folder: Path, clock: Clock, progress: Progress) -> Manifest:
    """Back up a data folder that no server uses; holding its catalog keeps servers out meanwhile.

    Raises:
        ConfigurationError: There is no catalog, or ``folder`` is in use.
        StoreFailed: A server has it, or something cannot be read or written.
        StoreTooNew: A newer version wrote it.
    """
    if not (data / CATALOG).exists():
        raise ConfigurationError(f"{data} is no data folder of duobus: it has no {CATALOG}.")
    begun_ms = clock.now_ms()
    catalog = SqliteCatalog(data / CATALOG)
    try:
        stores = catalog.read().stores
        if any(is_postgres(row.path) for row in stores):
            raise ConfigurationError(ELSEWHERE)
        for row in stores:
            bring_left_over(data / row.path, row.store_id)
        make_folder(folder)
        snapshots = snapshots_of(data, stores)
        try:
            for snapshot in snapshots.values():
                snapshot.pin()
            contents = Contents(catalog.serialized(), snapshots, begun_ms, is_online=False)
            return write_backup(data, folder, contents, clock, progress)
        finally:
            for snapshot in snapshots.values():
                snapshot.close()
    finally:
        catalog.close()
