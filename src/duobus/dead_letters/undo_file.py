"""The undo file: what dead letters were, on disk before anything became of them, and where they went.

One JSON object a line: a head, then for each chunk the messages and, once it is done, their new sequence numbers; at
the end those that were undone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from duobus.dead_letters.namespace import DeadLetterError
from duobus.file_sync import sync_file

if TYPE_CHECKING:
    from duobus.dead_letters.work import Work

_KIND: Final = "duobus-undo"
_VERSION: Final = 1


class UndoFile:
    """Written while work is done; readable by its owner alone, since it holds messages."""

    def __init__(self, path: Path, work: Work) -> None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise DeadLetterError(f"The undo file {path} cannot be made: {error.strerror}.") from None
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        to = work.path if work.action == "resubmit" else work.plan.to
        self._write([{"kind": _KIND, "version": _VERSION, "action": work.action, "entity": work.path, "to": to}])

    def plan(self, records: list[dict[str, Any]]) -> None:
        """Write down messages that are about to be moved or removed."""
        names = ("sequenceNumber", "reason", "description", "message")
        self._write([{name: record[name] for name in names} for record in records])

    def done(self, moved: list[dict[str, Any]]) -> None:
        """Write down where they went."""
        self._write([{"moved": moved}])

    def close(self) -> None:
        """It is complete."""
        self._file.close()

    def _write(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        sync_file(self._file.fileno())


class Undone:
    """What an undo file says.

    Attributes:
        address: The entity whose dead letters they were.
        unknown: Sequence numbers of messages of which nobody knows where they are.
    """

    def __init__(self, path: Path, address: str) -> None:
        self._path = path
        self._places: dict[int, tuple[int, dict[str, Any] | None]] = {}
        self.address = address
        self.unknown: list[int] = []

    def __len__(self) -> int:
        """How many can be made dead letters again."""
        return len(self._places)

    def add(self, number: int, offset: int, where: dict[str, Any] | None) -> None:
        """Remember a message that stands at this offset of the file, and where the message is now."""
        self._places[number] = (offset, where)

    def items(self) -> Iterator[dict[str, Any]]:
        """What is to be made a dead letter again, without what was undone already.

        The messages are read while they are asked for: all of them may be more than fits into memory.
        """
        with self._path.open("rb") as file:
            for offset, where in list(self._places.values()):
                file.seek(offset)
                yield json.loads(file.readline()) | {"movedTo": where}

    def note(self, numbers: list[int]) -> None:
        """Write down that these are dead letters again, so that they are not undone twice."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"undone": numbers}) + "\n")
            file.flush()
            sync_file(file.fileno())


def read_undo(path: Path) -> Undone:
    """Read an undo file; a last line that a crash has torn is left out.

    Raises:
        DeadLetterError: It is none.
    """
    lines = _lines(path)
    _, head = next(lines, (0, {}))
    if head.get("kind") != _KIND or head.get("version") != _VERSION:
        raise DeadLetterError(f"{path} is no undo file of this version.")
    offsets: dict[int, int] = {}
    moved: dict[int, int | None] = {}
    for offset, line in lines:
        if "message" in line:
            offsets[line["sequenceNumber"]] = offset
        moved.update({one["sequenceNumber"]: one["movedTo"] for one in line.get("moved", ())})
        for number in line.get("undone", ()):
            offsets.pop(number, None)
    found = Undone(path, head["entity"])
    is_purge = head["action"] == "purge"
    for number, offset in offsets.items():
        if number not in moved or (moved[number] is None and not is_purge):
            found.unknown.append(number)
        else:
            where = None if is_purge else {"entity": head["to"], "sequenceNumber": moved[number]}
            found.add(number, offset, where)
    return found


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of the file, each with the offset of its line."""
    offset = 0
    with path.open("rb") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                return
            if isinstance(line, dict):
                yield offset, line
            offset += len(text)
