"""The folder of a pipeline's state: who runs it, what each stage has done, and where each stage has its checkpoint.

All is found by the names of the stages, so that the same command goes on where a killed one was. Files are replaced as
a whole; other programs, such as the console, may read them at any time. The module needs nothing of Spark.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from duobus.file_sync import whole_file

try:
    import fcntl
except ImportError:  # Windows, where pipelines are read and not run
    fcntl = None  # type: ignore[assignment]

#: Runs of a stage whose records are kept.
RUNS_KEPT: Final = 20
#: Largest file that is read: a record has a few lines.
_BYTES_MAX: Final = 4 << 20
_OVERVIEW: Final = "pipeline.json"
_LOCK: Final = "lock"
_STAGES: Final = "stages"


class PipelineBusy(RuntimeError):
    """Somebody else runs the pipeline; the text says who."""


class StateError(RuntimeError):
    """The folder is not of this pipeline, or cannot be used; the text says what to do."""


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_BYTES_MAX))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(path: Path, value: Mapping[str, Any]) -> None:
    with whole_file(path) as file:
        file.write(json.dumps(value, default=str, indent=1).encode() + b"\n")


class StageState:
    """What is kept of one stage.

    Args:
        folder: Its folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = folder / "runs"

    @property
    def checkpoint(self) -> Path:
        """Folder of Spark's checkpoint of the stage."""
        return self.folder / "checkpoint"

    def status(self) -> dict[str, Any]:
        """What was told last; empty before the first run."""
        return _read(self.folder / "status.json") or {}

    def tell(self, status: Mapping[str, Any]) -> None:
        """Keep what there is to tell."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(self.folder / "status.json", status)

    def identity(self) -> dict[str, Any] | None:
        """What the stage read and wrote when its checkpoint was made."""
        return _read(self.folder / "identity.json")

    def identify(self, identity: Mapping[str, Any]) -> None:
        """Keep what the stage reads and writes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(self.folder / "identity.json", identity)

    # Runs of a stage that reads tables: what a run reads is written down before it begins, so that a run that was
    # killed is run again over the same rows, and under the same message ids.

    def plan(self, number: int, plan: Mapping[str, Any]) -> None:
        """Write down what a run reads, before it begins."""
        self._runs.mkdir(parents=True, exist_ok=True)
        _write(self._runs / f"{number:08d}.json", plan)

    def done(self, number: int, result: Mapping[str, Any]) -> None:
        """Write down that a run has done all it had to."""
        _write(self._runs / f"{number:08d}.done.json", result)
        for path in self._runs.iterdir():
            first = path.name.partition(".")[0]
            if first.isdecimal() and int(first) <= number - RUNS_KEPT:
                path.unlink(missing_ok=True)

    def newest(self) -> tuple[int, dict[str, Any], dict[str, Any] | None]:
        """Number and plan of the newest run, and its result if it is done; number 0 before the first."""
        numbers = []
        with suppress(OSError):
            numbers = [int(path.name[:8]) for path in self._runs.glob("????????.json") if path.name[:8].isdecimal()]
        for number in sorted(numbers, reverse=True):
            plan = _read(self._runs / f"{number:08d}.json")
            if plan is not None:
                return number, plan, _read(self._runs / f"{number:08d}.done.json")
        return 0, {}, None


class StateFolder:
    """The state of one pipeline.

    Args:
        folder: Where it is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def stage(self, name: str) -> StageState:
        """The state of a stage."""
        return StageState(self.folder / _STAGES / name)

    def overview(self) -> dict[str, Any] | None:
        """Name, document and stages, as the last run had them; None where no pipeline has run."""
        return _read(self.folder / _OVERVIEW)

    def write_overview(self, overview: Mapping[str, Any]) -> None:
        """Keep name, document and stages, for programs that do not have the document."""
        _write(self.folder / _OVERVIEW, overview)

    def holder(self) -> dict[str, Any] | None:
        """Who runs the pipeline now: process, host, since when; None when nobody does."""
        try:
            with (self.folder / _LOCK).open("rb") as file:
                if not _is_held(file):
                    return None
                return _holder_of(file)
        except OSError:
            return None

    def last_holder(self) -> dict[str, Any]:
        """Who runs the pipeline or has run it last."""
        return _read(self.folder / _LOCK) or {}

    @contextmanager
    def lock(self, about: Mapping[str, Any]) -> Iterator[None]:
        """Keep others from running the pipeline during the context; a kill of this process ends that, too.

        Args:
            about: What others are told.

        Raises:
            PipelineBusy: Somebody runs it.
            StateError: The folder cannot be used.
        """
        if fcntl is None:
            raise StateError("A pipeline runs on Linux and macOS only: this system has no locks of files.")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / _LOCK).open("a+b")
        except OSError as error:
            raise StateError(f"The folder of the state, {self.folder}, cannot be used: {error.strerror}.") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise PipelineBusy(_busy(_holder_of(file), self.folder)) from None
            self._file = file
            self.tell_holder({"process": os.getpid(), "host": socket.gethostname(), **about})
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)

    def tell_holder(self, about: Mapping[str, Any]) -> None:
        """Replace what others are told of the holder; for the holder itself, in the same file, since that is locked."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(about, default=str).encode())
        self._file.flush()


def _is_held(file: IO[bytes]) -> bool:
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _holder_of(file: IO[bytes]) -> dict[str, Any]:
    file.seek(0)
    try:
        found = json.loads(file.read(_BYTES_MAX))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _busy(holder: Mapping[str, Any], folder: Path) -> str:
    who = f"process {holder.get('process', 'unknown')} on {holder.get('host', 'an unknown host')}"
    since = f", since {holder['since']}" if "since" in holder else ""
    return (
        f"The pipeline is run already, by {who}{since}; the folder {folder} is its state. "
        "'duobus pipeline status' tells how far it is, and 'duobus pipeline stop' stops it."
    )
