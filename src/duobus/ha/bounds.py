"""Bounds of what an application may ask for; of asyncio and of threads alike."""

from __future__ import annotations

from typing import Final

#: Sends of an ``OverlappedSender`` on their way at the same time.
OVERLAP_DEFAULT: Final = 10
OVERLAP_MAX: Final = 1_000
#: Failed sends that nobody has looked at; at this number the next send raises them.
FAILURES_MAX: Final = 1_000
#: Messages of one call of an ``OutboxSender``; all of them are one commit.
LIST_MAX: Final = 10_000
#: Sets of scopes whose tokens a ``LastingCredential`` keeps.
SCOPES_MAX: Final = 16
