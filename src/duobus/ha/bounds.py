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
#: Digits of a number of a backlog queue; a path with more is somebody else's.
BACKLOG_DIGITS_MAX: Final = 9
#: Pings of one entity that wait for the primary at the same time: those of an interval of a second, each of which takes
#: all of its time. One that hangs holds up none that come after it.
PINGS_WAITING_MAX: Final = 12
#: Messages for destinations that are away which a pump of a syphon gives back when it tries again. Those beyond it come
#: back by themselves, when their locks end.
SYPHON_HELD_MAX: Final = 1_000
#: Destinations whose links a pump keeps open.
SYPHON_SENDERS_MAX: Final = 100
#: Calls of the SDK that a program without asyncio gave up waiting for, and that have not come back.
LEFT_MAX: Final = 100
#: Sets of scopes whose tokens a ``LastingCredential`` keeps.
SCOPES_MAX: Final = 16
#: Groups of keys that a pair knows to be away. An entity has 16 fragments, of which one store has 4; each group is
#: pinged by itself. Sends of a group beyond them are raised to their callers.
AWAY_GROUPS_MAX: Final = 256
#: Keys that are kept because nothing but their refusal tells to which group they belong; the oldest is forgotten, and
#: refused once more.
AWAY_KEYS_MAX: Final = 10_000
