"""Making a data folder from a backup, with fences: what was given out after the backup is never given out again.

The server lived on after the backup was made, and clients may remember what it told them. So a restored folder begins
further on (I7): each source leaves out COUNTS_LEFT_OUT counts, each fragment's epoch, which is in its lock tokens,
rises by EPOCHS_LEFT_OUT, and a fragment that gets a new number leaves out NUMBERS_LEFT_OUT. Generation and commit
numbers stay: no client ever sees them, and tombstones are compared with them (I27). The catalog gets an identity of its
own, and its stores with it: a store of the folder that lived on is none of this one (``catalog_identity.py``).

A restoring that ends half way must not look like a data folder. Everything is written under other names first; the
catalog gets its own name before the stores do, and a server that finds it without them says that they are missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import apsw

from duobus import file_sync as syncing
from duobus.clock import Entropy
from duobus.errors import ConfigurationError, StoreFailed
from duobus.storage.backup.manifest import (
    CATALOG,
    Manifest,
    StoredFile,
    checksum,
    read_manifest,
    sync_file,
    sync_folder,
)
from duobus.storage.catalog.sql import FRAGMENT_GAP, IDENTITY
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_identity import IDENTITY_BITS
from duobus.storage.catalog_rows import store_path
from duobus.storage.folder_lock import NAME as LOCK
from duobus.storage.interface import COUNT_MAX, COUNTS_LEFT_OUT, FORMAT_VERSION, JOURNAL_VERSION
from duobus.storage.sqlite import rows
from duobus.storage.sqlite.file import DRIVER_ERRORS, VFS, StoreOptions, check_format, close, connect, store_failed
from duobus.storage.sqlite.schema import UPDATE_SOURCES

#: Epochs that each fragment leaves out, of 2**32: one for each start of the server since the backup.
EPOCHS_LEFT_OUT: Final = 1 << 20
#: Numbers that the next new fragment of an entity leaves out, of 2**16: one for each fragment of it that was given up.
NUMBERS_LEFT_OUT: Final = 64

_ENDING: Final = ".restoring"
_COPY_BYTES: Final = 1 << 20

#: Told while it goes on: bytes done, bytes in all.
Progress = Callable[[int, int], None]


def restore(backup: Path, data: Path, progress: Progress) -> Manifest:
    """Make ``data``, which has to be missing or empty, from a backup; returns its manifest.

    Raises:
        ConfigurationError: ``data`` is in use, or the backup is half, altered or no backup; nothing was made.
        StoreFailed: Something cannot be read or written, or counts have run out. ``data`` is of no use then.
        StoreTooNew: A newer version made it.
    """
    manifest = read_manifest(backup)
    _verify(backup, manifest, progress)
    _demand_empty(data)
    identity = Entropy().number(IDENTITY_BITS) or 1
    try:
        for file in manifest.files:
            _copy(backup, data, file)
        for name in _databases(manifest):
            target = data / (name + _ENDING)
            if name == CATALOG:
                _fence_catalog(target, manifest, identity)
            else:
                fence_store(target, identity)
            sync_file(target)
        for name in [file.name for file in manifest.files if file.name not in _databases(manifest)]:
            (data / (name + _ENDING)).replace(data / name)
        # The catalog first: see above.
        for name in _databases(manifest):
            (data / (name + _ENDING)).replace(data / name)
            sync_folder((data / name).parent)
        for folder in {(data / file.name).parent for file in manifest.files} | {data, data.parent}:
            sync_folder(folder)
    except OSError as error:
        raise StoreFailed(f"{data} could not be restored: {error}. Empty it before you try again.") from error
    return manifest


def _databases(manifest: Manifest) -> list[str]:
    """The catalog, then the stores."""
    return [CATALOG, *(store_path(state.store) for state in manifest.stores)]


def _verify(backup: Path, manifest: Manifest, progress: Progress) -> None:
    total = sum(file.bytes for file in manifest.files)
    done = 0
    for file in manifest.files:
        path = backup / file.name
        try:
            found = checksum(path)
        except FileNotFoundError:
            raise ConfigurationError(f"{path} is missing, so this backup is not whole. Use another one.") from None
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}. Use another backup.") from error
        if (found.bytes, found.sha256) != (file.bytes, file.sha256):
            raise ConfigurationError(
                f"{path} is not as it was written: its size or checksum is not the manifest's. Use another backup."
            )
        done += file.bytes
        progress(done, total)


def _demand_empty(data: Path) -> None:
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A server that could not start here has left that behind.
        if any(path.name != LOCK for path in data.iterdir()):
            raise ConfigurationError(f"{data} is not empty; a backup is restored into an empty or new folder only.")
    except OSError as error:
        raise ConfigurationError(f"The folder {data} cannot be made: {error.strerror}.") from error


def _copy(backup: Path, data: Path, file: StoredFile) -> None:
    target = data / (file.name + _ENDING)
    target.parent.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with (backup / file.name).open("rb") as source, os.fdopen(fd, "wb") as copy:
        while block := source.read(_COPY_BYTES):
            copy.write(block)
        copy.flush()
        syncing.sync_file(copy.fileno())


def fence_store(path: Path, identity: int | None = None) -> None:
    """Leave out what the store may have given out since; its log is copied home and given up.

    ``identity``: of the catalog that it belongs to from now on; None leaves it where it belongs.
    """
    db: apsw.Connection | None = None
    try:
        db = connect(str(path), StoreOptions())
        # Whoever calls has removed what there was of a journal.
        check_format(db, str(path), must_exist=True, has_journal=True)
        _leave_log(db)
        with db:
            if int(db.pragma("user_version")) == JOURNAL_VERSION:
                db.execute(f"PRAGMA user_version={FORMAT_VERSION}")
            if identity is not None:
                rows.write_belonging(db, rows.read_belonging(db, str(path))._replace(identity=identity))
            for fragment in rows.read_fragments(db, str(path)):
                rows.write_epoch(db, fragment, fragment.epoch + EPOCHS_LEFT_OUT)
            sources = {row.source_key: row for row in rows.read_sources(db, str(path))}
            for key, row in sources.items():
                if row.next_count + COUNTS_LEFT_OUT > COUNT_MAX:
                    raise StoreFailed(
                        f"{path}: source {key} has no counts left to leave out; it was restored too often"
                    )
            raised = [
                (row.source_key, row.next_count + COUNTS_LEFT_OUT, row.highest_delivered, row.counters)
                for row in sources.values()
            ]
            rows.run(db, UPDATE_SOURCES, rows.source_values(raised, sources))
    except DRIVER_ERRORS as error:
        raise store_failed(str(path), "be restored", error) from error
    finally:
        close(db)


def _fence_catalog(path: Path, manifest: Manifest, identity: int) -> None:
    with closing(SqliteCatalog(path)) as catalog:
        # Every row is verified before it is relied on.
        known = {(row.store_id, row.path) for row in catalog.read().stores}
    if known != {(state.store, store_path(state.store)) for state in manifest.stores}:
        raise StoreFailed("The backup's catalog knows other messaging stores than its manifest. Use another backup.")
    try:
        with closing(apsw.Connection(str(path), vfs=VFS)) as db:
            _leave_log(db)
            db.execute(
                "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + ?",
                (FRAGMENT_GAP, NUMBERS_LEFT_OUT, NUMBERS_LEFT_OUT),
            )
            db.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (IDENTITY, identity))
    except DRIVER_ERRORS as error:
        raise store_failed(str(path), "be restored", error) from error


def _leave_log(db: apsw.Connection) -> None:
    """Keep everything in the one file, which gets another name: a log of the old one would be lost."""
    mode = db.pragma("journal_mode", "delete")
    if mode != "delete":
        raise StoreFailed(f"{db.filename}: its log cannot be given up (journal mode {mode})")
    db.pragma("synchronous", "full")
    for setting in syncing.SQLITE_SETTINGS:
        db.execute(f"PRAGMA {setting}")
