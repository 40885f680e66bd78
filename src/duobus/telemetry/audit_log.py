"""The audit log: who changed which entity or rule, when, and from where.

Two lines of JSON for a change: one before it, on disk before anything is done, and one with what came of it. A change
whose second line is missing was under way when the server ended: what became of it shows the entity. Lines are kept in
numbered files of bounded size and number. Keys of access rules never get here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from duobus.errors import ServerBusy
from duobus.file_sync import sync_file, sync_folder

#: A file that has grown to this size is followed by the next one: some 15,000 changes.
FILE_BYTES_MAX: Final = 10 * 1024 * 1024
#: Most files that are kept; the oldest goes when there are more (200 MiB in all).
FILES_MAX: Final = 20
#: Longest text of one value that a line tells, in characters.
VALUE_LENGTH_MAX: Final = 1_024

CREATE: Final = "create"
UPDATE: Final = "update"
DELETE: Final = "delete"
#: Outcome of a change of which nothing more is known.
UNKNOWN: Final = "unknown"
DONE: Final = "done"
#: Kind of a change of an access rule.
RULE_KIND: Final = "access rule"

_NAME: Final = re.compile(r"audit-(\d{8})\.jsonl")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECRETS: Final = ("primary_key", "secondary_key")
_TIMES: Final = frozenset({"created_at_ms", "updated_at_ms", "accessed_at_ms"})


class Change:
    """One change that is asked for.

    Attributes:
        operation: CREATE, UPDATE or DELETE.
        kind: queue, topic, subscription, rule or RULE_KIND.
        path: Of the entity; of a rule with its subscription; of an access rule see ``path_of_rule``.
        who: Name of the access rule, or of the bearer's identity, that allowed it; the server itself.
        origin: Network address that it came from; empty for the server itself.
        interface: http, amqp or server; folder for a command in the data folder of a server that does not run.
    """

    __slots__ = ("interface", "kind", "namespace", "number", "operation", "origin", "path", "who")

    def __init__(
        self, operation: str, kind: str, namespace: str, path: str, *, who: str, origin: str, interface: str
    ) -> None:
        self.operation = operation
        self.kind = kind
        self.namespace = namespace
        self.path = path
        self.who = who
        self.origin = origin
        self.interface = interface
        self.number = 0


class AuditTrail:
    """Where changes are told; this one keeps nothing, as a server without a data folder.

    Attributes:
        folder: Where the log is, or None.
    """

    folder: Path | None = None

    def begin(self, change: Change, now_ms: int) -> None:
        """A change is about to be made.

        Raises:
            ServerBusy: It cannot be written down, and must not be made.
        """

    def end(self, change: Change, now_ms: int, outcome: str, changes: Mapping[str, Any] | None = None) -> None:
        """It was made, or refused: ``outcome`` is DONE or why not."""

    def close(self) -> None:
        """Nothing more is told."""


class AuditLog(AuditTrail):
    """Appends to numbered files in a folder, mode 0600 and 0700. Every call blocks for a write."""

    def __init__(self, folder: Path, *, file_bytes_max: int = FILE_BYTES_MAX, files_max: int = FILES_MAX) -> None:
        self._folder = self.folder = folder
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._file: BinaryIO | None = None
        self._number = 0

    def begin(self, change: Change, now_ms: int) -> None:
        """See AuditTrail."""
        self._number += 1
        change.number = self._number
        line = {
            "id": self._number,
            "pid": os.getpid(),
            "at": _text(now_ms),
            "operation": change.operation,
            "kind": change.kind,
            "namespace": change.namespace,
            "path": change.path,
            "who": change.who,
            "from": change.origin,
            "door": change.interface,
        }
        try:
            self._append(line, is_synced=True)
        except OSError as error:
            self._drop()
            raise ServerBusy(
                f"The audit log cannot be written ({error.strerror}), so nothing is changed. Make room on its disk."
            ) from error

    def end(self, change: Change, now_ms: int, outcome: str, changes: Mapping[str, Any] | None = None) -> None:
        """See AuditTrail; a line that cannot be written leaves the change with an unknown outcome."""
        line: dict[str, Any] = {"ended": change.number, "pid": os.getpid(), "outcome": outcome[:VALUE_LENGTH_MAX]}
        line |= {"until": _text(now_ms)} | ({"changes": dict(changes)} if changes else {})
        try:
            self._append(line, is_synced=False)
        except OSError:
            self._drop()

    def close(self) -> None:
        """See AuditTrail."""
        self._drop()

    def _append(self, line: Mapping[str, Any], *, is_synced: bool) -> None:
        file = self._file
        if file is None or (is_synced and file.tell() >= self._file_bytes_max):
            file = self._next()
        file.write(msgspec.json.encode(line) + b"\n")
        file.flush()
        if is_synced:
            sync_file(file.fileno())

    def _next(self) -> BinaryIO:
        """Open the file to write to: the last one, or the one after it when that is full."""
        self._drop()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = files_of(self._folder)
        number = files[-1][0] if files else 1
        if files and files[-1][1].stat().st_size >= self._file_bytes_max:
            number += 1
            for _, path in files[: max(0, len(files) + 1 - self._files_max)]:
                path.unlink()
        path = self._folder / f"audit-{number:08d}.jsonl"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        self._file = file = os.fdopen(descriptor, "ab")
        # The name, too, is to be there after a power cut.
        sync_folder(self._folder)
        size = file.tell()
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            # A line torn by a crash must not swallow the next one.
            file.write(b"\n")
        return file

    def _drop(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def path_of_rule(entity: str | None, name: str) -> str:
    """The path of an access rule: below its entity, so that it is found with that; of a namespace alone."""
    return f"{entity}/AuthorizationRules/{name}" if entity else f"AuthorizationRules/{name}"


def files_of(folder: Path) -> list[tuple[int, Path]]:
    """The files of an audit log in order."""
    if not folder.is_dir():
        return []
    found = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


def read_audit(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield all changes in order, each with its outcome; lines that are torn or altered are left out."""
    waiting: dict[tuple[int, int], dict[str, Any]] = {}
    order: list[tuple[int, int]] = []
    for _, path in files_of(folder):
        with path.open("rb") as file:
            for text in file:
                line = parse_line(text)
                if line is None:
                    continue
                if "ended" in line:
                    record = waiting.get((line["pid"], line["ended"]))
                    if record is not None:
                        record["outcome"] = line["outcome"]
                        record |= {name: line[name] for name in ("until", "changes") if name in line}
                    continue
                key = (line.pop("pid"), line.pop("id"))
                if key in waiting:
                    # Another server that had the same process id.
                    yield waiting.pop(key)
                    order.remove(key)
                waiting[key] = line | {"outcome": UNKNOWN}
                order.append(key)
                if len(order) > _OPEN_MAX:
                    yield waiting.pop(order.pop(0))
    for key in order:
        yield waiting[key]


#: Changes after which the end of an earlier one is looked for no more.
_OPEN_MAX: Final = 1_000


def parse_line(text: bytes) -> dict[str, Any] | None:
    """Return what a line says; None for one that is torn or altered."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    is_whole = isinstance(line, dict) and isinstance(line.get("pid"), int)
    is_whole = is_whole and (isinstance(line.get("id"), int) or ("ended" in line and "outcome" in line))
    return line if is_whole else None


def masked(description: msgspec.Struct | None) -> dict[str, Any]:
    """The properties of a description, without times of change, and keys masked; empty for none."""
    if description is None:
        return {}
    found: dict[str, Any] = msgspec.to_builtins(description)
    for rule in found.get("authorization_rules", ()):
        for name in _SECRETS:
            rule[name] = "***"
    return {name: value for name, value in found.items() if name not in _TIMES}


def differences(
    before: msgspec.Struct | None, after: msgspec.Struct | None, *, keys_count: bool = True
) -> dict[str, Any]:
    """Property to [before, after] of those that differ; of a creation those that were given a value.

    A key that was changed shows as a property whose two values are the same mask.
    """
    old, new = masked(before), masked(after)
    found = {
        name: [_short(old.get(name)), _short(new.get(name))]
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    }
    if keys_count and before is not None and after is not None and "authorization_rules" not in found:
        rules = [getattr(one, "authorization_rules", None) for one in (before, after)]
        if rules[0] != rules[1]:
            found["authorization_rules"] = [_short(old["authorization_rules"]), _short(new["authorization_rules"])]
    return found


def _short(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value)
    return value if len(text) <= VALUE_LENGTH_MAX else text[:VALUE_LENGTH_MAX] + "..."


def _text(now_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=now_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
