"""Findings of ``duobus doctor``: what was looked at, how it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

OK: Final = "ok"
#: Works, and will not go on so, or not as well as it could.
WARNING: Final = "warning"
#: Something does not work, or messages may be lost.
FAILURE: Final = "failure"

_ORDER: Final = (FAILURE, WARNING, OK)


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        subject: What it is, in a few words.
        status: One of the words above.
        found: What was found.
        remedy: What to do; empty when there is nothing to do.
    """

    subject: str
    status: str
    found: str
    remedy: str = ""


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return failures, then warnings, then the rest, each in the order in which they were found."""
    return sorted(findings, key=lambda finding: _ORDER.index(finding.status))


def exit_status(findings: Iterable[Finding], *, is_strict: bool) -> int:
    """Return 1 when something has failed, or with ``is_strict`` when there is a warning; else 0."""
    bad = (FAILURE, WARNING) if is_strict else (FAILURE,)
    return int(any(finding.status in bad for finding in findings))
