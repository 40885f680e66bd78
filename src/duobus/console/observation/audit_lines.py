"""The audit log of a namespace: choosing lines, and writing down what a person did with the console."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from duobus.console.formats import as_datetime
from duobus.console.namespace.failures import NamespaceError

if TYPE_CHECKING:
    from duobus.console.visits import Visit

#: Characters that a line takes of a path and of a note.
_PATH_MAX: Final = 512
_NOTE_MAX: Final = 1_024
#: What a namespace answers that keeps no audit log, or does not let consoles write there.
_NO_LOG: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})

_log = logging.getLogger("duobus.console")


class Wanted(NamedTuple):
    """Which lines of the audit log a person looks for; empty texts and None are for all.

    Attributes:
        who: Part of the name of an access rule or identity, or of a network address.
        operation: As ``create``.
        path: An entity; what is below it counts, too.
        since, until: The time of the line.
        failed: Whether only changes count that were refused, or whose outcome is unknown.
    """

    who: str = ""
    operation: str = ""
    path: str = ""
    since: datetime | None = None
    until: datetime | None = None
    failed: bool = False

    def takes(self, line: Mapping[str, Any]) -> bool:
        """Whether a line is one of those."""
        if self.who and self.who.lower() not in f"{line.get('who', '')}\n{line.get('from', '')}".lower():
            return False
        if self.operation and line.get("operation") != self.operation:
            return False
        path, wanted = str(line.get("path", "")).lower(), self.path.lower().strip("/")
        if wanted and path != wanted and not path.startswith(f"{wanted}/"):
            return False
        if self.failed and line.get("outcome") == "done":
            return False
        at = as_datetime(line.get("at"))
        if at is None:
            return self.since is None and self.until is None
        return (self.since is None or at >= self.since) and (self.until is None or at < self.until)

    def is_before(self, line: Mapping[str, Any]) -> bool:
        """Whether a line, and so every one that is older, is of a time before the one that is looked for."""
        at = as_datetime(line.get("at"))
        return self.since is not None and at is not None and at < self.since


def wanted_of(query: Mapping[str, str]) -> Wanted:
    """What the fields of a form ask for; a time that is none counts as no time."""
    return Wanted(
        who=query.get("who", "").strip(),
        operation=query.get("operation", "").strip(),
        path=query.get("path", "").strip(),
        since=as_datetime(query.get("since", "").strip()),
        until=as_datetime(query.get("until", "").strip()),
        failed=query.get("failed") == "true",
    )


async def write_line(visit: Visit, operation: str, kind: str, path: str, note: str = "") -> None:
    """Write into the audit log of the namespace what the person has just done.

    A namespace without such a log has none of it. Where the log cannot be written, the person is told: what was done is
    done.
    """
    if not visit.namespace.is_duobus:
        return
    line = {"operation": operation, "kind": kind, "path": path[:_PATH_MAX], "note": note[:_NOTE_MAX] or None}
    try:
        await visit.namespace.operation("POST", "/$duobus/audit", body=line)
    except NamespaceError as error:
        if error.status not in _NO_LOG:
            _log.warning("The audit log of %s was not written: %s", visit.namespace.name, error.text)
            visit.session.add_notice(f"The audit log was not written: {error.text}", "warning")
