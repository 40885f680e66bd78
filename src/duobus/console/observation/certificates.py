"""The server's certificate: whom the certificate is for, and how long the certificate is good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: From so many days before its end on, a certificate is worth a warning.
WARNED_DAYS: Final = 14
_DAY_MS: Final = 86_400_000


def certificate_of(told: Mapping[str, Any] | None, now_ms: int) -> dict[str, Any] | None:
    """What a page shows of a certificate; None where the server has none, or tells none.

    Args:
        told: ``certificate`` of what ``/$duobus/server`` tells.
        now_ms: The time by which the days are counted.
    """
    if not told:
        return None
    days = days_left(told, now_ms)
    return {
        "subject": told["subject"],
        "issuer": told["issuer"],
        "names": told["names"],
        "begin_ms": told["beginMs"],
        "end_ms": told["endMs"],
        "days": days,
        "is_over": days < 0,
        "ends_soon": days < WARNED_DAYS,
    }


def days_left(told: Mapping[str, Any], now_ms: int) -> int:
    """Whole days until the end of a certificate; negative after the end."""
    return int((told["endMs"] - now_ms) // _DAY_MS)
