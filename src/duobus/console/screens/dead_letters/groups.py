"""Dead letters put together by what they have died of.

A group has one reason and one cause. The cause is the first line of the description with everything taken out of the
line that differs from message to message: numbers, ids and times.
"""

from __future__ import annotations

import re
from typing import Any, Final

#: Groups that one look tells apart; what belongs to further ones is counted together.
GROUPS_MAX: Final = 500
#: Longest part of a first line that is looked at.
_LINE_MAX: Final = 400
#: What stands in a cause for a number, an id or a time.
MARK: Final = "#"

_WORD: Final = re.compile(r"[\w-]+")
_DIGIT: Final = re.compile(r"\d")
#: Marks with nothing but punctuation between were one thing: a time, an address, a decimal.
_MARKS: Final = re.compile(r"#(?:[.:,/+]?#)+")


def cause_of(description: str | None) -> str:
    """The cause that a description tells; empty when there is none."""
    for line in (description or "")[: 4 * _LINE_MAX].splitlines():
        line = line.strip()[:_LINE_MAX]
        if line:
            return _MARKS.sub(MARK, _WORD.sub(_without_ids, line))
    return ""


def _without_ids(word: re.Match[str]) -> str:
    return MARK if _DIGIT.search(word[0]) else word[0]


class CauseGroup:
    """Dead letters of one entity with one reason and one cause.

    Attributes:
        path: The queue or subscription.
        is_transfer: Whether they are transfer dead letters.
        reason: As the messages have it; None for messages without one.
        cause: See ``cause_of``.
        count: How many were found.
        oldest, newest: When the first and last were enqueued, as the namespace writes instants.
        sample: Sequence number of the first one.
        description: Of the first one, whole.
    """

    def __init__(self, path: str, is_transfer: bool, record: dict[str, Any]) -> None:
        self.path = path
        self.is_transfer = is_transfer
        self.reason: str | None = record["reason"]
        self.cause = cause_of(record["description"])
        self.count = 0
        self.oldest: str | None = None
        self.newest: str | None = None
        self.sample: int = record["sequenceNumber"]
        self.description: str = record["description"] or ""

    def add(self, record: dict[str, Any]) -> None:
        """Count a message."""
        self.count += 1
        when = record["enqueuedTime"]
        if when is not None:
            # The form of the instants is one, so that their order is that of their texts.
            self.oldest = when if self.oldest is None else min(self.oldest, when)
            self.newest = when if self.newest is None else max(self.newest, when)

    def data(self) -> dict[str, Any]:
        """The group for a page."""
        return {
            "path": self.path,
            "isTransfer": self.is_transfer,
            "reason": self.reason,
            "cause": self.cause,
            "count": self.count,
            "oldest": self.oldest,
            "newest": self.newest,
            "sample": self.sample,
            "description": self.description[:_LINE_MAX],
        }


class Groups:
    """Groups of what one look has found.

    Attributes:
        looked: How many messages were looked at.
        others: How many belong to groups beyond the bound.
        is_complete: Whether everything was looked at, but for fragments that are away.
        away: How many fragments were passed over, because their store is away.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[str, bool, str | None, str], CauseGroup] = {}
        self.looked = 0
        self.others = 0
        self.away = 0
        self.is_complete = True

    def add(self, path: str, is_transfer: bool, record: dict[str, Any]) -> None:
        """Count a message to its group."""
        self.looked += 1
        key = (path, is_transfer, record["reason"], cause_of(record["description"]))
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= GROUPS_MAX:
                self.others += 1
                return
            group = self._groups[key] = CauseGroup(path, is_transfer, record)
        group.add(record)

    def data(self) -> list[dict[str, Any]]:
        """The groups for a page, the largest first."""
        ordered = sorted(self._groups.values(), key=lambda group: (-group.count, group.path, group.reason or ""))
        return [group.data() for group in ordered]
