"""Fan-out: what the fragment of a topic does with a message: one copy for every subscription that takes it.

Source 0 is the topic itself: it counts the messages, knows their ids, and keeps those that are scheduled, or that are
sent via the topic to another entity. Every subscription is a source of its own. All copies of a message are decided
together and written in one commit (I24); its body is kept once (``storage/sqlite/shared_bodies.py``), and what a rule
changes lies beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final

from duobus.errors import NoMatchingSubscription, QuotaExceeded, ServiceBusError
from duobus.fragment import duplicate_detection as duplicates
from duobus.fragment.message import (
    ACTIVE,
    DEAD_LETTER,
    MAIN,
    SCHEDULED,
    TRANSFER,
    QueuedCopy,
    QueuedMessage,
    state_of,
    stored_state,
)
from duobus.fragment.settlement import DEAD_LETTER_TEXT_MAX
from duobus.fragment.source import check_room
from duobus.model.batches import CONTENT_TYPE, CONTENT_TYPE_FIELD, is_ping
from duobus.model.metadata import MessageMetadata
from duobus.rules import EFFORT_MAX, EFFORT_OF_A_MESSAGE, AlteredCopy, Match
from duobus.storage.interface import CommitBatch, Put

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.housekeeping import Housekeeping
    from duobus.fragment.send import Run
    from duobus.fragment.source import Source
    from duobus.fragment.topics.topic_state import TopicRules, TopicState

FILTER_FAILED: Final = "FilterEvaluationException"
SESSION_ID_IS_NULL: Final = "SessionIdIsNull"
SESSION_ELSEWHERE: Final = "SessionIdOfAnotherPartition"
_ELSEWHERE_TEXT: Final = (
    "An action gave the message a session id by which it was not placed. On a partitioned topic a session lives in one "
    "fragment, so the copy cannot join it. Let the action use the message's own session id or partition key."
)
EFFORT_TEXT: Final = (
    f"The rules of the topic would do more with the properties of this message, or batch, than they may at once "
    f"({EFFORT_MAX} comparisons of one character). Make long properties shorter, send fewer such messages in a batch, "
    "or have fewer rules look into them."
)
_SESSION_TEXT: Final = "The subscription requires sessions, and the message has no session id."
_DEAD: Final = state_of(DEAD_LETTER, ACTIVE)


class Copies:
    """New messages of one subscription with consecutive counts, all of them plain or not.

    Attributes:
        source: Of the subscription.
        put: What is written of them.
        size: Their payload bytes.
        messages: The messages; None when they are plain, since what stays in the store only never needs any.
    """

    __slots__ = ("messages", "put", "size", "source")

    def __init__(self, source: Source, put: Put, size: int, messages: list[QueuedMessage] | None = None) -> None:
        self.source = source
        self.put = put
        self.size = size
        self.messages = messages


class _SubscriptionCopies:
    """What one subscription gets of a run.

    Attributes:
        source: Of the subscription.
        payloads, origins: Of its copies, as ``Put`` has them.
        size: Payload bytes of them.
        with_metadata: Index of a copy to its state, its metadata, and that encoded, for those that are not ordinary.
    """

    __slots__ = ("origins", "payloads", "size", "source", "with_metadata")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.payloads: list[bytes] = []
        self.origins: list[int] = []
        self.size = 0
        self.with_metadata: dict[int, tuple[int, MessageMetadata, bytes]] = {}


class _CopyBuilder:
    """Collects the copies of several messages, to be written together."""

    __slots__ = ("_fragment", "_now_ms", "_parts", "_rules", "_state", "_trivial")

    def __init__(self, fragment: Fragment, state: TopicState, now_ms: int) -> None:
        self._fragment = fragment
        self._state = state
        self._now_ms = now_ms
        self._parts: dict[int, _SubscriptionCopies] = {}
        self._rules = state.shared.rules
        trivial = self._rules.trivial
        self._trivial = None if trivial is None else Match(trivial)

    def add(self, count: int, payload: bytes, metadata: MessageMetadata | None, match: Match | None = None) -> None:
        """Give every subscription that takes a message its copies; ``match``: what it gives, if that is known."""
        if metadata is None and match is None:
            self.add_plain(count, (payload,), len(payload))
            return
        match = match or self._trivial
        if match is None:
            number = self._fragment.number << 48 | count
            match = self._rules.match_payload(payload, metadata, self._now_ms, number)
        self._add_with_metadata(count, payload, metadata, match)

    def add_plain(self, first: int, payloads: Sequence[bytes], size: int) -> None:
        """Do the same for messages in a row that have no metadata; ``size`` is the bytes of all of them."""
        if self._trivial is not None:
            matches = [self._trivial] * len(payloads)
        else:
            matches = self._rules.match_run(payloads, self._now_ms, self._fragment.number << 48 | first)
        number = len(payloads)
        alike = matches[0] if payloads else None
        # All of them, as a rule, which one call can tell.
        if alike is not None and alike.errors is None and not alike.altered and matches.count(alike) == number:
            self._add_alike(first, payloads, alike.sources, size)
            return
        start = 0
        while start < number:
            match = matches[start]
            end = start + 1
            while end < number and matches[end] is match:
                end += 1
            if match.errors is not None or match.altered:
                for index in range(start, end):
                    self._add_with_metadata(first + index, payloads[index], None, match)
            elif (
                end > start + 1
                or len(match.sources) != 1
                or not self._add_one(first + start, payloads[start], match.sources[0])
            ):
                part = payloads[start:end]
                self._add_alike(first + start, part, match.sources, sum(map(len, part)))
            start = end

    def _add_one(self, count: int, payload: bytes, target: int) -> bool:
        """Give one subscription its copy, as filters that tell subscriptions apart have it; False: look closer."""
        part = self._parts.get(target) or self._part(target)
        if part is None or part.source.sessions is not None:
            return False
        size = len(payload)
        self._state.pending += size
        part.payloads.append(payload)
        part.origins.append(count)
        part.size += size
        return True

    def _add_alike(self, first: int, payloads: Sequence[bytes], targets: Sequence[int], size: int) -> None:
        """Give these subscriptions copies of messages in a row that are as they came."""
        if not targets:
            return
        self._state.pending += size
        end = first + len(payloads)
        origins = range(first, end) if len(targets) == 1 else range(-first, -end, -1)
        for target in targets:
            part = self._parts.get(target) or self._part(target)
            if part is None:
                continue
            if part.source.sessions is not None:
                for payload, origin in zip(payloads, origins, strict=True):
                    _dead_letter(part, payload, origin, None, SESSION_ID_IS_NULL, _SESSION_TEXT)
                continue
            part.payloads += payloads
            part.origins += origins
            part.size += size

    def _add_with_metadata(self, count: int, payload: bytes, metadata: MessageMetadata | None, match: Match) -> None:
        keeping = self._state.shared.keeping_errors
        failed = [number for number in match.errors or () if number in keeping]
        altered = [copy for copy in match.altered if not _is_made_ping(copy, payload)] if match.altered else ()
        copies = len(failed) + len(match.sources) + len(altered)
        if not copies:
            return
        self._state.pending += len(payload)
        origin = count if copies == 1 else -count
        encoded = None if metadata is None else metadata.encode()
        for number in match.sources:
            # No two copies share what may change later.
            own = None if encoded is None else MessageMetadata.decode(encoded)
            self._put(number, payload, origin, own, encoded)
        for copy in altered:
            changed = copy.overlay.metadata(metadata)
            own = MessageMetadata() if changed is None else MessageMetadata.decode(changed.encode())
            own.changes = copy.overlay.encode()
            part = self._part(copy.source)
            if part is not None and self._is_elsewhere(part, metadata, own):
                _dead_letter(part, payload, origin, own.encode(), SESSION_ELSEWHERE, _ELSEWHERE_TEXT)
                continue
            self._put(copy.source, payload, origin, own, own.encode())
        for number in failed:
            part = self._part(number)
            if part is not None:
                _dead_letter(part, payload, origin, encoded, FILTER_FAILED, (match.errors or {})[number])

    def _is_elsewhere(self, part: _SubscriptionCopies, sent: MessageMetadata | None, own: MessageMetadata) -> bool:
        """Whether an action has put a copy into a session that belongs to another fragment, for all we know (I4, I36).

        Whether it happens to be the same fragment is none of the rule's author's business: what holds for one message
        holds for all.
        """
        if part.source.sessions is None or not self._state.shared.is_partitioned or own.session_id is None:
            return False
        return sent is None or own.session_id not in (sent.session_id, sent.partition_key)

    def _part(self, number: int) -> _SubscriptionCopies | None:
        """The part of a subscription; None when this fragment does not have its source yet, or any more."""
        part = self._parts.get(number)
        source = self._fragment.sources.get(number)
        if part is None and source is not None:
            part = self._parts[number] = _SubscriptionCopies(source)
        return part

    def _put(
        self, number: int, payload: bytes, origin: int, metadata: MessageMetadata | None, encoded: bytes | None
    ) -> None:
        part = self._part(number)
        if part is None:
            return
        if part.source.sessions is not None and (metadata is None or metadata.session_id is None):
            _dead_letter(part, payload, origin, encoded, SESSION_ID_IS_NULL, _SESSION_TEXT)
            return
        if metadata is not None and encoded is not None:
            part.with_metadata[len(part.payloads)] = (ACTIVE, metadata, encoded)
        part.payloads.append(payload)
        part.origins.append(origin)
        part.size += len(payload)

    def write(self, commit: CommitBatch) -> list[Copies]:
        """Number the copies and write all of them into a commit."""
        copies: list[Copies] = []
        now_ms = self._now_ms
        for source_no, part in self._parts.items():
            source, payloads, origins = part.source, part.payloads, part.origins
            if not payloads:
                continue
            first, number = source.next_count, len(payloads)
            put = Put(source.source_key, first, now_ms, payloads, None, origins)
            source.next_count = first + number
            source.numbers[MAIN] += number
            source.bytes += part.size
            self._fragment.dirty.add(source_no)
            commit.puts.append(put)
            messages = _messages(put) if part.with_metadata or source.sessions is not None else None
            if part.with_metadata and messages is not None:
                put.all_metadata = _attach_metadata(source, part, messages)
            copies.append(Copies(source, put, part.size, messages))
        return copies


def _attach_metadata(
    source: Source, part: _SubscriptionCopies, messages: list[QueuedMessage]
) -> dict[int, tuple[int, int, bytes | None]]:
    """Make copies what they are that are not ordinary; returns what is written of them."""
    all_metadata: dict[int, tuple[int, int, bytes | None]] = {}
    for index, (state, metadata, encoded) in part.with_metadata.items():
        message = messages[index]
        message.state, message.metadata = state, metadata
        all_metadata[index] = (stored_state(state, metadata), 0, encoded)
        if state != ACTIVE:
            source.counted(ACTIVE, -1)
            source.counted(state, 1)
    return all_metadata


def _messages(put: Put) -> list[QueuedMessage]:
    """The copies that are written."""
    first, payloads = put.first_count, put.payloads
    counts = range(first, first + len(payloads))
    return [*map(QueuedCopy, counts, payloads, repeat(put.enqueued_ms), map(abs, put.origins or ()))]


def _dead_letter(
    part: _SubscriptionCopies, payload: bytes, origin: int, encoded: bytes | None, reason: str, text: str
) -> None:
    """Give a subscription a copy in its dead-letter queue."""
    metadata = MessageMetadata() if encoded is None else MessageMetadata.decode(encoded)
    metadata.reason = reason
    metadata.description = text[:DEAD_LETTER_TEXT_MAX]
    part.with_metadata[len(part.payloads)] = (_DEAD, metadata, metadata.encode())
    part.payloads.append(payload)
    part.origins.append(origin)
    part.size += len(payload)


def _is_made_ping(copy: AlteredCopy, payload: bytes) -> bool:
    """Whether an action makes a ping of a copy, which nobody is ever given."""
    overlay = copy.overlay
    return overlay.properties.get(CONTENT_TYPE_FIELD) == CONTENT_TYPE and is_ping(overlay.apply_to(payload))


def _match(shared: TopicRules, payload: bytes, metadata: MessageMetadata | None, now_ms: int, number: int) -> Match:
    trivial = shared.rules.trivial
    if trivial is not None:
        return Match(trivial)
    return shared.rules.match_payload(payload, metadata, now_ms, number)


def check(fragment: Fragment, state: TopicState, run: Run, now_ms: int) -> ServiceBusError | None:
    """Say why a topic cannot take a run, or None."""
    source = fragment.sources[run.source_no]
    run.effort, run.matches = 0, None
    error = check_room(source, run, now_ms, state.bytes)
    if error is not None or run.batch.ping:
        return error
    if state.shared.rules.strain:
        error = _try_out(fragment, state, run, now_ms)
    if error is not None or not state.shared.refuses_unmatched:
        return error
    batch = run.batch
    tried: dict[int, Match] = run.matches or {}
    for index in range(batch.n) if run.indices is None else run.indices:
        metadata = None if batch.extra is None else batch.extra.get(index)
        if _is_scheduled(metadata, now_ms) or _goes_elsewhere(metadata):
            continue
        match = tried.get(index)
        if match is None:
            match = _match(state.shared, batch.payloads[index], metadata, now_ms, fragment.number << 48)
        if not match.sources and not match.altered:
            return NoMatchingSubscription(
                "No subscription of the topic takes this message, and the topic refuses such messages "
                "(FilteringMessagesBeforePublishing). Add a rule that takes it, or change the topic."
            )
    return None


def _try_out(fragment: Fragment, state: TopicState, run: Run, now_ms: int) -> ServiceBusError | None:
    """Match the messages of a run before it is taken, if they might be too much work; say so where they are (I62).

    What they give is kept, so that nothing is done twice. Scheduled messages are tried, too: their sender hears of it.
    """
    rules, batch = state.shared.rules, run.batch
    payloads = batch.payloads if run.indices is None else [batch.payloads[index] for index in run.indices]
    size = batch.bytes_total if run.indices is None else sum(map(len, payloads))
    if not rules.may_exceed(payloads, size):
        return None
    meter = rules.meter
    meter.spent, meter.was_exceeded = 0, False
    matches: dict[int, Match] = {}
    number = fragment.number << 48 | fragment.sources[run.source_no].next_count
    for offset, index in enumerate(range(batch.n) if run.indices is None else run.indices):
        metadata = None if batch.extra is None else batch.extra.get(index)
        if _goes_elsewhere(metadata):
            continue
        matches[index] = rules.match_payload(payloads[offset], metadata, now_ms, number + offset)
        run.effort = meter.spent // EFFORT_OF_A_MESSAGE
        if meter.was_exceeded or meter.spent > EFFORT_MAX:
            return QuotaExceeded(EFFORT_TEXT)
    if rules.is_steady:
        run.matches = matches
    return None


def strain_of(state: TopicState, payload: bytes) -> int:
    """What the rules of a topic might do for a message, in messages."""
    return state.shared.rules.strain_of(payload) // EFFORT_OF_A_MESSAGE


def _is_scheduled(metadata: MessageMetadata | None, now_ms: int) -> bool:
    return metadata is not None and metadata.scheduled_ms is not None and metadata.scheduled_ms > now_ms


def _goes_elsewhere(metadata: MessageMetadata | None) -> bool:
    """Whether a message is sent via the topic to another entity: no rule and no subscription has a part in it."""
    return metadata is not None and metadata.route is not None and metadata.route.to is not None


def publish(fragment: Fragment, state: TopicState, run: Run, now_ms: int, commit: CommitBatch) -> None:
    """Decide what becomes of the messages of a run, and write all of it down."""
    batch = run.batch
    if batch.ping:
        return
    source = fragment.sources[run.source_no]
    indices = run.indices
    if batch.ids is not None:
        indices = duplicates.admit(source, run, now_ms, commit)
        fragment.note_history(source)
    payloads = batch.payloads if indices is None else [batch.payloads[index] for index in indices]
    run.size = batch.bytes_total if indices is None else sum(map(len, payloads))
    count = run.first_count = source.next_count
    source.next_count += len(payloads) + (0 if run.dropped is None else len(run.dropped))
    trivial = state.shared.rules.trivial
    if batch.extra is None and trivial is not None and payloads:
        targets = [fragment.sources[number] for number in trivial if number in fragment.sources]
        if all(target.sessions is None for target in targets):
            state.pending += run.size if targets else 0
            run.copies = _copy_plain(fragment, targets, count, payloads, run.size, now_ms, commit)
            return
    builder = _CopyBuilder(fragment, state, now_ms)
    meter = state.shared.rules.meter
    meter.spent = 0
    if batch.extra is None and run.matches is None:
        builder.add_plain(count, payloads, run.size)
    else:
        extra, tried = batch.extra or {}, run.matches or {}
        for offset, index in enumerate(range(batch.n) if indices is None else indices):
            metadata = extra.get(index)
            if metadata is not None and _goes_elsewhere(metadata):
                _keep(source, run, count + offset, payloads[offset], metadata, TRANSFER, now_ms, commit)
            elif metadata is not None and _is_scheduled(metadata, now_ms):
                _keep(source, run, count + offset, payloads[offset], metadata, SCHEDULED, now_ms, commit)
            else:
                builder.add(count + offset, payloads[offset], metadata, tried.get(index))
        run.matches = None
    run.effort += meter.spent // EFFORT_OF_A_MESSAGE
    run.copies = builder.write(commit)


def _copy_plain(
    fragment: Fragment,
    targets: Sequence[Source],
    first: int,
    payloads: Sequence[bytes],
    size: int,
    now_ms: int,
    commit: CommitBatch,
) -> list[Copies]:
    """Every message has no metadata, and every subscription takes it as it is."""
    number = len(payloads)
    origins = list(range(first, first + number)) if len(targets) == 1 else list(range(-first, -first - number, -1))
    copies: list[Copies] = []
    for source in targets:
        put = Put(source.source_key, source.next_count, now_ms, payloads, None, origins)
        source.next_count += number
        source.numbers[MAIN] += number
        source.bytes += size
        fragment.dirty.add(source.source_no)
        commit.puts.append(put)
        copies.append(Copies(source, put, size))
    return copies


def _keep(
    source: Source,
    run: Run,
    count: int,
    payload: bytes,
    metadata: MessageMetadata,
    state: int,
    now_ms: int,
    commit: CommitBatch,
) -> None:
    """Keep a message at the topic itself.

    A scheduled one is filtered when its time has come, and one that is sent via the topic is
    forwarded to its destination.
    """
    message = QueuedMessage(count, payload, now_ms)
    message.metadata = metadata
    message.state = state
    source.counted(state, 1)
    source.bytes += len(payload)
    run.messages.append(message)
    row = (stored_state(state, metadata), 0, metadata.encode())
    commit.puts.append(Put(source.source_key, count, now_ms, [payload], {0: row}))


def activate(fragment: Fragment, state: TopicState, command: Housekeeping, now_ms: int, commit: CommitBatch) -> None:
    """The time of scheduled messages has come: they get a new number, and their copies are made now."""
    source = fragment.sources[command.source_no]
    builder = _CopyBuilder(fragment, state, now_ms)
    meter = state.shared.rules.meter
    meter.spent = 0
    for old in command.due:
        metadata = MessageMetadata.decode(old.metadata.encode()) if old.metadata is not None else MessageMetadata()
        metadata.enqueued_sequence_number = fragment.number << 48 | old.count
        builder.add(source.next_count, old.payload, metadata)
        source.next_count += 1
    command.effort = meter.spent // EFFORT_OF_A_MESSAGE
    source.uncount(command.due)
    source.write_removals(command.due, commit)
    command.copies = builder.write(commit)


def release(fragment: Fragment, copies: list[Copies]) -> None:
    """Make what subscriptions got available, of those that are still there."""
    for part in copies:
        if fragment.sources.get(part.source.source_no) is not part.source:
            continue
        source, put = part.source, part.put
        if part.messages is not None:
            fragment.release_with_metadata(source, part.messages)
        elif source.tail_count:
            source.page_out(put.first_count, len(put.payloads), part.size)
        else:
            fragment.release_plain(source, _messages(put), part.size)


def busy_sources(fragment: Fragment) -> list[Source]:
    """The sources for which time may matter: most of 2,000 subscriptions may be empty."""
    return [
        source
        for source in fragment.sources.values()
        if source.by_count or source.expiring or source.exhausted or source.history or source.sessions
    ]


def to_write(fragment: Fragment) -> list[Source]:
    """The sources whose rows go into a commit: one of 2,000 subscriptions takes no others along."""
    dirty, fragment.dirty = fragment.dirty, set()
    return [source for number, source in fragment.sources.items() if number in dirty or source.owes_commit]


def committed(fragment: Fragment, state: TopicState, commit: CommitBatch) -> None:
    """A commit is durable: what it added is what the store has told."""
    state.stored = commit.shared.get(fragment.sources[0].source_key, state.stored)
    state.pending = 0
