"""Which dead letters a person means: an address of the console says so, and a run does as the address says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Self

from duobus.console.screens.dead_letters.groups import MARK, cause_of

#: Sequence numbers of one selection; as many as one order of the dead-letter service takes.
NUMBERS_MAX: Final = 500
_SUBSCRIPTIONS: Final = re.compile(r"/Subscriptions/", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[0-9]{1,19}")
#: Longest part of a cause that becomes part of a filter; the rest is compared here.
_LIKE_MAX: Final = 100


class Selection(NamedTuple):
    """Dead letters of one entity.

    Attributes:
        path: A queue, or ``topic/Subscriptions/subscription``.
        is_transfer: Its transfer dead letters are meant.
        sql: SQL filter; empty for none.
        json: Condition on the JSON body; empty for none.
        reason: Dead-letter reason of a group; empty for messages without one, None where no group is meant.
        cause: Cause of the group; see ``groups.cause_of``.
        numbers: The only sequence numbers that are meant; empty for any.
    """

    path: str
    is_transfer: bool = False
    sql: str = ""
    json: str = ""
    reason: str | None = None
    cause: str = ""
    numbers: tuple[int, ...] = ()

    @classmethod
    def read(cls, path: str, fields: Mapping[str, str], numbers: Iterable[str] = ()) -> Self:
        """The selection that the parameters of an address or the fields of a form describe."""
        found = sorted({int(number) for number in numbers if _NUMBER.fullmatch(number)})
        return cls(
            path,
            fields.get("transfer", "") in {"1", "true"},
            fields.get("sql", "").strip(),
            fields.get("json", "").strip(),
            fields.get("reason"),
            fields.get("cause", ""),
            tuple(found[:NUMBERS_MAX]),
        )

    @property
    def entity(self) -> str:
        """The queue or topic."""
        return _SUBSCRIPTIONS.split(self.path, maxsplit=1)[0]

    @property
    def subscription(self) -> str | None:
        """The subscription, or None for a queue."""
        parts = _SUBSCRIPTIONS.split(self.path, maxsplit=1)
        return parts[1] if len(parts) > 1 else None

    @property
    def is_whole(self) -> bool:
        """Whether every dead letter of the entity is meant."""
        return not (self.sql or self.json or self.numbers) and self.reason is None

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The selection as fields of a form or parameters of an address, without the path."""
        found: list[tuple[str, str]] = []
        if self.is_transfer:
            found.append(("transfer", "1"))
        found += [(name, value) for name, value in (("sql", self.sql), ("json", self.json)) if value]
        if self.reason is not None:
            found += [("reason", self.reason), ("cause", self.cause)]
        return found + [("number", str(number)) for number in self.numbers]

    @property
    def filter(self) -> str | None:
        """An SQL filter that takes all that are meant, and perhaps some more; ``takes`` decides."""
        parts = [f"({self.sql})"] if self.sql else []
        if self.reason is not None and not self.numbers:
            parts.append(f"DeadLetterReason = {_quoted(self.reason)}" if self.reason else "DeadLetterReason IS NULL")
            known = self.cause.partition(MARK)[0][:_LIKE_MAX].strip()
            if known:
                pattern = re.sub(r"([%_\\])", r"\\\1", known)
                parts.append(f"DeadLetterErrorDescription LIKE {_quoted(f'%{pattern}%')} ESCAPE '\\'")
        return " AND ".join(parts) or None

    def takes(self, record: Mapping[str, Any]) -> bool:
        """Whether a message, which the filter has let through, is meant."""
        if self.reason is None:
            return True
        return (record["reason"] or "") == self.reason and cause_of(record["description"]) == self.cause

    def data(self) -> dict[str, Any]:
        """The selection for a page and for a file."""
        return {
            "path": self.path,
            "transfer": self.is_transfer,
            "sql": self.sql,
            "json": self.json,
            "reason": self.reason,
            "cause": self.cause,
            "numbers": list(self.numbers),
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        """The selection of a file."""
        return cls(
            data["path"],
            data["transfer"],
            data["sql"],
            data["json"],
            data["reason"],
            data["cause"],
            tuple(data["numbers"]),
        )


def number_of(text: str | None) -> int:
    """A sequence number as a form brings it; 0 for anything else."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else 0


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
