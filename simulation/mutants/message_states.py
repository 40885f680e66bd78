"""Planted bugs of the states of a message: scheduled, expired, dead, counted, peeked at (see ``queues``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from duobus.broker import Queue
from duobus.fragment import housekeeping, settlement
from duobus.fragment import peek as peek
from duobus.fragment.fragment import Fragment
from duobus.fragment.housekeeping import Housekeeping
from duobus.fragment.message import DEFERRED, QueuedMessage, kind_of
from duobus.fragment.sessions import sessions
from duobus.fragment.source import Source
from duobus.gateway.amqp.links.session_link import SessionLink

#: By how much a clock that is wrong runs ahead.
EARLY_MS = 700


@contextmanager
def scheduled_too_early() -> Iterator[None]:
    """What is scheduled is due when its time is near."""
    original = Fragment._wake_scheduled

    def wake(self: Fragment, source: Source, now_ms: int, keeping: Housekeeping) -> None:
        original(self, source, now_ms + EARLY_MS, keeping)

    with mock.patch.object(Fragment, "_wake_scheduled", wake):
        yield


@contextmanager
def expired_stays() -> Iterator[None]:
    """Only what comes back from a lock is looked at for its time to live, and not what waits."""
    with mock.patch.object(housekeeping, "expire"):
        yield


@contextmanager
def expired_the_other_way() -> Iterator[None]:
    """What has a time to live of its own is dead-lettered whatever the entity says."""
    original = Housekeeping.apply

    def apply(command: Housekeeping, fragment: Fragment, source: Source, *rest: Any) -> None:
        settings = source.settings
        own = any(message.metadata is not None and message.metadata.ttl_ms is not None for message in command.expired)
        before, settings.dead_letter_on_expiration = settings.dead_letter_on_expiration, own
        try:
            original(command, fragment, source, *rest)
        finally:
            settings.dead_letter_on_expiration = before

    with mock.patch.object(Housekeeping, "apply", apply):
        yield


@contextmanager
def dead_letter_expires() -> Iterator[None]:
    """A dead letter keeps the time to live that it had as a message."""
    original = settlement.dead_letter

    def dead_letter(source: Source, message: QueuedMessage, reason: str | None, description: str | None) -> None:
        expires_ms = message.expires_ms
        original(source, message, reason, description)
        message.expires_ms = expires_ms

    with mock.patch.object(settlement, "dead_letter", dead_letter):
        yield


@contextmanager
def reason_lost() -> Iterator[None]:
    """Why a message is dead is written after the record that makes it so."""
    original = settlement.dead_letter

    def dead_letter(source: Source, message: QueuedMessage, _reason: str | None, _description: str | None) -> None:
        original(source, message, None, None)

    with mock.patch.object(settlement, "dead_letter", dead_letter):
        yield


@contextmanager
def dead_letter_gone_with_its_record() -> Iterator[None]:
    """Dead-lettering removes the message from the queue in one record and adds it to the other in none."""
    original = settlement.change

    def change(source: Source, message: QueuedMessage, commit: Any, *, deliveries: int) -> None:
        if message.metadata is not None and message.metadata.reason == "poison":
            commit.removed.append((source.source_key, message.count, message.count))
            return
        original(source, message, commit, deliveries=deliveries)

    with mock.patch.object(settlement, "change", change):
        yield


@contextmanager
def peek_steps_too_far() -> Iterator[None]:
    """A peek that goes on begins behind the number it is given instead of with it."""
    original = Queue.peek

    async def peek(self: Queue, sub_queue: int, first_number: int, *rest: Any) -> Any:
        return await original(self, sub_queue, first_number + (first_number > 1), *rest)

    with mock.patch.object(Queue, "peek", peek):
        yield


@contextmanager
def peek_counts() -> Iterator[None]:
    """Whoever looks at a message raises its delivery count."""
    original = peek._copy

    def copy(message: QueuedMessage) -> QueuedMessage:
        found = original(message)
        message.deliveries += 1
        return found

    with mock.patch.object(peek, "_copy", copy):
        yield


@contextmanager
def peek_sees_one_fragment() -> Iterator[None]:
    """A peek ends with the first fragment that has anything."""
    original = Queue.peek

    async def peek(self: Queue, *asked: Any) -> Any:
        found = await original(self, *asked)
        return [pair for pair in found if pair[0] is found[0][0]]

    with mock.patch.object(Queue, "peek", peek):
        yield


@contextmanager
def expired_not_counted_back() -> Iterator[None]:
    """What expires counts as a message of its queue for ever."""
    original = Housekeeping.apply

    def apply(command: Housekeeping, fragment: Fragment, source: Source, *rest: Any) -> None:
        original(command, fragment, source, *rest)
        if not source.settings.dead_letter_on_expiration:
            for message in command.expired:
                source.counted(message.state, 1)

    with mock.patch.object(Housekeeping, "apply", apply):
        yield


@contextmanager
def deferred_not_counted_back() -> Iterator[None]:
    """What was deferred counts as such after it was taken, too."""
    original = Source.counted

    def counted(self: Source, state: int, by: int) -> None:
        if by > 0 or kind_of(state) != DEFERRED:
            original(self, state, by)

    with mock.patch.object(Source, "counted", counted):
        yield


@contextmanager
def former_holder_honoured() -> Iterator[None]:
    """A session is free when its time is up; its former holder's link and the locks of its messages stay."""
    original = sessions.end

    def end(fragment: Fragment, source: Source, lock: sessions.SessionLock, *rest: Any) -> None:
        held, lock.held = lock.held, []
        original(fragment, source, lock, *rest)
        lock.held = held

    with mock.patch.object(sessions, "end", end), mock.patch.object(SessionLink, "session_lost"):
        yield


STATE_BUGS: dict[str, Callable[[], Any]] = {
    "scheduled-too-early": scheduled_too_early,
    "expired-stays": expired_stays,
    "expired-the-other-way": expired_the_other_way,
    "dead-letter-expires": dead_letter_expires,
    "reason-lost": reason_lost,
    "dead-letter-without-record": dead_letter_gone_with_its_record,
    "peek-steps-too-far": peek_steps_too_far,
    "peek-counts": peek_counts,
    "peek-sees-one-fragment": peek_sees_one_fragment,
    "expired-not-counted-back": expired_not_counted_back,
    "deferred-not-counted-back": deferred_not_counted_back,
    "former-holder-honoured": former_holder_honoured,
}
