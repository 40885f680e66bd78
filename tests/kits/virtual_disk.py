"""A disk in memory under the real SQLite: it keeps, drops or tears each write that was not synced.

Available everywhere, unlike tools/powercut.py, and exact: power can be cut, or a sync refused, at any chosen
operation. A refused sync behaves as the kernel's does: what it should have written stays readable, is called
clean from then on, and never reaches the disk unless it is written again.
"""

from __future__ import annotations

import random
from typing import Any

import apsw

SECTOR = 512


class File:
    """One file: what is readable now, what would survive, and the writes between the two."""

    def __init__(self) -> None:
        self.readable = bytearray()
        self.durable: bytearray | None = None
        self.pending: list[tuple[int, bytes | None]] = []

    def write(self, offset: int, data: bytes) -> None:
        place(self.readable, offset, data)
        self.pending.append((offset, data))

    def truncate(self, size: int) -> None:
        del self.readable[size:]
        self.pending.append((size, None))

    def sync(self) -> None:
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
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
    else:
        place(content, offset, data)


class Disk(apsw.VFS):
    """The disk, registered with SQLite under ``name``.

    Attributes:
        operations: Writes, truncations and syncs so far.
        syncs: Syncs so far.
        cut_at: The operation from which on everything fails, as the power is gone.
        refuse_sync: The number of the sync that is refused.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self.name = name
        self.files: dict[str, File] = {}
        self.operations = 0
        self.syncs = 0
        self.cut_at: int | None = None
        self.refuse_sync: int | None = None

    def lose_power(self, dice: random.Random) -> None:
        """Keep what was synced and let chance decide over the rest; the power is back afterwards."""
        for file in self.files.values():
            file.lose_power(dice)
        self.cut_at = None

    def count(self) -> None:
        """Note one operation, or fail because the power is gone."""
        self.operations += 1
        if self.cut_at is not None and self.operations >= self.cut_at:
            raise apsw.IOError("the power is gone")

    def excepthook(self, *_: Any) -> None:
        """Say nothing: the errors are meant, and SQLite reports them."""

    def xOpen(self, name: Any, flags: list[int]) -> OpenFile:  # noqa: N802 - SQLite's name
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        flags[1] = flags[0]
        return OpenFile(self, self.files.setdefault(path, File()))

    def xDelete(self, name: str, _: bool) -> None:  # noqa: N802 - SQLite's name
        self.files.pop(name, None)

    def xAccess(self, name: str, _: int) -> bool:  # noqa: N802 - SQLite's name
        return name in self.files and bool(self.files[name].readable)

    def xFullPathname(self, name: str) -> str:  # noqa: N802 - SQLite's name
        return name


class OpenFile:
    """What SQLite holds while it has a file open; the methods have SQLite's names."""

    def __init__(self, disk: Disk, file: File) -> None:
        self._disk = disk
        self._file = file

    def excepthook(self, *_: Any) -> None:
        pass

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        return bytes(self._file.readable[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.count()
        self._file.write(offset, bytes(data))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._disk.count()
        self._file.truncate(size)

    def xSync(self, _: int) -> None:  # noqa: N802
        self._disk.count()
        self._disk.syncs += 1
        if self._disk.syncs == self._disk.refuse_sync:
            self._file.pending = []
            raise apsw.IOError("the sync was refused")
        self._file.sync()

    def xFileSize(self) -> int:  # noqa: N802
        return len(self._file.readable)

    def xLock(self, _: int) -> None:  # noqa: N802
        pass

    def xUnlock(self, _: int) -> None:  # noqa: N802
        pass

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return False

    def xFileControl(self, _op: int, _pointer: int) -> bool:  # noqa: N802
        return False

    def xSectorSize(self) -> int:  # noqa: N802
        return SECTOR

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        return 0

    def xClose(self) -> None:  # noqa: N802
        pass
