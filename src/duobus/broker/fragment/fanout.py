"""Fan-out: what the fragment of a topic does with a message: one copy for every subscription that takes it.

Source 0 is the topic itself: it counts the messages, knows their ids, and keeps those that are scheduled. Every
subscription is a source of its own. All copies of a message are decided together and written in one commit (I24); its
body is kept once (``stores/bodies.py``), and what a rule changes lies beside it (design decision 8, 3.12).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final

from duobus.broker.fragment import admission, duplicates, settling
from duobus.broker.fragment.commands import Copies, Housekeeping, Run
from duobus.broker.fragment.slot import (
    ACTIVE,
    DEAD_LETTER,
    MAIN,
    SCHEDULED,
    CopySlot,
    Slot,
    state_of,
    stored_state,
)
from duobus.errors import NoMatchingSubscription, ServiceBusError
from duobus.model.special import Special
from duobus.rules import Match, RuleSet
from duobus.stores.interface import CommitBatch, Put

if TYPE_CHECKING:
    from duobus.broker.fragment.fragment import Fragment
    from duobus.broker.fragment.source import Source

FILTER_FAILED: Final = "FilterEvaluationException"
SESSION_ID_IS_NULL: Final = "SessionIdIsNull"
SESSION_ELSEWHERE: Final = "SessionIdOfAnotherPartition"
_ELSEWHERE_TEXT: Final = (
    "An action gave the message a session id by which it was not placed. On a partitioned topic a session lives in one "
    "fragment, so the copy cannot join it. Let the action use the message's own session id or partition key."
)
_SESSION_TEXT: Final = "The subscription requires sessions, and the message has no session id."
_DEAD: Final = state_of(DEAD_LETTER, ACTIVE)


class TopicRules:
    """What all fragments of a topic share.

    Attributes:
        rules: Of all subscriptions that may get copies, by source number.
        keeping_errors: Sources whose subscriptions dead-letter what their filters fail on.
        is_partitioned: A session lives in one fragment of several.
        refuses_unmatched: A message that no subscription takes is refused (FilteringMessagesBeforePublishing).
    """

    __slots__ = ("is_partitioned", "keeping_errors", "refuses_unmatched", "rules")

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.keeping_errors: set[int] = set()
        self.is_partitioned = False
        self.refuses_unmatched = False


class TopicState:
    """What one fragment of a topic knows of its subscriptions as a whole.

    Attributes:
        shared: What all fragments of the topic share.
        stored: Bytes that the copies take up, as the store told it after the last commit.
        pending: Bytes that the commit under way adds.
    """

    __slots__ = ("pending", "shared", "stored")

    def __init__(self, shared: TopicRules, stored: int = 0) -> None:
        self.shared = shared
        self.stored = stored
        self.pending = 0

    @property
    def bytes(self) -> int:
        """Bytes that copies take up, each body counted once."""
        return self.stored + self.pending


class _Part:
    """What one subscription gets of a run.

    Attributes:
        source: Of the subscription.
        payloads, origins: Of its copies, as ``Put`` has them.
        rare: Index of a copy to its state, its special, and that encoded, for those that are not ordinary.
    """

    __slots__ = ("origins", "payloads", "rare", "source")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.payloads: list[bytes] = []
        self.origins: list[int] = []
        self.rare: dict[int, tuple[int, Special, bytes]] = {}


class _Spread:
    """Collects the copies of several messages, to be written together."""

    __slots__ = ("_fragment", "_now_ms", "_parts", "_rules", "_state", "_trivial")

    def __init__(self, fragment: Fragment, state: TopicState, now_ms: int) -> None:
        self._fragment = fragment
        self._state = state
        self._now_ms = now_ms
        self._parts: dict[int, _Part] = {}
        self._rules = state.shared.rules
        trivial = self._rules.trivial
        self._trivial = None if trivial is None else Match(trivial)

    def add(self, count: int, payload: bytes, special: Special | None) -> None:
        """Give every subscription that takes a message its copies."""
        if special is None:
            self.add_plain(count, (payload,))
            return
        match = self._trivial
        if match is None:
            number = self._fragment.number << 48 | count
            match = self._rules.match_payload(payload, special, self._now_ms, number)
        self._add_rare(count, payload, special, match)

    def add_plain(self, first: int, payloads: Sequence[bytes]) -> None:
        """Do the same for messages in a row that have nothing rare."""
        if self._trivial is not None:
            matches = [self._trivial] * len(payloads)
        else:
            matches = self._rules.match_run(payloads, self._now_ms, self._fragment.number << 48 | first)
        start, number = 0, len(payloads)
        while start < number:
            match = matches[start]
            # All of them, as a rule, which one call can tell.
            end = number if not start and matches.count(match) == number else start + 1
            while end < number and matches[end] is match:
                end += 1
            if match.errors is not None or match.altered:
                for index in range(start, end):
                    self._add_rare(first + index, payloads[index], None, match)
            elif match.sources:
                self._add_alike(first + start, payloads[start:end], match.sources)
            start = end

    def _add_alike(self, first: int, payloads: Sequence[bytes], targets: Sequence[int]) -> None:
        """Give these subscriptions copies of messages in a row that are as they came."""
        self._state.pending += sum(map(len, payloads))
        end = first + len(payloads)
        origins = range(first, end) if len(targets) == 1 else range(-first, -end, -1)
        for target in targets:
            part = self._part(target)
            if part is None:
                continue
            if part.source.sessions is not None:
                for payload, origin in zip(payloads, origins, strict=True):
                    _bury(part, payload, origin, None, SESSION_ID_IS_NULL, _SESSION_TEXT)
                continue
            part.payloads += payloads
            part.origins += origins

    def _add_rare(self, count: int, payload: bytes, special: Special | None, match: Match) -> None:
        keeping = self._state.shared.keeping_errors
        failed = [number for number in match.errors or () if number in keeping]
        copies = len(failed) + len(match.sources) + len(match.altered)
        if not copies:
            return
        self._state.pending += len(payload)
        origin = count if copies == 1 else -count
        encoded = None if special is None else special.encode()
        for number in match.sources:
            # No two copies share what may change later.
            own = None if encoded is None else Special.decode(encoded)
            self._put(number, payload, origin, own, encoded)
        for copy in match.altered:
            changed = copy.overlay.special(special)
            own = Special() if changed is None else Special.decode(changed.encode())
            own.changes = copy.overlay.encode()
            part = self._part(copy.source)
            if part is not None and self._is_elsewhere(part, special, own):
                _bury(part, payload, origin, own.encode(), SESSION_ELSEWHERE, _ELSEWHERE_TEXT)
                continue
            self._put(copy.source, payload, origin, own, own.encode())
        for number in failed:
            part = self._part(number)
            if part is not None:
                _bury(part, payload, origin, encoded, FILTER_FAILED, (match.errors or {})[number])

    def _is_elsewhere(self, part: _Part, sent: Special | None, own: Special) -> bool:
        """Whether an action has put a copy into a session that belongs to another fragment, for all we know (I4, I36).

        Whether it happens to be the same fragment is none of the rule's author's business: what holds for one message
        holds for all.
        """
        if part.source.sessions is None or not self._state.shared.is_partitioned or own.session_id is None:
            return False
        return sent is None or own.session_id not in (sent.session_id, sent.partition_key)

    def _part(self, number: int) -> _Part | None:
        """The part of a subscription; None when this fragment does not have its source yet, or any more."""
        part = self._parts.get(number)
        source = self._fragment.sources.get(number)
        if part is None and source is not None:
            part = self._parts[number] = _Part(source)
        return part

    def _put(self, number: int, payload: bytes, origin: int, special: Special | None, encoded: bytes | None) -> None:
        part = self._part(number)
        if part is None:
            return
        if part.source.sessions is not None and (special is None or special.session_id is None):
            _bury(part, payload, origin, encoded, SESSION_ID_IS_NULL, _SESSION_TEXT)
            return
        if special is not None and encoded is not None:
            part.rare[len(part.payloads)] = (ACTIVE, special, encoded)
        part.payloads.append(payload)
        part.origins.append(origin)

    def write(self, commit: CommitBatch) -> list[Copies]:
        """Number the copies and write all of them into a commit."""
        copies: list[Copies] = []
        now_ms = self._now_ms
        for number, part in self._parts.items():
            source, payloads, origins = part.source, part.payloads, part.origins
            if not payloads:
                continue
            first = source.next_count
            counts = range(first, first + len(payloads))
            slots: list[Slot] = [*map(CopySlot, counts, payloads, repeat(now_ms), map(abs, origins))]
            source.next_count = first + len(slots)
            source.numbers[MAIN] += len(slots)
            specials: dict[int, tuple[int, int, bytes | None]] = {}
            for index, (state, special, encoded) in part.rare.items():
                slot = slots[index]
                slot.state, slot.special = state, special
                specials[index] = (stored_state(state, special), 0, encoded)
                if state != ACTIVE:
                    source.counted(ACTIVE, -1)
                    source.counted(state, 1)
            size = sum(map(len, payloads))
            source.bytes += size
            self._fragment.dirty.add(number)
            commit.puts.append(Put(source.source_key, first, now_ms, payloads, specials or None, origins))
            is_plain = not specials and source.sessions is None
            copies.append(Copies(source, slots, size, is_plain=is_plain))
        return copies


def _bury(part: _Part, payload: bytes, origin: int, encoded: bytes | None, reason: str, text: str) -> None:
    """Give a subscription a copy in its dead-letter queue."""
    special = Special() if encoded is None else Special.decode(encoded)
    special.reason = reason
    special.description = text[: settling.DEAD_LETTER_TEXT_MAX]
    part.rare[len(part.payloads)] = (_DEAD, special, special.encode())
    part.payloads.append(payload)
    part.origins.append(origin)


def _match(shared: TopicRules, payload: bytes, special: Special | None, now_ms: int, number: int) -> Match:
    trivial = shared.rules.trivial
    if trivial is not None:
        return Match(trivial)
    return shared.rules.match_payload(payload, special, now_ms, number)


def check(fragment: Fragment, state: TopicState, run: Run, now_ms: int) -> ServiceBusError | None:
    """Say why a topic cannot take a run, or None."""
    source = fragment.sources[run.source_no]
    error = admission.check(source, run, now_ms, state.bytes)
    if error is not None or not state.shared.refuses_unmatched or run.batch.ping:
        return error
    batch = run.batch
    for index in range(batch.n) if run.indices is None else run.indices:
        special = None if batch.extra is None else batch.extra.get(index)
        if _is_scheduled(special, now_ms):
            continue
        match = _match(state.shared, batch.payloads[index], special, now_ms, fragment.number << 48)
        if not match.sources and not match.altered:
            return NoMatchingSubscription(
                "No subscription of the topic takes this message, and the topic refuses such messages "
                "(FilteringMessagesBeforePublishing). Add a rule that takes it, or change the topic."
            )
    return None


def _is_scheduled(special: Special | None, now_ms: int) -> bool:
    return special is not None and special.scheduled_ms is not None and special.scheduled_ms > now_ms


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
    run.size = sum(map(len, payloads))
    count = run.first_count = source.next_count
    source.next_count += len(payloads) + (0 if run.dropped is None else len(run.dropped))
    trivial = state.shared.rules.trivial
    if batch.extra is None and trivial is not None and payloads:
        targets = [fragment.sources[number] for number in trivial if number in fragment.sources]
        if all(target.sessions is None for target in targets):
            state.pending += run.size if targets else 0
            run.copies = _copy_plain(fragment, targets, count, payloads, run.size, now_ms, commit)
            return
    spread = _Spread(fragment, state, now_ms)
    if batch.extra is None:
        spread.add_plain(count, payloads)
        run.copies = spread.write(commit)
        return
    extra = batch.extra
    for offset, index in enumerate(range(batch.n) if indices is None else indices):
        special = extra.get(index)
        if special is not None and _is_scheduled(special, now_ms):
            _wait(source, run, count + offset, payloads[offset], special, now_ms, commit)
        else:
            spread.add(count + offset, payloads[offset], special)
    run.copies = spread.write(commit)


def _copy_plain(
    fragment: Fragment,
    targets: Sequence[Source],
    first: int,
    payloads: Sequence[bytes],
    size: int,
    now_ms: int,
    commit: CommitBatch,
) -> list[Copies]:
    """Every message has nothing rare, and every subscription takes it as it is."""
    number = len(payloads)
    origins = list(range(first, first + number)) if len(targets) == 1 else list(range(-first, -first - number, -1))
    copies: list[Copies] = []
    for source in targets:
        count = source.next_count
        slots: list[Slot] = [
            CopySlot(count + offset, payload, now_ms, first + offset) for offset, payload in enumerate(payloads)
        ]
        source.next_count = count + number
        source.numbers[MAIN] += number
        source.bytes += size
        fragment.dirty.add(source.source_no)
        commit.puts.append(Put(source.source_key, count, now_ms, payloads, None, origins))
        copies.append(Copies(source, slots, size, is_plain=True))
    return copies


def _wait(
    source: Source, run: Run, count: int, payload: bytes, special: Special, now_ms: int, commit: CommitBatch
) -> None:
    """A scheduled message stays at the topic; it is filtered when its time has come (HTTP contract E.1)."""
    slot = Slot(count, payload, now_ms)
    slot.special = special
    slot.state = SCHEDULED
    source.counted(SCHEDULED, 1)
    source.bytes += len(payload)
    run.slots.append(slot)
    row = (SCHEDULED, 0, special.encode())
    commit.puts.append(Put(source.source_key, count, now_ms, [payload], {0: row}))


def activate(fragment: Fragment, state: TopicState, command: Housekeeping, now_ms: int, commit: CommitBatch) -> None:
    """The time of scheduled messages has come: they get a new number, and their copies are made now."""
    source = fragment.sources[command.source_no]
    spread = _Spread(fragment, state, now_ms)
    for old in command.due:
        special = Special.decode(old.special.encode()) if old.special is not None else Special()
        special.enqueued_sequence_number = fragment.number << 48 | old.count
        spread.add(source.next_count, old.payload, special)
        source.next_count += 1
    source.uncount(command.due)
    settling.removals(source, command.due, commit)
    command.copies = spread.write(commit)


def release(fragment: Fragment, copies: list[Copies]) -> None:
    """Make what subscriptions got available, of those that are still there."""
    for part in copies:
        if fragment.sources.get(part.source.source_no) is not part.source:
            continue
        if part.is_plain:
            fragment.release_plain(part.source, part.slots, part.size)
        else:
            fragment.release_rare(part.source, part.slots)


def busy_sources(fragment: Fragment) -> list[Source]:
    """The sources for which time may matter: most of 2,000 subscriptions may be empty."""
    return [
        source
        for source in fragment.sources.values()
        if source.by_count or source.expiring or source.worn or source.history or source.sessions
    ]


def to_write(fragment: Fragment) -> list[Source]:
    """The sources whose rows go into a commit: one of 2,000 subscriptions takes no others along."""
    if fragment.topic is None:
        return list(fragment.sources.values())
    dirty, fragment.dirty = fragment.dirty, set()
    return [source for number, source in fragment.sources.items() if number in dirty or source.owes_commit]


def committed(fragment: Fragment, commit: CommitBatch) -> None:
    """A commit is durable: what it added is what the store has told."""
    state = fragment.topic
    if state is not None:
        state.stored = commit.shared.get(fragment.sources[0].source_key, state.stored)
        state.pending = 0


def weight_of(run: Run) -> int:
    """How many messages a run makes a commit longer by."""
    if run.copies:
        return sum([len(part.slots) for part in run.copies])
    return run.batch.n if run.indices is None else len(run.indices)


def ranges_of(fragment: Fragment, run: Run) -> list[tuple[int, int, int]]:
    """(source key, first count, last count) of all that a run's commit may have written (I27)."""
    key = fragment.sources[run.source_no].source_key
    if fragment.topic is None:
        return [(key, run.first_count, run.first_count + len(run.slots) - 1)] if run.slots else []
    if not run.first_count:
        return []
    number = run.batch.n if run.indices is None else len(run.indices)
    copies = [(part.source.source_key, part.slots[0].count, part.slots[-1].count) for part in run.copies]
    return [(key, run.first_count, run.first_count + number - 1), *copies]
