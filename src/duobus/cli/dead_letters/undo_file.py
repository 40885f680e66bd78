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

import click

from duobus.file_sync import sync_file

if TYPE_CHECKING:
    from duobus.cli.dead_letters.work import Work

_KIND: Final = "duobus-undo"
_VERSION: Final = 1


class UndoFile:
    """Written while work is done; readable by its owner alone, since it holds messages."""

    def __init__(self, path: Path, work: Work) -> None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise click.ClickException(f"The undo file {path} cannot be made: {error.strerror}.") from None
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        to = work.path if work.action == "resubmit" else work.plan.to
        self._write([{"kind": _KIND, "version": _VERSION, "action": work.action, "entity": work.path, "to": to}])

    def plan(self, records: list[dict[str, Any]]) -> list[int]:
        """Write down messages; returns the numbers of those that can be moved."""
        good = [record for record in records if "refused" not in record]
        names = ("sequenceNumber", "reason", "description", "message")
        self._write([{name: record[name] for name in names} for record in good])
        return [record["sequenceNumber"] for record in good]

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
        items: What is to be made a dead letter again, without what was undone already.
        unknown: Sequence numbers of messages of which nobody knows where they are.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.address = ""
        self.items: list[dict[str, Any]] = []
        self.unknown: list[int] = []

    def note(self, numbers: list[int]) -> None:
        """Write down that these are dead letters again, so that they are not undone twice."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"undone": numbers}) + "\n")
            file.flush()
            sync_file(file.fileno())


def read_undo(path: Path) -> Undone:
    """Read an undo file; a last line that a crash has torn is left out.

    Raises:
        click.ClickException: It is none.
    """
    lines = list(_lines(path))
    if not lines or lines[0].get("kind") != _KIND or lines[0].get("version") != _VERSION:
        raise click.ClickException(f"{path} is no undo file of this version.")
    head = lines[0]
    messages: dict[int, dict[str, Any]] = {}
    moved: dict[int, int | None] = {}
    for line in lines[1:]:
        if "message" in line:
            messages[line["sequenceNumber"]] = line
        moved.update({one["sequenceNumber"]: one["movedTo"] for one in line.get("moved", ())})
        for number in line.get("undone", ()):
            messages.pop(number, None)
    found = Undone(path)
    found.address = head["entity"]
    is_purge = head["action"] == "purge"
    for number, record in messages.items():
        if number not in moved or (moved[number] is None and not is_purge):
            found.unknown.append(number)
        else:
            where = None if is_purge else {"entity": head["to"], "sequenceNumber": moved[number]}
            found.items.append(record | {"movedTo": where})
    return found


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                return
            if isinstance(line, dict):
                yield line
