# ruff: noqa: D102, N802 - methods with the names that SQLite gives them, and documents
"""A disk in memory under the real SQLite and the real journal: it keeps, drops or tears each write that was not synced.

Available everywhere, unlike tools/powercut.py, and exact: power can be cut, or a sync refused, at any chosen
operation. A refused sync behaves as the kernel's does: what it should have written stays readable, is called
clean from then on, and never reaches the disk unless it is written again. Writes between two syncs reach the disk in
any order: each of them does or does not, as a whole or some sectors of it.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from typing import Any

import apsw

from duobus.storage.journal.files import SUFFIX, JournalFiles

SECTOR = 512


class File:
    """One file: what is readable now, what would survive, and the writes between the two."""

    def __init__(self) -> None:
        self.readable = bytearray()
        self.durable: bytearray | None = None
        self.pending: list[tuple[int, bytes | None]] = []

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes, which are readable at once."""
        place(self.readable, offset, data)
        self.pending.append((offset, data))

    def truncate(self, size: int) -> None:
        """Cut the file."""
        del self.readable[size:]
        self.pending.append((size, None))

    def sync(self) -> None:
        """Keep what was written."""
        self.durable = bytearray(self.readable) if self.durable is None else self.durable
        for operation in self.pending:
            apply(self.durable, *operation)
        self.pending = []

    def lose_power(self, dice: random.Random) -> None:
        """Let chance decide over every unsynced write; a name that was never synced may be gone as well."""
        if self.durable is None and dice.random() < 0.5:
            self.readable = bytearray()
        durable = bytearray() if self.durable is None else self.durable
        for offset, data in self.pending:
            fate = dice.random()
            if fate < 0.4:
                apply(durable, offset, data)
            elif fate < 0.7 and data is not None:
                for start in range(0, len(data), SECTOR):
                    if dice.random() < 0.5:
                        place(durable, offset + start, data[start : start + SECTOR])
        self.durable, self.readable, self.pending = durable, bytearray(durable), []


def place(content: bytearray, offset: int, data: bytes) -> None:
    """Put bytes at an offset."""
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def apply(content: bytearray, offset: int, data: bytes | None) -> None:
    """Do a write or a truncation (None)."""
    if data is None:
        del content[offset:]
    else:
        place(content, offset, data)


class VirtualDisk(apsw.VFS):
    """The disk, registered with SQLite under ``name``.

    Attributes:
        operations: Writes, truncations and syncs so far.
        syncs: Syncs so far.
        cut_at: The operation from which on everything fails, as the power is gone.
        refuse_sync: The number of the sync that is refused.
        has_refused: Whether a sync was refused since the power came back.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self.name = name
        self.files: dict[str, File] = {}
        self.operations = 0
        self.syncs = 0
        self.cut_at: int | None = None
        self.refuse_sync: int | None = None
        self.has_refused = False
        #: Of the journal: names that are not durable yet, and what was removed under names whose removal is not.
        self.unsynced_names: set[str] = set()
        self.removed: dict[str, File] = {}

    @property
    def is_off(self) -> bool:
        """Whether everything fails now."""
        return self.cut_at is not None and self.operations >= self.cut_at

    def lose_power(self, dice: random.Random) -> None:
        """Keep what was synced and let chance decide over the rest; the power is back afterwards."""
        for name in sorted(self.unsynced_names):
            if dice.random() < 0.5:
                self.files.pop(name, None)
        for name, file in self.removed.items():
            if name not in self.files and dice.random() < 0.5:
                self.files[name] = file
        self.sync_names()
        for file in self.files.values():
            file.lose_power(dice)
        self.come_back()

    def come_back(self) -> None:
        """Work again, with all that is readable: only the process has died."""
        self.cut_at = self.refuse_sync = None
        self.has_refused = False

    def sync_names(self) -> None:
        """Have the names of the journal's files as they are."""
        self.unsynced_names.clear()
        self.removed.clear()

    def sync(self, file: File) -> None:
        """Sync a file, unless that is the sync that is refused.

        Raises:
            apsw.IOError: It was refused, or the power is gone.
        """
        self.count()
        self.syncs += 1
        if self.syncs == self.refuse_sync:
            file.pending = []
            self.has_refused = True
            raise apsw.IOError("the sync was refused")
        file.sync()

    def count(self) -> None:
        """Note one operation, or fail because the power is gone."""
        self.operations += 1
        if self.cut_at is not None and self.operations >= self.cut_at:
            raise apsw.IOError("the power is gone")

    def excepthook(self, *_: Any) -> bool:
        """Say nothing: the errors are meant, and SQLite reports them."""
        return True

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        flags[1] = flags[0]
        return OpenFile(self, self.files.setdefault(path, File()))

    def xDelete(self, name: str, _: bool) -> None:
        self.files.pop(name, None)

    def xAccess(self, name: str, _: int) -> bool:
        return name in self.files and bool(self.files[name].readable)

    def xFullPathname(self, name: str) -> str:
        return name


class OpenFile:
    """What SQLite holds while it has a file open; the methods have SQLite's names."""

    def __init__(self, disk: VirtualDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    def excepthook(self, *_: Any) -> None:
        """Say nothing, as the disk."""

    def xRead(self, amount: int, offset: int) -> bytes:
        return bytes(self._file.readable[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.count()
        self._file.write(offset, bytes(data))

    def xTruncate(self, size: int) -> None:
        self._disk.count()
        self._file.truncate(size)

    def xSync(self, _: int) -> None:
        self._disk.sync(self._file)

    def xFileSize(self) -> int:
        return len(self._file.readable)

    def xLock(self, _: int) -> None:
        pass

    def xUnlock(self, _: int) -> None:
        pass

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, _op: int, _pointer: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return SECTOR

    def xDeviceCharacteristics(self) -> int:
        return 0

    def xClose(self) -> None:
        pass


class VirtualFiles(JournalFiles):
    """The journal's files on such a disk."""

    def __init__(self, disk: VirtualDisk) -> None:
        self._disk = disk
        self._open: dict[int, tuple[str, File]] = {}
        self._last = 0
        #: Whether no file of the journal may become longer.
        self.is_full = False

    def names(self, path: str) -> list[str]:
        """See JournalFiles."""
        return sorted(name for name in self._disk.files if name.startswith(path + SUFFIX))

    def read(self, name: str) -> bytes:
        """See JournalFiles."""
        if name not in self._disk.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return bytes(self._disk.files[name].readable)

    def free(self, path: str) -> int:
        """See JournalFiles; enough, since ``is_full`` says what is not."""
        return 1 << 40

    def create(self, name: str, *, is_new: bool) -> int:
        """See JournalFiles."""
        self._count()
        if is_new and name in self._disk.files:
            raise FileExistsError(errno.EEXIST, "there is such a file", name)
        if name not in self._disk.files:
            self._disk.files[name] = File()
            self._disk.unsynced_names.add(name)
        self._last += 1
        self._open[self._last] = (name, self._disk.files[name])
        return self._last

    def write(self, file: int, buffers: Sequence[bytes], offset: int) -> int:
        """See JournalFiles."""
        self._count()
        data = b"".join(buffers)
        if self.is_full and offset + len(data) > len(self._open[file][1].readable):
            raise OSError(errno.ENOSPC, "no room")
        self._open[file][1].write(offset, data)
        return len(data)

    def truncate(self, file: int, length: int) -> None:
        """See JournalFiles."""
        self._count()
        self._open[file][1].truncate(length)

    def sync(self, file: int) -> None:
        """See JournalFiles."""
        try:
            self._disk.sync(self._open[file][1])
        except apsw.IOError as error:
            raise OSError(errno.EIO, str(error)) from None

    def sync_length(self, file: int) -> None:
        """See JournalFiles."""
        self.sync(file)

    def sync_names(self, path: str) -> None:
        """See JournalFiles."""
        self._count()
        self._disk.sync_names()

    def is_at(self, name: str, file: int) -> bool:
        """See JournalFiles."""
        return self._disk.files.get(name) is self._open[file][1]

    def remove(self, name: str) -> None:
        """See JournalFiles."""
        self._count()
        gone = self._disk.files.pop(name, None)
        if gone is not None and name not in self._disk.unsynced_names:
            self._disk.removed[name] = gone

    def close(self, file: int) -> None:
        """See JournalFiles."""
        del self._open[file]

    def _count(self) -> None:
        try:
            self._disk.count()
        except apsw.IOError as error:
            raise OSError(errno.EIO, str(error)) from None
