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
        entity: Path of the entity of the primary, or of the backlog queue, that it is about; empty for the pair itself.
    """

    #: It happens while all is well, and is for counting rather than for reading.
    is_routine: ClassVar[bool] = False

    entity: str


@dataclass(frozen=True, slots=True)
class SendFailed(Event):
    """A send to the primary failed for a reason that counts as an outage; the failover interval began.

    Attributes:
        fragment: What of the entity is away, if the error says so: ``13/16`` are the keys of fragment 13 of 16. All
            that is told of these keys has it; it is empty for the entity as a whole.
    """

    error: str
    fragment: str = ""


@dataclass(frozen=True, slots=True)
class FailoverEngaged(Event):
    """Sends to the entity go to backlog queues from now on.

    Attributes:
        after_ms: Time since the failure that began it, or since the primary was first busy.
        fragment: As of ``SendFailed``.
    """

    after_ms: int
    fragment: str = ""


@dataclass(frozen=True, slots=True)
class PrimaryHealthy(Event):
    """The primary takes messages of the entity again.

    Attributes:
        reason: ``send``, ``ping`` or ``marked healthy``.
        after_ms: Time in suspicion or failover.
        was_diverted: Failover was engaged.
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
    """A backlog queue did not take a message, and left the rotation of all senders."""

    error: str


@dataclass(frozen=True, slots=True)
class BacklogRestored(Event):
    """A backlog queue that had failed is in the rotation again, to be tried."""


@dataclass(frozen=True, slots=True)
class BacklogCreateFailed(Event):
    """A backlog queue could not be looked for or made, and will be tried again.

    Attributes:
        tries_left: How often.
    """

    error: str
    tries_left: int


@dataclass(frozen=True, slots=True)
class BacklogDepth(Event):
    """The number of messages in a backlog queue; reported every ``depth_interval``.

    Attributes:
        waiting: Messages that wait for the syphon.
        dead: Messages in its dead letters.
    """

    is_routine = True

    waiting: int
    dead: int


@dataclass(frozen=True, slots=True)
class BacklogMissing(Event):
    """A backlog queue is not there and could not be made; the pair does without it."""

    error: str


@dataclass(frozen=True, slots=True)
class BacklogLockShort(Event):
    """The lock of a backlog queue is shorter than a minute: what a syphon holds longer is delivered twice.

    Attributes:
        lock_ms: How long it is.
    """

    lock_ms: int


@dataclass(frozen=True, slots=True)
class PingSent(Event):
    """A ping of an entity; ``error`` is empty when the primary took it."""

    error: str
    fragment: str = ""


@dataclass(frozen=True, slots=True)
class SyphonStarted(Event):
    """A syphon began to carry what is in backlog queues.

    Attributes:
        primary: Host name of the namespace that it delivers to.
        secondary: Host name of the one with the backlog queues.
        queues: How many of these.
    """

    is_routine = True

    primary: str
    secondary: str
    queues: int


@dataclass(frozen=True, slots=True)
class SyphonStopped(Event):
    """A syphon ended; another one has to run, or what is in the backlog stays there."""

    is_routine = True

    primary: str


@dataclass(frozen=True, slots=True)
class SyphonPolled(Event):
    """A receive of the syphon ended, with or without messages; each is an operation.

    Attributes:
        messages: That it brought.
    """

    is_routine = True

    messages: int


@dataclass(frozen=True, slots=True)
class Syphoned(Event):
    """Messages went from a backlog queue to the entity they were meant for.

    Attributes:
        lag_ms: Age in the backlog of the oldest of them.
    """

    backlog: str
    messages: int
    lag_ms: int


@dataclass(frozen=True, slots=True)
class SyphonSkipped(Event):
    """A destination takes nothing now; its messages stay in the backlog queue and are tried again later.

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
    """A backlog message that its destination can never take went to the backlog queue's dead letters."""

    backlog: str
    reason: str
    description: str


@dataclass(frozen=True, slots=True)
class SyphonFailed(Event):
    """Receiving from a backlog queue failed; it is tried again."""

    error: str


@dataclass(frozen=True, slots=True)
class Faulted(Event):
    """One client of the pair was closed and the other was not, within five seconds: the other is closed, too."""

    closed_first: str


@dataclass(frozen=True, slots=True)
class ReplicaFailed(Event):
    """One of two namespaces did not take a copy, or gave no messages; the other one did what was asked.

    Attributes:
        namespace: Host name of the one that failed.
    """

    namespace: str
    error: str


@dataclass(frozen=True, slots=True)
class RolesSwapped(Event):
    """The backup took a message that the active namespace did not, and is the active one from now on.

    Attributes:
        active: Host name of the namespace that is active now.
    """

    active: str
    error: str


class Reporter:
    """Counts events and hands them on. An observer that raises is logged, and harms nobody, whatever it raises.

    ``KeyboardInterrupt`` alone passes: it is the user's, and came while the observer ran.

    Args:
        *observers: Called with each event in turn; those that are None are left out.
    """

    def __init__(self, *observers: Callable[[Event], None] | None) -> None:
        self._observers = [observer for observer in observers if observer is not None]
        self.counts: Counter[str] = Counter()
        #: Threads tell, too.
        self._lock = threading.Lock()

    def tell(self, event: Event) -> None:
        """Take note of an event."""
        with self._lock:
            self.counts[type(event).__name__] += getattr(event, "messages", 1)
        for observer in self._observers:
            try:
                observer(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001 - the application's own code; sys.exit() would end one task unseen
                _log.exception("on_event raised for %r", event)


# What an outbox tells its operator; ``entity`` is the one that it sends to.


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
    """The file cannot be used; nothing is sent until the program opens it again."""

    error: str


# What a receiver tells that keeps locks, or recognises what it has done.


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
