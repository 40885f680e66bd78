"""The manifest of a backup: what belongs to it, with checksums. It is written last, so a backup without one is half.

A backup is read by others than those who wrote it, perhaps years later and from a borrowed disk: nothing in it is
believed before it has been checked, and no name in it leads out of its folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from duobus import file_sync as syncing
from duobus.errors import ConfigurationError

#: Its file in the folder of a backup.
NAME: Final = "backup.json"
#: Of manifests that this version writes and reads; a newer one is refused (I65).
FORMAT: Final = 1
#: Bytes of a manifest: 64 stores and 1,000 other files take a third of it.
MANIFEST_BYTES_MAX: Final = 1 << 20
#: Files of one backup, beside catalog and stores: certificates and keys.
OTHERS_MAX: Final = 1_000
#: Bytes of one of these; a key has a few thousand.
OTHER_BYTES_MAX: Final = 1 << 20
#: Folders of the data folder that belong to a backup, beside catalog and stores.
OTHER_FOLDERS: Final = ("tls", "tokens")

CATALOG: Final = "catalog.db"
_NAMES: Final = re.compile(r"catalog\.db|stores/store-[1-9]\d{0,8}\.db|(?:tls|tokens)/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_READ_BYTES: Final = 1 << 20


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file: its name below the data folder, its size and its checksum."""

    name: str
    bytes: int
    sha256: str


class StoreState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a messaging store had come: its number, format, generation, last commit, broker time and rows."""

    store: int
    format: int
    generation: int
    last_commit: int
    broker_ms: int
    rows: int


class Manifest(msgspec.Struct, frozen=True):
    """A whole backup.

    Attributes:
        format: See FORMAT.
        begun_ms: Wall clock time at which it was begun; everything acknowledged before that is in it.
        ended_ms: When its last file was written.
        online: Whether the server was running.
        stores: All messaging stores.
        files: All files but the manifest.
    """

    format: int
    begun_ms: int
    ended_ms: int
    online: bool
    stores: tuple[StoreState, ...]
    files: tuple[StoredFile, ...]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it, the last step of a backup: durable on return, and seen as a whole or not at all."""
    for inner in {(folder / file.name).parent for file in manifest.files}:
        sync_folder(inner)
    temporary = folder / f".{NAME}"
    write_private(temporary, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    temporary.replace(folder / NAME)
    sync_folder(folder)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a backup; its files are not looked at yet.

    Raises:
        ConfigurationError: There is none, or it is not what this version reads.
    """
    path = folder / NAME
    try:
        with path.open("rb") as file:
            text = file.read(MANIFEST_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigurationError(
            f"{folder} holds no whole backup: it has no {NAME}, which is written last. Take another backup."
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        if len(text) > MANIFEST_BYTES_MAX:
            raise ValueError(f"more than {MANIFEST_BYTES_MAX} bytes")
        number = msgspec.json.decode(text, type=dict[str, object]).get("format")
        if isinstance(number, int) and number > FORMAT:
            raise ConfigurationError(
                f"{path} has format {number}, this version reads up to {FORMAT}; use the version that wrote it."
            )
        manifest = msgspec.json.decode(text, type=Manifest)
        _check(manifest)
    except ValueError as error:
        raise ConfigurationError(f"{path} is no manifest of a backup, or it is damaged: {error}.") from error
    return manifest


def _check(manifest: Manifest) -> None:
    names = [file.name for file in manifest.files]
    for name in names:
        if not _NAMES.fullmatch(name):
            raise ValueError(f"it names the file {name[:120]!r}, which belongs to no backup")
    wanted = {CATALOG, *(f"stores/store-{state.store}.db" for state in manifest.stores)}
    found = {name for name in names if name == CATALOG or name.startswith("stores/")}
    if len(set(names)) != len(names) or wanted != found or len(names) - len(found) > OTHERS_MAX:
        raise ValueError("its files are not those of its stores")


def checksum(path: Path, tick: Callable[[], None] = lambda: None) -> StoredFile:
    """Return size and checksum of a file; ``name`` is its last part. ``tick`` is called often and may raise."""
    digest, size = sha256(), 0
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
            size += len(data)
            tick()
    return StoredFile(path.name, size, digest.hexdigest())


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read, durably."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        syncing.sync_file(file.fileno())


def sync_file(path: Path) -> None:
    """Make the contents of a file durable."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        syncing.sync_file(fd)
    finally:
        os.close(fd)


sync_folder = syncing.sync_folder
