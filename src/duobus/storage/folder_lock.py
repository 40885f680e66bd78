"""One data folder has one server: a lock that ends with the process, and says who has it."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from time import gmtime, strftime
from typing import Final

from duobus.clock import Clock
from duobus.errors import ConfigurationError

NAME: Final = "duobus.lock"
#: Tries to take the lock, and seconds between them: a command that looks for the holder shares the lock for an instant.
_TRIES: Final = 10
_TRY_S: Final = 0.02
#: Bytes of it that are read, for whoever finds it locked; a host name has up to 255.
_READ_BYTES: Final = 500
_PROCESS: Final = re.compile(r"with process id (\d+)")


class FolderLock:
    """Keeps other processes out of a data folder.

    The system ends the lock with the process, however that ends. The file stays: whoever locks a file that another
    process removes locks nothing.
    """

    def __init__(self, data: Path) -> None:
        self._path = data / NAME
        self._fd: int | None = None
        self._text = ""

    def take(self, who: str, clock: Clock) -> None:
        """Take the lock; ``who``: what has it, for those who find it taken.

        Raises:
            ConfigurationError: Somebody has it.
        """
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        if not _locked(fd):
            holder = _holder(fd)
            os.close(fd)
            raise ConfigurationError(
                f"The data folder {self._path.parent} is in use by {holder or 'another process'}. Each server needs a "
                "data folder of its own, joined ones too: stop that process, or give another --data."
            )
        since = strftime("%Y-%m-%d %H:%M:%S", gmtime(clock.now_ms() // 1000))
        self._fd = fd
        self._text = f"{who} with process id {os.getpid()}, since {since} UTC"
        self._write(self._text)

    def tell_address(self, address: str) -> None:
        """Say also where whoever has the lock is reached, now that this is known."""
        self._write(f"{self._text}, at {address}")

    def _write(self, text: str) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{text}\n".encode(), 0)

    def release(self) -> None:
        """Let others have the folder; harmless when nothing is held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _locked(fd: int) -> bool:
    """Whether this process has the lock now."""
    for _ in _tries():
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return True
    return False


def _tries() -> Iterator[None]:
    """So many turns, with a pause between two."""
    pause = threading.Event()
    for number in range(_TRIES):
        if number:
            pause.wait(_TRY_S)
        yield


def _holder(fd: int) -> str:
    return os.pread(fd, _READ_BYTES, 0).decode(errors="replace").strip()


def holder_of(data: Path) -> str | None:
    """The holder of a data folder's lock, as the holder describes itself; None when nobody has the lock."""
    try:
        fd = os.open(data / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    text = ""
    try:
        for _ in _tries():
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = _holder(fd)
                # Whoever has just taken it has not said so yet: the file tells of one before, or of nobody.
                if _may_run(text):
                    return text
            else:
                return None
        return text or "another process"
    finally:
        os.close(fd)


def _may_run(holder: str) -> bool:
    """Whether the process by which a holder describes itself is there, or may be another user's."""
    found = _PROCESS.search(holder)
    if found is None:
        return False
    try:
        os.kill(int(found[1]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
