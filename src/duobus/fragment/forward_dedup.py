"""ForwardDedup: what a source has accepted from sources of other stores, so that a repeat is not accepted again (I14).

A message that is forwarded to another store is accepted there in one commit and removed here in a later one. When a
crash falls between the two it comes a second time, and the destination knows it by its origin and its count, which is
never given out twice. The entry is part of the commit that accepts the message, and goes when the origin does not have
the message any more: so there are as many entries as messages on their way, whatever the rate.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from duobus.fragment.commands import Command
from duobus.fragment.message import ACTIVE, TAKEN
from duobus.storage.interface import CommitBatch, Put, StoredMessage

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.message import QueuedMessage
    from duobus.fragment.send import Run
    from duobus.fragment.source import Source
    from duobus.model.batches import Mailbox

#: Whose messages: (catalog's id of the entity, fragment number, source number).
Origin = tuple[int, int, int]

_ORIGIN: Final = struct.Struct(">QHI")
_COUNT: Final = struct.Struct(">Q")


class ForwardDedup:
    """The entries of one source.

    Attributes:
        known: Origin to (count of the message there, count of the row here that says so).
        rows: Count of a row to how many of its entries are left.
    """

    __slots__ = ("known", "rows")

    def __init__(self) -> None:
        self.known: dict[Origin, dict[int, int]] = {}
        self.rows: dict[int, int] = {}

    def has(self, origin: Origin, count: int) -> bool:
        """Whether this message was taken over already."""
        found = self.known.get(origin)
        return found is not None and count in found

    def add(self, origin: Origin, counts: Sequence[int], row: int) -> None:
        """Enter messages of which a row tells."""
        known = self.known.setdefault(origin, {})
        for count in counts:
            known[count] = row
        self.rows[row] = len(counts)

    def recover(self, rows: Iterable[StoredMessage]) -> None:
        """Take in rows read back from the store; may be called again with the next ones."""
        for row in rows:
            origin = _ORIGIN.unpack_from(row.payload)
            counts = [count for (count,) in _COUNT.iter_unpack(row.payload[_ORIGIN.size :])]
            self.add(origin, counts, row.count)


class RecordForwarded(Command):
    """Enter the messages of a run before it is taken in; those that were taken over already are left out of it.

    Attributes:
        origin: Where they come from.
        counts: Their counts there, one for each message of the run's batch.
        run: The run, which takes all of its batch; the next member of the group.
    """

    __slots__ = ("counts", "origin", "run")

    def __init__(self, handle: Any, source_no: int, *, origin: Origin, counts: list[int], run: Run) -> None:
        super().__init__(handle, source_no, None)
        self.origin = origin
        self.counts = counts
        self.run = run

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Enter the counts, and leave those that are known out of the run."""
        dedup, counts = source.dedup, self.counts
        known = dedup.known.get(self.origin)
        if known and not known.keys().isdisjoint(counts):
            fresh = [index for index, count in enumerate(counts) if count not in known]
            self.run.indices = fresh
            counts = [counts[index] for index in fresh]
        if not counts:
            return
        row = source.next_count
        source.next_count += 1
        payload = _ORIGIN.pack(*self.origin) + b"".join(map(_COUNT.pack, counts))
        commit.puts.append(Put(source.source_key, row, now_ms, [payload], {0: (TAKEN, 0, None)}))
        dedup.add(self.origin, counts, row)


class ForgetForwarded(Command):
    """Drop entries of messages that their origin does not have any more."""

    __slots__ = ("counts", "origin")

    def __init__(
        self, handle: Any, source_no: int, reply: Mailbox | None, *, origin: Origin, counts: list[int]
    ) -> None:
        super().__init__(handle, source_no, reply)
        self.origin = origin
        self.counts = counts

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Drop the entries, and the rows of which none is left."""
        dedup = source.dedup
        known = dedup.known.get(self.origin, {})
        for count in self.counts:
            row = known.pop(count, None)
            if row is None:
                continue
            dedup.rows[row] -= 1
            if not dedup.rows[row]:
                del dedup.rows[row]
                commit.removed.append((source.source_key, row, row))
        if not known:
            dedup.known.pop(self.origin, None)


class QueryForwarded(ForgetForwarded):
    """Which messages of an origin are here? Answered when all that it has asked for before is durable.

    Attributes:
        taken: Their counts there.
    """

    __slots__ = ("taken",)

    def __init__(self, handle: Any, source_no: int, reply: Mailbox | None, *, origin: Origin) -> None:
        super().__init__(handle, source_no, reply, origin=origin, counts=[])
        self.taken: list[int] = []

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Say what is known of the origin."""
        self.taken = list(source.dedup.known.get(self.origin, {}))
        super().apply(fragment, source, now_ms, commit)


# In doubt: messages that an earlier life of their fragment has sent on, perhaps (I14).
#
# Between stores a forward is two commits, and what is between them is in no record of the origin. A new life knows only
# that everything it found may be at the destination already. Sending it again is safe, for the forward dedup of the
# destination knows it; letting it expire is not: it would be a dead letter here and a message there. So what a source
# that forwards has found expires only when the destination has answered which messages of this origin its forward dedup
# holds (``forwarder.py`` asks). The answer is final: what an earlier life sent is accepted or void by then.

#: How often it is checked whether a message at the front that is in doubt has been taken from there.
LOOK_MS: Final = 1_000


def begin_in_doubt(source: Source) -> None:
    """A source has been found in a store."""
    source.in_doubt_below = source.next_count if source.settings.forwards else 0


def is_in_doubt(source: Source, count: int) -> bool:
    """Whether a message may not expire, since it may be at its destination, or is."""
    return count < source.in_doubt_below or count in source.elsewhere


def withheld(fragment: Fragment, source: Source, message: QueuedMessage, now_ms: int) -> bool:
    """Whether a message would have expired if that could be; it is not sent on either until that is known."""
    return message.count < source.in_doubt_below and fragment.is_expired(source, message, now_ms)


def settle_in_doubt(fragment: Fragment, source: Source, taken: Iterable[int], now_ms: int | None = None) -> None:
    """The destination has these messages, and none of the others of an earlier life, nor will it get them from there.

    ``now_ms``: with it, only what has run out of life is looked at again.
    """
    below, source.in_doubt_below = source.in_doubt_below, 0
    still = (count for count in taken if count in source.by_count or source.is_paged_out(count))
    source.elsewhere = {count for count in still if count < below}
    for message in source.by_count.values():
        if message.count >= below or message.state != ACTIVE or message.lock or message.count in source.elsewhere:
            continue
        if now_ms is None or fragment.is_expired(source, message, now_ms):
            # Its entry in the index was used up while it was held.
            message.expires_ms = 0
            fragment.index_expiry(source, message, always=True)
    fragment.deadline = 0


def settings_changed(fragment: Fragment, source: Source) -> None:
    """A source that forwards no more holds nothing."""
    if (source.in_doubt_below or source.elsewhere) and not source.settings.forwards:
        source.in_doubt_below = source.next_count
        settle_in_doubt(fragment, source, ())
