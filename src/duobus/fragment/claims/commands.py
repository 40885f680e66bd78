"""Claims inside a fragment: available messages are deferred under an id, and removed or given back by that id.

The id is kept with the deferral, in the metadata of each message: so a claim outlives a crash like the deferral itself,
and an earlier version of the broker reads the message as one that is deferred. ``Source.claims`` is an index of that
metadata in memory. The index may name messages that have left their claim by another way, for example by their
sequence number; so each use of the index looks at the message itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from duobus.errors import QuotaExceeded, ServiceBusError
from duobus.fragment.commands import Command, RemovalCommand
from duobus.fragment.message import ACTIVE, DEFERRED, MAIN, RESERVED, QueuedMessage, kind_of, state_of, sub_queue_of
from duobus.fragment.settlement import (
    MAX_DELIVERY_COUNT_EXCEEDED,
    TTL_EXPIRED,
    TTL_TEXT,
    change,
    dead_letter,
    exhausted_text,
)
from duobus.model.metadata import ClaimMetadata, own

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import Source, SubQueue
    from duobus.model.batches import Mailbox
    from duobus.storage.interface import CommitBatch

#: Messages that one command claims, removes or gives back, so that the commit it rides in stays short (I62).
CLAIMED_MAX: Final = 1_000
#: Open claims of one source of a fragment.
CLAIMS_MAX: Final = 1_000
#: Messages that are taken before their bytes are counted; what is too many goes back.
_STEP: Final = 128


class ClaimBudget:
    """What a claim may still take; its commands share the budget, in whatever fragments they are.

    Attributes:
        messages: Messages that may still be claimed.
        size: Bytes of payloads that may still be claimed; the message that passes it is claimed all the same.
    """

    __slots__ = ("messages", "size")

    def __init__(self, messages: int, size: int) -> None:
        self.messages = messages
        self.size = size

    @property
    def is_spent(self) -> bool:
        """Whether nothing more may be claimed."""
        return self.messages <= 0 or self.size <= 0


class ClaimMessages(Command):
    """Defer available messages under an id, the oldest first.

    Without a budget the command changes nothing. Commits are in order, so whoever has the answer to it knows that all
    that was claimed before is durable.

    Attributes:
        budget: What may be taken.
        limit: Messages of it that this command may take.
        messages: After apply: what was claimed.
    """

    __slots__ = ("budget", "claim_id", "limit", "messages", "sub_queue")

    def __init__(
        self,
        handle: Any,
        source_no: int,
        reply: Mailbox | None,
        *,
        sub_queue: int,
        claim_id: str,
        budget: ClaimBudget,
        limit: int = CLAIMED_MAX,
    ) -> None:
        super().__init__(handle, source_no, reply)
        self.sub_queue = sub_queue
        self.claim_id = claim_id
        self.budget = budget
        self.limit = min(limit, CLAIMED_MAX)
        self.messages: list[QueuedMessage] = []

    def check(self, fragment: Fragment, source: Source, now_ms: int) -> ServiceBusError | None:
        """Refuse one claim too many."""
        claims = source.claims
        if self.claim_id in claims or len(claims) < CLAIMS_MAX:
            return None
        number = sum(1 for claim_id in claims if has_members(source, claim_id))
        if number < CLAIMS_MAX:
            return None
        return QuotaExceeded(f"{number} claims are open; at most {CLAIMS_MAX} may be. Settle or release some.")

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Take what is next, and write down whose it is."""
        messages = self.messages = self._taken(fragment, source, source.sub_queues[self.sub_queue])
        if not messages:
            return
        if self.sub_queue == MAIN:
            source.highest_delivered = max(source.highest_delivered, messages[-1].count)
        if self.claim_id not in source.claims and len(source.claims) >= CLAIMS_MAX:
            for claim_id in list(source.claims):
                forget_if_empty(source, claim_id)
        source.claims.setdefault(self.claim_id, []).extend([message.count for message in messages])
        self._defer(fragment, source, messages, commit)

    def _taken(self, fragment: Fragment, source: Source, sub_queue: SubQueue) -> list[QueuedMessage]:
        budget = self.budget
        found: list[QueuedMessage] = []
        while not budget.is_spent and len(found) < self.limit:
            some = sub_queue.take(min(_STEP, budget.messages, self.limit - len(found)))
            if not some:
                break
            total = sum([len(message.payload) for message in some])
            if total < budget.size:
                found += some
                budget.messages -= len(some)
                budget.size -= total
                continue
            for index, message in enumerate(some):
                if budget.size <= 0:
                    for other in some[index:]:
                        fragment.place(source, other, in_order=False)
                    break
                found.append(message)
                budget.messages -= 1
                budget.size -= len(message.payload)
        return found

    def _defer(self, fragment: Fragment, source: Source, messages: list[QueuedMessage], commit: CommitBatch) -> None:
        number = len(messages)
        state = state_of(self.sub_queue, DEFERRED)
        source.counted(state_of(self.sub_queue, ACTIVE), -number)
        source.counted(state, number)
        life = fragment.epoch & 0xFFFFFFFF
        # Messages that have no other metadata share it, and its stored form.
        fresh, known = ClaimMetadata(claim=self.claim_id), ClaimMetadata(claim=self.claim_id, deferred_in=life)
        fresh_form, known_form = fresh.encode(), known.encode()
        key, inherited, touched, changes = source.source_key, source.inherited, source.touched, commit.changes
        for message in messages:
            message.lock = RESERVED
            message.state = state
            # As with every deferral: it expires only when it is asked for.
            message.expires_ms = 0
            is_known = message.count < inherited
            if message.metadata is None:
                message.metadata = known if is_known else fresh
                form = known_form if is_known else fresh_form
            else:
                metadata = message.metadata = own(message.metadata)
                metadata.claim = self.claim_id
                metadata.deferred_in = life if is_known else None
                form = metadata.encode()
            if touched:
                touched.pop(message.count, None)
            changes.append((key, message.count, state, message.deliveries, form))

    def release(self, fragment: Fragment, source: Source, now_ms: int) -> None:
        """The deferral is durable: the messages may be asked for."""
        for message in self.messages:
            message.lock = 0

    def weight(self) -> tuple[int, int]:
        """The messages that are claimed."""
        return len(self.messages), 0


class SettleClaim(RemovalCommand):
    """Remove messages of a claim; those that are gone, or locked by somebody who knows their numbers, are passed over.

    Attributes:
        sub_queue: Where.
        counts: Which, of those that the index has.
        messages: After apply: what was removed.
        busy: After apply: messages that somebody holds.
    """

    __slots__ = ("busy", "claim_id", "counts", "sub_queue")

    def __init__(
        self,
        handle: Any,
        source_no: int,
        reply: Mailbox | None,
        *,
        sub_queue: int,
        claim_id: str,
        counts: Sequence[int],
    ) -> None:
        super().__init__(handle, source_no, reply)
        self.sub_queue = sub_queue
        self.claim_id = claim_id
        self.counts = counts
        self.busy = 0

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Remove those that are free."""
        free, self.busy = _free(source, self.sub_queue, self.claim_id, self.counts)
        self.remove(source, free, commit)

    def weight(self) -> tuple[int, int]:
        """The messages that are removed."""
        return len(self.messages), 0


class ReleaseClaim(Command):
    """Give messages of a claim back to all receivers, like an abandon.

    Attributes:
        sub_queue: Where.
        counts: Which, of those that the index has.
        is_counted: Whether the claim counts as a delivery.
        messages: After apply: what is given back.
        busy: After apply: messages that somebody holds.
    """

    __slots__ = ("busy", "claim_id", "counts", "is_counted", "messages", "sub_queue")

    def __init__(
        self,
        handle: Any,
        source_no: int,
        reply: Mailbox | None,
        *,
        sub_queue: int,
        claim_id: str,
        counts: Sequence[int],
        is_counted: bool,
    ) -> None:
        super().__init__(handle, source_no, reply)
        self.sub_queue = sub_queue
        self.claim_id = claim_id
        self.counts = counts
        self.is_counted = is_counted
        self.messages: list[QueuedMessage] = []
        self.busy = 0

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Write down that they are active, or dead where they have no delivery or no life left."""
        self.messages, self.busy = _free(source, self.sub_queue, self.claim_id, self.counts)
        for message in self.messages:
            message.lock = RESERVED
            _unclaim(message)
            source.counted(message.state, -1)
            message.state = state_of(sub_queue_of(message.state), ACTIVE)
            source.counted(message.state, 1)
            if self.is_counted and sub_queue_of(message.state) == MAIN:
                message.deliveries += 1
            if fragment.is_exhausted(source, message):
                dead_letter(source, message, MAX_DELIVERY_COUNT_EXCEEDED, exhausted_text(source))
            elif fragment.is_expired(source, message, now_ms) and source.settings.dead_letter_on_expiration:
                dead_letter(source, message, TTL_EXPIRED, TTL_TEXT)
            change(source, message, commit, deliveries=message.deliveries)

    def release(self, fragment: Fragment, source: Source, now_ms: int) -> None:
        """They are available."""
        for message in self.messages:
            message.lock = 0
            fragment.place(source, message, in_order=False)

    def weight(self) -> tuple[int, int]:
        """The messages that are given back."""
        return len(self.messages), 0


def members_of(source: Source, sub_queue: int, claim_id: str) -> list[QueuedMessage]:
    """The messages of a claim in a sub-queue, those included that a commit under way claims."""
    found: list[QueuedMessage] = []
    get, state = source.by_count.get, state_of(sub_queue, DEFERRED)
    for count in source.claims.get(claim_id, ()):
        message = get(count)
        if message is not None and message.state == state:
            metadata = message.metadata
            if metadata is not None and metadata.claim == claim_id:
                found.append(message)
    return found


def has_members(source: Source, claim_id: str, sub_queue: int | None = None) -> bool:
    """Whether a claim has a message, in one sub-queue or in any."""
    get = source.by_count.get
    for count in source.claims.get(claim_id, ()):
        message = get(count)
        if (
            message is not None
            and _is_of(message, claim_id)
            and (sub_queue is None or sub_queue_of(message.state) == sub_queue)
        ):
            return True
    return False


def forget_if_empty(source: Source, claim_id: str) -> None:
    """Take a claim out of the index if no message of it is left."""
    if claim_id in source.claims and not has_members(source, claim_id):
        del source.claims[claim_id]


def note_claim(source: Source, message: QueuedMessage) -> None:
    """Recovery has read a message: enter it into the index if it is claimed."""
    claim_id = None if message.metadata is None else message.metadata.claim
    if claim_id is not None and kind_of(message.state) == DEFERRED:
        source.claims.setdefault(claim_id, []).append(message.count)


def _is_of(message: QueuedMessage, claim_id: str) -> bool:
    return kind_of(message.state) == DEFERRED and message.metadata is not None and message.metadata.claim == claim_id


def _free(source: Source, sub_queue: int, claim_id: str, counts: Sequence[int]) -> tuple[list[QueuedMessage], int]:
    """Messages of a claim that nobody holds, and how many somebody does."""
    free: list[QueuedMessage] = []
    busy = 0
    get, state = source.by_count.get, state_of(sub_queue, DEFERRED)
    for count in counts:
        message = get(count)
        if message is None or message.state != state:
            continue
        metadata = message.metadata
        if metadata is None or metadata.claim != claim_id:
            continue
        if message.lock:
            busy += 1
        else:
            free.append(message)
    return free, busy


def _unclaim(message: QueuedMessage) -> None:
    if type(message.metadata) is ClaimMetadata:
        message.metadata = None
        return
    metadata = message.metadata = own(message.metadata)
    metadata.claim = metadata.deferred_in = None
