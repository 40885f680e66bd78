"""The order of tests that several processes share."""

from __future__ import annotations

from typing import Final

#: A test that may take longer than the limit of pyproject.toml says so by a limit of its own, in seconds.
MINUTES_FROM_S: Final = 120.0


def place_of(limit_s: float) -> bool:
    """Where a test comes, by its limit: what may take minutes first, so that nothing long is left at the end.

    The rest stays in the order of the files: what a test leaves to the collector (the SDK's sockets of a killed server)
    is then found by its neighbours, which know of it.
    """
    return limit_s <= MINUTES_FROM_S
