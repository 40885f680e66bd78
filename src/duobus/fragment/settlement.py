"""Settlement inside a fragment: complete, abandon, defer and dead-letter, and what an abandoned message waits.

Apply writes the records and takes the messages out of everyone's reach; release puts them where they belong.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from duobus.codec.decoder import decode as decode_value
from duobus.codec.encoder import encode
from duobus.errors import ArgumentInvalid, ArgumentOutOfRange, MessageLockLost, NotAllowed, ServiceBusError
from duobus.fragment.commands import Command
from duobus.fragment.message import (
    ACTIVE,
    DEAD_LETTER,
    DEFERRED,
    MAIN,
    RESERVED,
    QueuedMessage,
    state_of,
    stored_state,
    sub_queue_of,
)
from duobus.fragment.sessions import sessions
from duobus.fragment.sessions.sessions import id_of, session_lock_lost
from duobus.model.batches import Mailbox
from duobus.model.metadata import encoded, own
from duobus.model.properties import REDELIVERY_DELAY_MS_MAX
from duobus.storage.interface import CommitBatch

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.sessions.session import Session, SessionLock
    from duobus.fragment.sessions.sessions import Sessions
    from duobus.fragment.source import Source, SourceSettings

COMPLETE: Final = 0
ABANDON: Final = 1
DEFER: Final = 2
DEAD_LETTER_OUTCOME: Final = 3

#: Longer texts are cut.
DEAD_LETTER_TEXT_MAX: Final = 4096

_COUNT: Final = attrgetter("count")
_PAYLOAD: Final = attrgetter("payload")
_STATE: Final = attrgetter("state")

MAX_DELIVERY_COUNT_EXCEEDED: Final = "MaxDeliveryCountExceeded"
TTL_EXPIRED: Final = "TTLExpiredException"
TTL_TEXT: Final = "The message expired and was dead lettered."

#: Property of an abandon that says for how many ms the message is not to come back.
DELAY_PROPERTY = "duobus:redelivery-delay"

_AVAILABLE: Final = state_of(MAIN, ACTIVE)


def lock_lost() -> MessageLockLost:
    """The error of a settlement or renewal whose lock is gone."""
    return MessageLockLost(
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the "
        "queue. Receive the message again."
    )


class SettleBatch(Command):
    """Settle locked messages: complete, abandon, defer or dead-letter.

    Attributes:
        prefix: First 8 bytes of the lock tokens; another epoch's prefix means that the locks are lost.
        outcome: COMPLETE, ABANDON, DEFER or DEAD_LETTER_OUTCOME.
        ranges: (first lock counter, number of locks) of each range.
        detail: SettleDetail, or None.
        answer_to: The caller's own note of whom to answer; one entry per range.
        strict: A lost lock refuses the whole command (members of a group, ``update-disposition``).
        holder: The lock of the session whose holder asks, for strict ones; None for none.
        is_claimed: Messages and lost locks were found when it was submitted.
        lost: After apply: lock counters that were no longer held.
        size: After apply of a completion: bytes of its messages.
        expected: Sessions that wait for what an abandon brings back, one entry per message.
    """

    __slots__ = (
        "answer_to",
        "detail",
        "expected",
        "holder",
        "is_claimed",
        "lost",
        "messages",
        "outcome",
        "prefix",
        "ranges",
        "size",
        "strict",
    )

    def __init__(
        self,
        handle: Any,
        source_no: int,
        reply: Mailbox | None,
        *,
        prefix: bytes,
        outcome: int,
        ranges: list[tuple[int, int]],
    ) -> None:
        super().__init__(handle, source_no, reply)
        self.prefix = prefix
        self.outcome = outcome
        self.ranges = ranges
        self.detail: SettleDetail | None = None
        self.answer_to: list[Any] = []
        self.strict = False
        self.holder: SessionLock | None = None
        self.is_claimed = False
        self.lost: list[int] = []
        self.expected: list[Session] = []
        self.messages: list[QueuedMessage] = []
        self.size = 0

    def claim(self, fragment: Fragment) -> None:
        """Take what a holder settles out of its locks, when the settlement is submitted rather than when it is applied.

        A client settles, then closes its link: the session is free at once, and what was settled must not go with it.
        Nor may anything newer of a session go out while an abandoned message is on its way back (I19).
        """
        source = fragment.sources[self.source_no]
        held = source.locks
        if source.sessions is None or self.prefix != fragment.prefix or self.strict:
            return
        messages: list[QueuedMessage] = []
        lost: list[int] = []
        try:
            for first, number in self.ranges:
                messages += map(held.__getitem__, range(first, first + number))
        except KeyError:
            locks = [lock for first, number in self.ranges for lock in range(first, first + number)]
            messages = [held[lock] for lock in locks if lock in held]
            lost = [lock for lock in locks if lock not in held]
        if any(map(_STATE, messages)) and any(sub_queue_of(message.state) != MAIN for message in messages):
            # Dead letters know no sessions.
            return
        self.is_claimed = True
        self.messages, self.lost = messages, lost
        for message in messages:
            del held[message.lock]
        if self.outcome == ABANDON:
            self._expect(source.sessions, messages)

    def _expect(self, sessions: Sessions, messages: list[QueuedMessage]) -> None:
        """Hold up the sessions of messages that an abandon will bring back."""
        for message in messages:
            session = sessions.by_id.get(id_of(message)) if message.state == ACTIVE else None
            if session is not None:
                session.returning += 1
                self.expected.append(session)

    def may_wait(self) -> bool:
        """A completion; other outcomes bring the message to somebody who may wait for it."""
        return self.outcome == COMPLETE

    def check(self, fragment: Fragment, source: Source, now_ms: int) -> ServiceBusError | None:
        """Refuse settlements that cannot be done at all; single lost locks of an ordinary one are reported apart."""
        if self.prefix != fragment.prefix:
            # A token of an earlier life of the fragment, or a forged one (I3).
            return lock_lost()
        if self.strict:
            error = self._session_fault(source) if source.sessions is not None else None
            if error is not None:
                return error
            for first, number in self.ranges:
                if not all(lock in source.locks for lock in range(first, first + number)):
                    return lock_lost()
        if self.outcome == ABANDON:
            return _delay_fault(source.settings, self.detail)
        return self._dead_letter_fault(source) if self.outcome == DEAD_LETTER_OUTCOME else None

    def _session_fault(self, source: Source) -> ServiceBusError | None:
        """Why a settlement by token cannot be done: messages of a session are its holder's to settle."""
        held = set() if self.holder is None else set(self.holder.held)
        for first, number in self.ranges:
            for lock in range(first, first + number):
                message = source.locks.get(lock)
                if message is None or sub_queue_of(message.state) != MAIN:
                    continue
                if lock not in held:
                    return session_lock_lost(id_of(message))
        return None

    def _dead_letter_fault(self, source: Source) -> ServiceBusError | None:
        for first, number in self.ranges:
            for lock in range(first, first + number):
                message = source.locks.get(lock)
                if message is not None and sub_queue_of(message.state) != MAIN:
                    return NotAllowed("A dead letter cannot be dead-lettered again. Complete it instead.")
        return None

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Take the messages out of their locks and write down what becomes of them."""
        messages = self.messages
        if not self.is_claimed:
            self._find_locked(source)
        if source.renewed:
            for message in messages:
                source.renewed.pop(message.lock, None)
        if self.outcome == COMPLETE:
            self.size = _uncount_all(source, messages)
            if source.sessions is not None:
                # They came session by session; in order of count they are ranges again.
                messages.sort(key=_COUNT)
            source.write_removals(messages, commit)
            return
        for message in messages:
            message.lock = RESERVED
            self._apply_other(fragment, source, message, now_ms, commit)

    def _find_locked(self, source: Source) -> None:
        pop = source.locks.pop
        messages = self.messages
        lost = self.lost
        for first, number in self.ranges:
            for lock in range(first, first + number):
                message = pop(lock, None)
                if message is None:
                    lost.append(lock)
                else:
                    messages.append(message)
        if source.sessions is not None and self.outcome == ABANDON:
            self._expect(source.sessions, messages)

    def _apply_other(
        self, fragment: Fragment, source: Source, message: QueuedMessage, now_ms: int, commit: CommitBatch
    ) -> None:
        detail = self.detail
        if detail is not None and detail.properties:
            is_abandon = self.outcome == ABANDON
            properties = _without_delay(source.settings, detail.properties) if is_abandon else detail.properties
            overlay(message, properties)
        if self.outcome == ABANDON:
            if sub_queue_of(message.state) == MAIN:
                # In a dead-letter queue the count stays what it was (docs/reference/errata.md).
                message.deliveries += 1
            if fragment.is_exhausted(source, message):
                dead_letter(source, message, MAX_DELIVERY_COUNT_EXCEEDED, exhausted_text(source))
            elif fragment.is_expired(source, message, now_ms) and source.settings.dead_letter_on_expiration:
                dead_letter(source, message, TTL_EXPIRED, TTL_TEXT)
            else:
                put_off(source, message, detail, now_ms)
        elif self.outcome == DEFER:
            source.counted(message.state, -1)
            message.state = state_of(sub_queue_of(message.state), DEFERRED)
            source.counted(message.state, 1)
            # It expires only when it is asked for: see ``Fragment.find_fault``.
            message.expires_ms = 0
            if message.metadata is not None and message.metadata.claim is not None:
                # Whoever defers it by its lock has it from now on.
                message.metadata = own(message.metadata)
                message.metadata.claim = None
            if message.count < source.inherited:
                message.metadata = own(message.metadata)
                message.metadata.deferred_in = fragment.epoch & 0xFFFFFFFF
        else:
            assert self.outcome == DEAD_LETTER_OUTCOME
            detail = detail or SettleDetail(None, None, None)
            dead_letter(source, message, detail.reason, detail.description)
        change(source, message, commit, deliveries=message.deliveries)

    def release(self, fragment: Fragment, source: Source, now_ms: int) -> None:
        """Removals are final, the rest is available in its new place."""
        if self.outcome == COMPLETE:
            # ``Source.forget`` for all of them.
            by_count = source.by_count
            for count in map(_COUNT, self.messages):
                del by_count[count]
            for message in self.messages if source.expiring else ():
                message.expires_ms = 0
            source.memory_bytes -= self.size
        else:
            for message in self.messages:
                message.lock = 0
                fragment.place(source, message, in_order=False)
            if self.expected:
                expected, self.expected = self.expected, []
                sessions.returned(fragment, source, expected)
        self.messages = []


class SettleDetail:
    """What an abandon, defer or dead-letter says about its messages.

    Attributes:
        properties: Application properties to set; None for none.
        reason: DeadLetterReason; None when the application gave none.
        description: DeadLetterErrorDescription; None when the application gave none.
    """

    __slots__ = ("description", "properties", "reason")

    def __init__(self, properties: dict[str, Any] | None, reason: str | None, description: str | None) -> None:
        self.properties = properties
        self.reason = reason
        self.description = description


def _uncount_all(source: Source, messages: list[QueuedMessage]) -> int:
    """``Source.uncount`` for the hot end of every message's life; returns the bytes of all."""
    numbers = source.numbers
    for state in filter(None, map(_STATE, messages)):
        source.counted(state, -1)
        numbers[MAIN] += 1
    numbers[MAIN] -= len(messages)
    size = sum(map(len, map(_PAYLOAD, messages)))
    source.bytes -= size
    return size


def dead_letter(source: Source, message: QueuedMessage, reason: str | None, description: str | None) -> None:
    """Turn a message into a dead letter: one record, atomic by nature (I23)."""
    source.counted(message.state, -1)
    message.state = state_of(DEAD_LETTER, ACTIVE)
    source.counted(message.state, 1)
    message.expires_ms = 0
    metadata = message.metadata = own(message.metadata)
    metadata.claim = None
    metadata.reason = reason[:DEAD_LETTER_TEXT_MAX] if reason is not None else None
    metadata.description = description[:DEAD_LETTER_TEXT_MAX] if description is not None else None


def overlay(message: QueuedMessage, properties: dict[str, Any]) -> None:
    """Lay application properties over the message's own; the bytes that came stay as they are."""
    metadata = message.metadata = own(message.metadata)
    merged: dict[str, Any] = {}
    if metadata.overlay is not None:
        merged.update(decode_value(metadata.overlay)[0])
    merged.update(properties)
    metadata.overlay = encode(merged)


def change(source: Source, message: QueuedMessage, commit: CommitBatch, *, deliveries: int) -> None:
    """Write a message's new state into a commit, its delivery count included."""
    write(source, message, commit, deliveries=deliveries)
    source.touched.pop(message.count, None)


def write(source: Source, message: QueuedMessage, commit: CommitBatch, *, deliveries: int) -> None:
    """Write a message's row into a commit."""
    metadata = encoded(message.metadata) if message.metadata is not None else None
    state = stored_state(message.state, message.metadata)
    commit.changes.append((source.source_key, message.count, state, deliveries, metadata))


def exhausted_text(source: Source) -> str:
    """The description under which a message leaves that was delivered too often."""
    return (
        "Message could not be consumed after "
        f"{source.settings.max_delivery_count} delivery attempts (MaxDeliveryCount of the entity)."
    )


# What an abandoned message waits, by its entity's back-off policy or by the word of its receiver.
#
# Both are extensions, off by default. Only an abandon delays: there a receiver says "not now". A message whose lock
# ended or whose connection went is given to somebody else at once (I19, I20).
#
# The instant is kept in the record that an abandon writes anyway, so it costs nothing to let it survive a restart. If
# it were lost, everything that was put off would come back at once, when whatever it was put off for is weakest.


def back_off_ms(first_ms: int, longest_ms: int, deliveries: int) -> int:
    """The delay after so many deliveries: the first, doubled with each further one, up to the longest."""
    # Beyond 2**40 every delay is the longest; a count of millions must not make a number of a million digits.
    return min(longest_ms, first_ms << min(deliveries - 1, 40))


def _delay_fault(settings: SourceSettings, detail: SettleDetail | None) -> ServiceBusError | None:
    """Why the delay that an abandon asks for cannot be, or None."""
    if not settings.delayed_abandon or detail is None or not detail.properties:
        return None
    asked = detail.properties.get(DELAY_PROPERTY, 0)
    if not isinstance(asked, (int, float)) or isinstance(asked, bool):
        return ArgumentInvalid(f"'{DELAY_PROPERTY}' must be a number of ms.")
    if not 0 <= asked <= REDELIVERY_DELAY_MS_MAX:
        return ArgumentOutOfRange(f"'{DELAY_PROPERTY}' is {asked}; it must be from 0 to {REDELIVERY_DELAY_MS_MAX} ms.")
    return None


def _without_delay(settings: SourceSettings, properties: dict[str, Any]) -> dict[str, Any]:
    """The properties of an abandon that are meant for the message."""
    if settings.delayed_abandon and DELAY_PROPERTY in properties:
        return {key: value for key, value in properties.items() if key != DELAY_PROPERTY}
    return properties


def put_off(source: Source, message: QueuedMessage, detail: SettleDetail | None, now_ms: int) -> None:
    """Note on an abandoned message until when it stays away; its delivery is counted already."""
    settings = source.settings
    if message.state != _AVAILABLE or not (settings.redelivery_delay_ms or settings.delayed_abandon):
        return
    delay = 0
    if settings.redelivery_delay_ms:
        delay = back_off_ms(settings.redelivery_delay_ms, settings.redelivery_delay_maximum_ms, message.deliveries)
    if settings.delayed_abandon and detail is not None and detail.properties:
        # What the receiver says counts, also when it says "at once".
        delay = int(detail.properties.get(DELAY_PROPERTY, delay))
    if delay > 0:
        metadata = message.metadata = own(message.metadata)
        metadata.redeliver_at_ms = now_ms + delay
