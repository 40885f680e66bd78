"""Files of runs: for each run what is known of it, and what undoes the run.

Only their owner can read them, since they hold messages. What was begun when a console died is found again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import msgspec

from duobus.console.screens.dead_letters import job_record as record_of
from duobus.console.screens.dead_letters.job_record import JobRecord
from duobus.console.settings import ConsoleSettings
from duobus.file_sync import sync_file, sync_folder

try:
    import fcntl
except ImportError:  # Windows, where one console has a folder
    fcntl = None  # type: ignore[assignment]

#: How long a run can be undone, and how many messages the undo files hold together.
UNDO_MS: Final = 24 * 3_600_000
UNDO_MESSAGES_MAX: Final = 100_000
#: Runs that are remembered, and for how long.
RUNS_MAX: Final = 200
_RUNS_MS: Final = 7 * 24 * 3_600_000
_ID: Final = re.compile(r"[0-9a-f]{16}")


def runs_folder(settings: ConsoleSettings) -> Path:
    """Where runs are kept: beside the file of profiles, otherwise in the state folder of the user."""
    if settings.profiles is not None:
        return settings.profiles.parent / f"{settings.profiles.name}.dead-letters"
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "duobus" / "console-dead-letters"


class JobFiles:
    """The folder of runs.

    Args:
        folder: Made when the first run begins.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def load(self, now_ms: int) -> dict[str, JobRecord]:
        """The runs of earlier consoles, without what is too old; those that had not ended were interrupted."""
        found: dict[str, JobRecord] = {}
        if not self._folder.is_dir():
            return found
        for path in sorted(self._folder.glob("*.json")):
            if _ID.fullmatch(path.stem) is None:
                continue
            try:
                record = msgspec.json.decode(path.read_bytes(), type=JobRecord)
            except (OSError, msgspec.DecodeError):
                # Another version's, or torn by a crash of the machine.
                continue
            if not record.has_ended and not self.hold(record.id):
                # Another console of this machine is at it.
                continue
            if not record.has_ended:
                record.state = record_of.INTERRUPTED
                record.note = "The console ended in the middle of this. What was done until then is done."
                record.ended_ms = now_ms
                self.save(record)
                self.release(record.id)
            found[record.id] = record
        return found

    def hold(self, identifier: str) -> bool:
        """Take a run for this console until the console lets go or dies; False when another console has it."""
        if fcntl is None:
            return True
        descriptor = os.open(self._path(identifier, "lock"), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._held[identifier] = descriptor
        return True

    def release(self, identifier: str) -> None:
        """Let go of a run that has ended."""
        descriptor = self._held.pop(identifier, None)
        if descriptor is not None:
            self._path(identifier, "lock").unlink(missing_ok=True)
            os.close(descriptor)

    def save(self, record: JobRecord) -> None:
        """Write down what is known of a run; a crash leaves the old or the new file."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(record.id, "json")
        fresh = path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            sync_file(file.fileno())
        fresh.replace(path)
        sync_folder(self._folder)

    def undo_path(self, identifier: str) -> Path:
        """The undo file of a run; its folder is there."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._path(identifier, "undo")

    def sweep(self, records: dict[str, JobRecord], now_ms: int) -> None:
        """Remove what is too old or too much: undo files first, then what is known of runs."""
        kept = 0
        newest_first = sorted(records.values(), key=lambda record: -record.begun_ms)
        for record in newest_first:
            kept += record.recorded
            is_over = kept > UNDO_MESSAGES_MAX and kept > record.recorded
            if record.has_ended and record.recorded and (now_ms >= record.undo_until_ms or is_over):
                kept -= record.recorded
                record.recorded = 0
                self._path(record.id, "undo").unlink(missing_ok=True)
                self.save(record)
        for position, record in enumerate(newest_first):
            if record.has_ended and (position >= RUNS_MAX or now_ms - record.begun_ms > _RUNS_MS):
                for suffix in ("undo", "json"):
                    self._path(record.id, suffix).unlink(missing_ok=True)
                del records[record.id]

    def _path(self, identifier: str, suffix: str) -> Path:
        assert _ID.fullmatch(identifier) is not None
        return self._folder / f"{identifier}.{suffix}"
