"""LogWatch: sees to it that a store's write-ahead log is the one that its commits went to, at open and at each commit.

Until it has been copied home, a commit stands in the log alone. SQLite opens a database without its log, or beside
another's, and says nothing: whatever stood in the log is gone. So there are two things.

*A mark*, the file ``<database>.mark``, says how many steps of the store were committed, and whether a log is needed:

    opening    mark "free"      durable, before the log is emptied
    commit     mark "in use"    durable with the first commit of a life, before its answer
    passes     steps, length    plain writes by the thread of the checkpoints, before and behind each pass, every 50 to
                                200 ms under load
    closing    mark "free"      durable, before the log is emptied

What the mark says has always been durable before it was written, so it may lie behind, and never ahead: files that were
left alone are never refused. A store that has fewer steps than its mark, or lacks a log that is in use, or whose log is
shorter than it was, is refused by name. Without a mark (of an earlier version, or removed) a store is taken as it is.

*A look before each commit*: whether the log's name still leads to the file that is open, and whether that is as long as
it was; and at each pass, whether its frames are those of this log. A log that was removed or replaced while it was in
use is still open here: it is written anew under its name, and the store opened again with everything in it.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from duobus.errors import StoreFailed
from duobus.file_sync import sync_file, sync_folder

#: Behind the name of the database.
MARK_SUFFIX: Final = ".mark"
#: What was found under a log's name and is not that log is kept under this name.
FOREIGN_SUFFIX: Final = ".foreign"
_MAGIC: Final = b"duobusM1"
#: Whether the log is in use, steps, bytes of the log; then a checksum.
_FIELDS: Final = struct.Struct("<8sQQQ")
_SUM: Final = struct.Struct("<I")
#: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_LOG_MAGIC: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_HEADER_SALTS: Final = slice(16, 24)
_FRAME_SALTS: Final = slice(8, 16)
_READ_BYTES: Final = 1 << 20
#: A log is demanded in this length at most: SQLite cuts a longer one when it starts again, before its mark is written.
_DEMANDED_MAX_BYTES: Final = 32 << 20
_FOREIGN_MAX: Final = 100
#: How much older than the last commit the last change of a folder has to be until it is believed: times of file systems
#: are coarse, 2 s at the worst.
_SETTLED_NS: Final = 3_000_000_000
_RESTARTS_MAX: Final = 3

_PUT_BACK: Final = (
    "Put back what was taken away. If it cannot be found, stop the server and take the store without it, by which"
    " messages that were accepted are lost: duobus store accept-loss"
)


class Mark(NamedTuple):
    """What a mark says: whether the log is needed, the steps that were committed, and bytes of the log that count."""

    is_in_use: bool
    steps: int
    log_bytes: int


def read_mark(path: str) -> Mark | None:
    """Return the mark of the database at ``path``; None when there is none that can be read."""
    try:
        data = Path(path + MARK_SUFFIX).read_bytes()[: _FIELDS.size + _SUM.size]
    except OSError:
        return None
    if len(data) < _FIELDS.size + _SUM.size or data[_FIELDS.size :] != _SUM.pack(zlib.crc32(data[: _FIELDS.size])):
        return None
    magic, is_in_use, steps, log_bytes = _FIELDS.unpack(data[: _FIELDS.size])
    return Mark(bool(is_in_use), steps, log_bytes) if magic == _MAGIC else None


def remove_mark(path: str) -> None:
    """From now on the database is taken as it is."""
    Path(path + MARK_SUFFIX).unlink(missing_ok=True)


def demand_log(path: str) -> None:
    """Refuse a database whose log is in use and is not there, or not whole; to be called before SQLite sees it.

    Raises:
        StoreFailed: That is so; nothing was touched.
    """
    mark = read_mark(path)
    if mark is None or not mark.is_in_use:
        return
    fault = _fault_of(path + "-wal", mark.log_bytes)
    if fault:
        raise StoreFailed(
            f"{path}-wal: the store's log {fault}, and messages that were accepted may stand in it alone. {_PUT_BACK}"
        )


def _fault_of(log: str, least_bytes: int) -> str:
    try:
        with open(log, "rb") as file:  # noqa: PTH123 - beside os.fstat of the same
            header = file.read(_HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return "is missing"
    if header[:4] not in _LOG_MAGIC:
        return "is empty, or another file stands in its place"
    if size < least_bytes:
        return f"is shorter ({size} bytes) than it was ({least_bytes})"
    return ""


def demand_steps(path: str, steps: int) -> None:
    """Refuse a database that has fewer steps than were committed; to be called before anything is written to it.

    Raises:
        StoreFailed: That is so.
    """
    mark = read_mark(path)
    if mark is not None and steps < mark.steps:
        raise StoreFailed(
            f"{path}: the file or its log ({path}-wal) is older than what was committed to the store (step {steps}"
            f" of {mark.steps}): another copy was put in its place. {_PUT_BACK}"
        )


def put_aside(path: str) -> str:
    """Give a file that is no log of ours another name, so that nobody replays it; returns that name, or nothing."""
    for number in range(_FOREIGN_MAX):
        name = f"{path}{FOREIGN_SUFFIX}{number or ''}"
        if not os.path.lexists(name):
            try:
                os.rename(path, name)  # noqa: PTH104 - as the other calls here
            except FileNotFoundError:
                return ""
            return name
    raise StoreFailed(f"{path}: remove the files {path}{FOREIGN_SUFFIX}*, of which there are {_FOREIGN_MAX}")


def log_was_cut(path: str) -> str:
    """What is said of a log that has lost something while it was in use."""
    return f"{path}-wal: the store's log was cut or written over while in use. {_PUT_BACK}"


class MarkFile:
    """The mark of a database that is open; made when it is first written."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str) -> None:
        self._path = path + MARK_SUFFIX
        self._fd: int | None = None

    def write(self, mark: Mark, *, is_durable: bool = False) -> None:
        """Say how far the store is, which must be durable itself.

        Raises:
            OSError: The disk refused.
        """
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            is_durable = True
            sync_folder(os.path.dirname(self._path))  # noqa: PTH120 - as the other calls here
        data = _FIELDS.pack(_MAGIC, *mark)
        os.pwrite(self._fd, data + _SUM.pack(zlib.crc32(data)), 0)
        if is_durable:
            sync_file(self._fd)

    def close(self) -> None:
        """Give the file back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class LogWatch:
    """The log of one store, and the name of its database, while it is open.

    Args:
        path: The database; its log lies beside the file that a link leads to.
        demand_database: Raises StoreFailed when the database is not at its name any more.
        is_marked: Whether there is a mark. Without syncs none could be believed after a power cut.

    Attributes:
        in_log: Pages in the log after the last commit, by SQLite's account.
    """

    __slots__ = (
        "_demand_database",
        "_end",
        "_fd",
        "_folder",
        "_frame_bytes",
        "_identity",
        "_is_in_use",
        "_is_marked",
        "_log",
        "_mark",
        "_path",
        "_salts",
        "_settled",
        "_size",
        "in_log",
    )

    def __init__(self, path: str, demand_database: Callable[[], None], *, is_marked: bool) -> None:
        self._path = os.path.realpath(path)
        self._log = f"{self._path}-wal"
        self._demand_database = demand_database
        self._is_marked = is_marked
        # Where a link leads elsewhere, names are in more folders than one.
        self._folder = os.path.dirname(self._path) if os.path.abspath(path) == self._path else ""  # noqa: PTH100, PTH120
        self._settled: tuple[int, int, int] | None = None
        self._mark = MarkFile(self._path)
        self._fd: int | None = None
        self._identity: tuple[int, int] = (0, 0)
        self._is_in_use = False
        self._size = 0
        self._frame_bytes = 0
        self.in_log = 0
        # For the thread of the checkpoints: where the log ended at the last pass, and what each of its frames carries.
        self._end = 0
        self._salts = b""

    # -- while the store is opened and closed -------------------------------------------------------------------

    def demand(self, *, is_new: bool) -> None:
        """See ``demand_log``. A mark beside the empty file of a new store is another's."""
        if is_new and not os.path.getsize(self._path):  # noqa: PTH202 - as the other calls here
            remove_mark(self._path)
        if self._is_marked:
            demand_log(self._path)

    def demand_steps(self, steps: int) -> None:
        """See ``demand_steps``. What is in the log is to be copied home now, so it will not be needed."""
        if self._is_marked:
            demand_steps(self._path, steps)
            self.free(steps)

    def doubted(self, failure: StoreFailed) -> StoreFailed:
        """What to say of a database that looks damaged: an older log's pages among newer ones look like that, too."""
        mark = read_mark(self._path) if self._is_marked else None
        if mark is None or not mark.is_in_use:
            return failure
        return StoreFailed(f"{failure}. Or its log, {self._log}, is an older one or another store's. {_PUT_BACK}")

    def begin(self, page_size: int) -> None:
        """Watch the log that is open now, and empty."""
        self._frame_bytes = _FRAME_HEADER_BYTES + page_size
        self._fd = os.open(self._log, os.O_RDONLY | os.O_CLOEXEC)
        stat = os.fstat(self._fd)
        self._identity = stat.st_dev, stat.st_ino
        self._size, self.in_log, self._end, self._salts = 0, 0, 0, b""
        self._settled = None
        self._is_in_use = False

    def free(self, steps: int) -> None:
        """The log is to be emptied now, and its commits are in the database after that.

        Raises:
            OSError: The disk refused.
        """
        if self._is_marked:
            self._mark.write(Mark(False, steps, 0), is_durable=True)

    def close(self, steps: int) -> None:
        """The store is to be closed in order, and its log emptied.

        Raises:
            StoreFailed: The log is not whole: what is left of it stays as it is.
            OSError: The disk refused.
        """
        self.check(steps)
        self.demand_whole(steps)
        self.free(steps)

    def end(self) -> None:
        """Watch no more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._mark.close()

    # -- at each commit -----------------------------------------------------------------------------------------

    def check(self, steps: int) -> None:
        """Look whether database and log are at their names, and the log as long as it was; before each commit.

        A folder says when a name in it was last made, changed or removed: as long as that is the same, one call tells
        for both. Such times are coarse, so both names are looked at until the last change is some seconds ago.

        Args:
            steps: Of the last commit.

        Raises:
            StoreFailed: They are not.
            OSError: The disk refused.
        """
        fd = self._fd
        if fd is None:
            return
        # The cheapest way to learn the length.
        size = os.lseek(fd, 0, os.SEEK_END)
        if (size < self._size and size < _DEMANDED_MAX_BYTES) or size < self.in_log * self._frame_bytes:
            raise self._cut(steps)
        self._size = size
        if self._settled is not None:
            try:
                stat = os.stat(self._folder)  # noqa: PTH116 - no Path per commit
            except FileNotFoundError:
                self._settled = None
            else:
                if (stat.st_mtime_ns, stat.st_ino, stat.st_dev) == self._settled:
                    return
        self.check_names()

    def check_names(self) -> None:
        """Look at both names themselves.

        Raises:
            StoreFailed: A file is not at its name any more. If it is the log, it is there again.
        """
        self._settled = None
        self._demand_database()
        folder = os.stat(self._folder) if self._folder else None  # noqa: PTH116
        try:
            stat = os.stat(self._log)  # noqa: PTH116
        except FileNotFoundError:
            stat = None
        if stat is None or (stat.st_dev, stat.st_ino) != self._identity:
            raise StoreFailed(self._written_anew())
        # The log was written last by the commit before, by the same clock.
        if folder is not None and stat.st_mtime_ns - folder.st_mtime_ns > _SETTLED_NS:
            self._settled = folder.st_mtime_ns, folder.st_ino, folder.st_dev

    def see_pages(self, _db: object, _name: str, pages: int) -> int:
        """Be told by SQLite, at the end of each commit, how many pages are in the log; 0 is its word for "go on".

        A file that is shorter has lost some of the last commit, which its length before that commit does not show.
        """
        self.in_log = pages
        return 0

    def _cut(self, steps: int) -> StoreFailed:
        """Have what is left of the log not pass for the log at the next open; returns what to raise."""
        if self._is_marked:
            self._mark.write(Mark(True, steps, max(self._end, _HEADER_BYTES)), is_durable=True)
        return StoreFailed(log_was_cut(self._path))

    def committed(self, steps: int) -> None:
        """A commit is in the log, and its answer has not gone out.

        Raises:
            OSError: The disk refused.
        """
        if self._is_marked and not self._is_in_use and self._fd is not None:
            self._mark.write(Mark(True, steps, _HEADER_BYTES), is_durable=True)
            self._is_in_use = True

    def _written_anew(self) -> str:
        """Put the log, which is open still, back under its name; returns what is to be said."""
        text = f"{self._log}: the store's log was moved, removed or replaced while in use"
        fd = self._fd
        assert fd is not None
        saved = f"{self._log}.saved"
        try:
            foreign = put_aside(self._log)
            with suppress(FileNotFoundError):
                os.unlink(saved)  # noqa: PTH108 - as the other calls here
            copy = os.open(saved, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                done = 0
                while block := os.pread(fd, _READ_BYTES, done):
                    done += os.write(copy, block)
                sync_file(copy)
            finally:
                os.close(copy)
            os.rename(saved, self._log)  # noqa: PTH104
            sync_folder(os.path.dirname(self._path))  # noqa: PTH120
        except OSError as error:
            return f"{text}, and could not be written anew ({error}). {_PUT_BACK}"
        aside = f"; what was found in its place is {foreign} now" if foreign else ""
        return f"{text}. It was written anew, with every commit in it{aside}"

    # -- at each pass of the checkpoints ------------------------------------------------------------------------

    def demand_whole(self, steps: int) -> None:
        """Refuse a log that is shorter than what is in it, or not the one that commits went to.

        Another's frames must not be copied into the database, nor some of a commit without the others.

        Args:
            steps: Of the last commit, or of one before.

        Raises:
            StoreFailed: It is refused, and will be at the next open.
            OSError: The disk refused.
        """
        fd = self._fd
        if fd is None:
            return
        # Before the length: a commit that comes between makes it longer, unless SQLite cuts a log that starts again.
        least = min(self.in_log * self._frame_bytes, _DEMANDED_MAX_BYTES)
        if os.fstat(fd).st_size < least or not self._is_own(fd):
            raise self._cut(steps)

    def _is_own(self, fd: int) -> bool:
        """Whether it is the log that commits went to, as far as its first bytes tell and those of its last frame."""
        header = os.pread(fd, _HEADER_BYTES, 0)
        old, salts = self._salts, header[_HEADER_SALTS]
        if not header:
            return not old
        if header[:4] not in _LOG_MAGIC:
            return False
        if old == salts:
            return self._salts_at(fd, self._end) == salts
        # SQLite counts the first one up whenever a log starts again, which it does once or twice between two passes.
        ahead = (int.from_bytes(salts[:4], "big") - int.from_bytes(old[:4], "big")) & 0xFFFFFFFF
        return not old or 0 < ahead <= _RESTARTS_MAX

    def copies(self, steps: int) -> None:
        """Note how long the log is before it is copied home, after which a commit may start it afresh.

        A log that was cut then would put pages of earlier commits back among those that were copied, and a copy of the
        log as it is now has less than the database; neither must pass for the log.

        Raises:
            OSError: The disk refused.
        """
        if self._fd is not None and self.in_log > 0 and self._is_in_use:
            self._note(_HEADER_BYTES + self.in_log * self._frame_bytes, steps)

    def copied(self, pages: int, steps: int) -> None:
        """Note how far the log had come, which is in it durably, and the store before that.

        Raises:
            OSError: The disk refused.
        """
        fd = self._fd
        if fd is None or pages <= 0 or not self._is_in_use:
            return
        end = _HEADER_BYTES + pages * self._frame_bytes
        header, of_frame = os.pread(fd, _HEADER_BYTES, 0), self._salts_at(fd, end)
        # Unless it began anew this very moment.
        if header[_HEADER_SALTS] == of_frame:
            self._end, self._salts = end, of_frame
        self._note(end, steps)

    def _note(self, end: int, steps: int) -> None:
        if self._is_marked:
            self._mark.write(Mark(True, steps, min(end, _DEMANDED_MAX_BYTES)))

    def _salts_at(self, fd: int, end: int) -> bytes:
        """What the frame carries that ends at ``end``."""
        return os.pread(fd, _FRAME_SALTS.stop, end - self._frame_bytes)[_FRAME_SALTS]
