"""What a receiver tells that keeps locks, or recognises what it has done."""

from __future__ import annotations

from dataclasses import dataclass

from duobus.ha.events import Event


@dataclass(frozen=True, slots=True)
class LockLost(Event):
    """The lock of a message was lost while it was worked on: it comes again, here or elsewhere (TL13)."""

    message_id: str
    error: str


@dataclass(frozen=True, slots=True)
class Recognised(Event):
    """A message came whose work is done: it was completed, and not worked on again (TL12)."""

    message_id: str


@dataclass(frozen=True, slots=True)
class ResultDiscarded(Event):
    """The result of a message whose lock was lost was discarded; the work is tried again."""

    message_id: str


@dataclass(frozen=True, slots=True)
class WorkFailed(Event):
    """The work on a message raised; the message was given back and comes again."""

    message_id: str
    error: str


@dataclass(frozen=True, slots=True)
class NotCompleted(Event):
    """The work is done and noted, and its message could not be completed: it is recognised when it comes again."""

    message_id: str
    error: str
