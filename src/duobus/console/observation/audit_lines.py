"""Lines of the audit log of a namespace, and choosing among them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from duobus.console.formats import as_datetime


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
