"""The events that a pair reports to its operator, and counts of them."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

_log = logging.getLogger("duobus.ha")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a pair.

    Attributes:
        entity: Path of the entity of the primary or of the backlog queue; empty for an event of the pair itself.
    """

    #: Such an event happens while all is well; it is for counting rather than for reading.
    is_routine: ClassVar[bool] = False

    entity: str


@dataclass(frozen=True, slots=True)
class SendFailed(Event):
    """A send to the primary failed for a reason that counts as an outage; the failover interval began.

    Attributes:
        fragment: The part of the entity that is away, if the error names it: ``13/16`` stands for the keys of fragment
            13 of 16. All events about these keys have it. Empty for the entity as a whole.
    """

    error: str
    fragment: str = ""


@dataclass(frozen=True, slots=True)
class FailoverEngaged(Event):
    """Sends to the entity go to backlog queues from now on.

    Attributes:
        after_ms: Time since the failure that began the suspicion, or since the primary was first busy.
        fragment: As of ``SendFailed``.
    """

    after_ms: int
    fragment: str = ""


@dataclass(frozen=True, slots=True)
class PrimaryHealthy(Event):
    """The primary takes messages of the entity again.

    Attributes:
        reason: ``send``, ``ping`` or ``marked healthy``.
        after_ms: Time that the entity was suspect or failed over.
        was_diverted: Whether failover was engaged.
        fragment: As of ``SendFailed``.
    """

    reason: str
    after_ms: int
    was_diverted: bool
    fragment: str = ""


@dataclass(frozen=True, slots=True)
class Diverted(Event):
    """Messages went to a backlog queue."""

    backlog: str
    messages: int


@dataclass(frozen=True, slots=True)
class BacklogFailed(Event):
    """A backlog queue did not take a message; no sender uses this queue for the present."""

    error: str


@dataclass(frozen=True, slots=True)
class BacklogRestored(Event):
    """Senders may use a backlog queue again that had failed."""


@dataclass(frozen=True, slots=True)
class BacklogCreateFailed(Event):
    """A backlog queue could not be read or made; the pair will try again.

    Attributes:
        tries_left: Number of further attempts.
    """

    error: str
    tries_left: int


@dataclass(frozen=True, slots=True)
class BacklogDepth(Event):
    """The number of messages in a backlog queue; reported every ``depth_interval``.

    Attributes:
        waiting: Number of messages that wait for the syphon.
        dead: Number of messages in its dead-letter queue.
    """

    is_routine = True

    waiting: int
    dead: int


@dataclass(frozen=True, slots=True)
class BacklogMissing(Event):
    """A backlog queue does not exist and could not be made; the pair works without it."""

    error: str


@dataclass(frozen=True, slots=True)
class BacklogLockShort(Event):
    """The lock of a backlog queue is shorter than a minute: a message that a syphon holds longer is delivered twice.

    Attributes:
        lock_ms: Length of the lock.
    """

    lock_ms: int


@dataclass(frozen=True, slots=True)
class PingSent(Event):
    """A ping of an entity; ``error`` is empty when the primary took it."""

    error: str
    fragment: str = ""


@dataclass(frozen=True, slots=True)
class SyphonStarted(Event):
    """A syphon began to carry messages out of backlog queues.

    Attributes:
        primary: Host name of the namespace to which the syphon delivers.
        secondary: Host name of the namespace with the backlog queues.
        queues: Number of backlog queues.
    """

    is_routine = True

    primary: str
    secondary: str
    queues: int


@dataclass(frozen=True, slots=True)
class SyphonStopped(Event):
    """A syphon ended. Messages stay in the backlog queues until another syphon runs."""

    is_routine = True

    primary: str


@dataclass(frozen=True, slots=True)
class SyphonPolled(Event):
    """A receive of the syphon ended, with or without messages; each is an operation.

    Attributes:
        messages: Number of messages that the receive returned.
    """

    is_routine = True

    messages: int


@dataclass(frozen=True, slots=True)
class Syphoned(Event):
    """Messages went from a backlog queue to the entity for which they were meant.

    Attributes:
        lag_ms: Time that the oldest of these messages was in the backlog queue.
    """

    backlog: str
    messages: int
    lag_ms: int


@dataclass(frozen=True, slots=True)
class SyphonSkipped(Event):
    """A destination accepts no messages now; its messages stay in the backlog queue and are tried again later.

    Attributes:
        meaning: What the error means: ``retry`` and ``wait`` pass by themselves, ``owner`` and ``missing`` when
            somebody mends what ``error`` says; ``unknown`` is an error that nobody foresaw.
    """

    backlog: str
    messages: int
    error: str
    meaning: str


@dataclass(frozen=True, slots=True)
class SyphonDeadLettered(Event):
    """A message that its destination can never accept went to the dead-letter queue of its backlog queue."""

    backlog: str
    reason: str
    description: str


@dataclass(frozen=True, slots=True)
class SyphonFailed(Event):
    """Receiving from a backlog queue failed; the syphon tries again."""

    error: str


@dataclass(frozen=True, slots=True)
class Faulted(Event):
    """One client of the pair was closed and the other was not closed within five seconds: the pair closes the other."""

    closed_first: str


@dataclass(frozen=True, slots=True)
class ReplicaFailed(Event):
    """One of two namespaces did not accept a copy, or gave no messages; the other namespace did.

    Attributes:
        namespace: Host name of the namespace that failed.
    """

    namespace: str
    error: str


@dataclass(frozen=True, slots=True)
class RolesSwapped(Event):
    """The backup accepted a message that the active namespace did not, and is the active namespace from now on.

    Attributes:
        active: Host name of the namespace that is active now.
    """

    active: str
    error: str


class Reporter:
    """Counts events and hands them to observers. What an observer raises is logged and goes no further.

    Only ``KeyboardInterrupt`` is raised to the caller: it comes from the user, while the observer runs.

    Args:
        *observers: Called with each event, in this order; None is ignored.
    """

    def __init__(self, *observers: Callable[[Event], None] | None) -> None:
        self._observers = [observer for observer in observers if observer is not None]
        self.counts: Counter[str] = Counter()
        #: Threads report events, too.
        self._lock = threading.Lock()

    def tell(self, event: Event) -> None:
        """Count an event and hand it to the observers."""
        with self._lock:
            self.counts[type(event).__name__] += getattr(event, "messages", 1)
        for observer in self._observers:
            try:
                observer(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001 - the application's own code; sys.exit() would end one task unseen
                _log.exception("on_event raised for %r", event)


# Events of an outbox; ``entity`` is the entity to which the outbox sends.


@dataclass(frozen=True, slots=True)
class OutboxSent(Event):
    """Messages of the outbox were accepted.

    Attributes:
        messages: Number of accepted messages.
        left: Number of messages that still wait.
        left_bytes: Bytes of the messages that still wait.
    """

    messages: int
    left: int
    left_bytes: int


@dataclass(frozen=True, slots=True)
class OutboxWaits(Event):
    """A send failed and is tried again after a pause; messages with other keys are sent meanwhile.

    Attributes:
        retry_ms: The pause.
        left: Number of messages that wait.
        left_bytes: Bytes of the messages that wait.
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
    """A message that the namespace refuses, or that is damaged, was set aside; ``Outbox.set_aside`` lists it."""

    number: int
    error: str


@dataclass(frozen=True, slots=True)
class OutboxOverflowed(Event):
    """Messages that could neither be sent nor diverted were stored in the outbox instead.

    Attributes:
        messages: Number of these messages.
    """

    messages: int
    error: str


@dataclass(frozen=True, slots=True)
class OutboxBroken(Event):
    """The file of the outbox cannot be used; nothing is sent until the program opens the file again."""

    error: str


# Events of a receiver that keeps locks, or that recognises messages whose work is done.


@dataclass(frozen=True, slots=True)
class LockLost(Event):
    """The lock of a message was lost during the work on the message, which comes again, here or elsewhere (TL13)."""

    message_id: str
    error: str


@dataclass(frozen=True, slots=True)
class Recognised(Event):
    """A message came again whose work is done: the message was completed without working on it again (TL12)."""

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
    """The work is done and recorded, but its message was not completed: it is recognised when it comes again."""

    message_id: str
    error: str
