"""What an outbox tells its operator; ``entity`` is the one that it sends to."""

from __future__ import annotations

from dataclasses import dataclass

from duobus.ha.events import Event


@dataclass(frozen=True, slots=True)
class OutboxSent(Event):
    """Messages of the outbox were accepted.

    Attributes:
        messages: How many.
        left: Messages that wait still.
        left_bytes: Their bytes.
    """

    messages: int
    left: int
    left_bytes: int


@dataclass(frozen=True, slots=True)
class OutboxWaits(Event):
    """A send failed and is tried again after a pause; messages of other keys go on.

    Attributes:
        retry_ms: The pause.
        left: Messages that wait.
        left_bytes: Their bytes.
        meaning: What the error means: ``retry`` and ``wait`` pass by themselves, ``owner`` and ``missing`` when
            somebody mends what ``error`` says; ``unknown`` is an error that nobody foresaw.
    """

    error: str
    retry_ms: int
    left: int
    left_bytes: int
    meaning: str


@dataclass(frozen=True, slots=True)
class OutboxSetAside(Event):
    """A message that the namespace will not take, or that is damaged, was set aside. Look at ``Outbox.set_aside``."""

    number: int
    error: str


@dataclass(frozen=True, slots=True)
class OutboxOverflowed(Event):
    """Messages that could neither be sent nor diverted were stored in the outbox instead.

    Attributes:
        messages: How many.
    """

    messages: int
    error: str


@dataclass(frozen=True, slots=True)
class OutboxBroken(Event):
    """The file cannot be used; nothing is sent until the program opens it anew."""

    error: str
