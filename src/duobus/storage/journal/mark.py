"""The mark of a journal: the last commit that is known to have been answered, in a small file beside the database.

The end of a journal that was taken away, or put back from a copy, looks like a journal that came to its end in order.
The mark tells the two apart, as far as it goes: it is written with each pass of the thread that brings over, without a
sync of its own, so that the mark may lie behind, and never ahead.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from duobus.storage.checksums import crc32
from duobus.storage.journal.files import SYSTEM_FILES, JournalFiles, suppress_no_room

#: Behind the name of the database.
SUFFIX: Final = ".journal-mark"
_MAGIC: Final = b"duobusK1"
_FIELDS: Final = Struct("<8sQ")
_SUM: Final = Struct("<I")


def read_mark(path: str, files: JournalFiles = SYSTEM_FILES) -> int:
    """Return the commit that the mark of a database's journal names; 0 when there is none that can be read."""
    try:
        data = files.read(path + SUFFIX)
    except OSError:
        return 0
    if len(data) < _FIELDS.size + _SUM.size or data[_FIELDS.size :][: _SUM.size] != _SUM.pack(
        crc32(data[: _FIELDS.size])
    ):
        return 0
    magic, commit_no = _FIELDS.unpack_from(data)
    return int(commit_no) if magic == _MAGIC else 0


def remove_mark(path: str, files: JournalFiles = SYSTEM_FILES) -> None:
    """From now on the journal is taken as it is found."""
    files.remove(path + SUFFIX)


class JournalMark:
    """The mark of a journal that is open."""

    __slots__ = ("_commit_no", "_fd", "_files")

    def __init__(self, path: str, files: JournalFiles = SYSTEM_FILES) -> None:
        self._files = files
        self._fd = files.create(path + SUFFIX, is_new=False)
        self._commit_no = 0

    def write(self, commit_no: int) -> None:
        """Say that this commit was answered; raises OSError where the disk refuses."""
        if commit_no != self._commit_no:
            data = _FIELDS.pack(_MAGIC, commit_no)
            # Where the disk has no room for it, the mark lies behind, which it may.
            with suppress_no_room():
                self._files.write(self._fd, (data + _SUM.pack(crc32(data)),), 0)
                self._commit_no = commit_no

    def close(self) -> None:
        """Give the file back."""
        self._files.close(self._fd)
