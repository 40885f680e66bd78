"""Duplicate detection inside a fragment: the ids of the messages that a source accepted within its window (I5).

Decided when a commit starts: what is in doubt is thrown away with the whole fragment when the commit fails, so a
failed commit forgets its ids. The window begins when a message is accepted; a duplicate does not begin it anew, and
nothing that becomes of the message later (settled, cancelled, expired) ends it.

In memory: a set of ids and the blocks in which they came, oldest first; purged from the front whenever a run comes,
and when the fragment is looked at, so that no id has a timer. In the store: the same blocks, appended and deleted as
ranges, never looked up: an index of ids would slow every insert.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from duobus.errors import ServerBusy
from duobus.fragment.message import NEVER
from duobus.model.quotas import Quotas
from duobus.storage.interface import CommitBatch, IdBlock

if TYPE_CHECKING:
    from duobus.fragment.send import Run
    from duobus.fragment.source import Source

#: Blocks that ran out are deleted from the store this many at a time; until then they are merely not looked at.
OUTDATED_BLOCKS = 256
#: How late, in parts of the window, ids that ran out are purged when nobody sends.
_LATENESS = 16
_LATENESS_MS_MIN = 1000


class MessageIdBudget:
    """How many ids the histories of one store hold together: 126 bytes each in runs of 50, 320 in runs of one.

    When there is no room, sends are refused as busy: forgetting an id early would let a duplicate through.
    """

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = Quotas().history_ids) -> None:
        self.limit = limit
        self.used = 0


class DuplicateHistory:
    """The ids of one source.

    Attributes:
        known: Ids within the window, and some that ran out and were not purged yet.
        blocks: (broker time, count of the last run's first message, ids), oldest first; each id stands in one of them.
        room: What the ids are counted in.
        is_overdue: Blocks that ran out are to be deleted with a commit soon, though nobody sends.
    """

    __slots__ = ("_outdated", "_outdated_number", "blocks", "is_overdue", "known", "room")

    def __init__(self) -> None:
        self.known: set[bytes] = set()
        self.blocks: deque[tuple[int, int, list[bytes]]] = deque()
        self.room = MessageIdBudget()
        self.is_overdue = False
        self._outdated = 0
        self._outdated_number = 0

    def move_to(self, room: MessageIdBudget) -> None:
        """Count the ids in another room."""
        self.room.used -= len(self.known)
        self.room = room
        room.used += len(self.known)

    def purge(self, now_ms: int, window_ms: int) -> None:
        """Forget what was accepted a whole window ago or earlier."""
        blocks = self.blocks
        while blocks and blocks[0][0] + window_ms <= now_ms:
            _, first_count, ids = blocks.popleft()
            self.known.difference_update(ids)
            self.room.used -= len(ids)
            self._outdated = first_count
            self._outdated_number += 1

    def tick(self, now_ms: int, window_ms: int) -> int:
        """Purge, and return when to look again if nobody sends."""
        self.purge(now_ms, window_ms)
        self.is_overdue = self._outdated_number > 0
        return self.due_ms(window_ms)

    def due_ms(self, window_ms: int) -> int:
        """When ids ought to be purged at the latest; NEVER when there are none."""
        if not self.blocks:
            return NEVER
        return self.blocks[0][0] + window_ms + max(_LATENESS_MS_MIN, window_ms // _LATENESS)

    def add(self, at_ms: int, first_count: int, ids: list[bytes]) -> None:
        """Enter the ids of a run."""
        blocks = self.blocks
        if blocks and blocks[-1][0] == at_ms:
            # Small runs of one commit share an object in memory; the store keeps them apart.
            together = blocks[-1][2]
            together += ids
            blocks[-1] = (at_ms, first_count, together)
        else:
            blocks.append((at_ms, first_count, ids))
        self.known.update(ids)
        self.room.used += len(ids)

    def recover(self, blocks: Iterable[IdBlock], now_ms: int, window_ms: int) -> None:
        """Take in blocks read back from the store, ascending; may be called again with the next ones."""
        for block in blocks:
            if block.at_ms + window_ms <= now_ms:
                self._outdated = block.first_count
                self._outdated_number += 1
                continue
            ids = unpack(block.ids)
            self._drop_earlier(self.known.intersection(ids))
            self.add(block.at_ms, block.first_count, ids)

    def _drop_earlier(self, again: set[bytes]) -> None:
        """Take out of earlier blocks what comes in a later one.

        An id that had run out came again before its block was deleted, and the window is longer now: its first time
        counts no more, or purging that would purge the second.
        """
        if again:
            self.blocks = deque(
                (at_ms, count, [one for one in ids if one not in again]) for at_ms, count, ids in self.blocks
            )
            self.known -= again
            self.room.used -= len(again)

    def write_outdated(self, source_key: int, commit: CommitBatch) -> None:
        """Have the store delete what ran out, when there is enough of it or it has waited long."""
        if self.is_overdue or self._outdated_number >= OUTDATED_BLOCKS:
            commit.outdated.append((source_key, self._outdated))
            self.is_overdue = False
            self._outdated_number = 0


def check(history: DuplicateHistory, run: Run, window_ms: int, now_ms: int) -> ServerBusy | None:
    """Refuse a run for whose ids there is no room."""
    room = history.room
    number = run.batch.n if run.indices is None else len(run.indices)
    if room.used + number <= room.limit:
        return None
    history.purge(now_ms, window_ms)
    if room.used + number <= room.limit:
        return None
    return ServerBusy(
        f"The duplicate detection of this messaging store remembers {room.used} message ids, and there is no room for "
        f"{number} more. Ids are forgotten {window_ms / 1000:.0f} s after they came "
        "(DuplicateDetectionHistoryTimeWindow): wait, or make the window shorter."
    )


def admit(source: Source, run: Run, now_ms: int, commit: CommitBatch) -> list[int] | None:
    """Enter a run's ids and return the indices of the messages that are no duplicates; None for all of the batch."""
    history, window_ms = source.history, source.settings.duplicate_window_ms
    ids = run.batch.ids
    if history is None or window_ms is None or ids is None:
        return run.indices
    history.purge(now_ms, window_ms)
    added, kept = _fresh(history.known, ids, run)
    if added:
        commit.histories.append(IdBlock(source.source_key, source.next_count, now_ms, pack(added)))
        history.add(now_ms, source.next_count, added)
    return kept


def _fresh(known: set[bytes], ids: list[bytes | None], run: Run) -> tuple[list[bytes], list[int] | None]:
    """The ids of a run that nobody has sent, and the indices of what is kept: those with such ids, or with none."""
    wanted = ids if run.indices is None else [ids[index] for index in run.indices]
    distinct = {one for one in wanted if one is not None}
    if len(distinct) == len(wanted) and known.isdisjoint(distinct):
        # Nearly every run: all have ids, and no two of them the same.
        return [one for one in wanted if one is not None], run.indices
    kept: list[int] = []
    dropped: list[int] = []
    fresh: dict[bytes, None] = {}
    for index in range(run.batch.n) if run.indices is None else run.indices:
        one = ids[index]
        if one is None:
            kept.append(index)
        elif one in known or one in fresh:
            dropped.append(index)
        else:
            fresh[one] = None
            kept.append(index)
    if not dropped:
        return list(fresh), run.indices
    run.dropped = dropped
    return list(fresh), kept


def stored_size(source: Source, run: Run) -> int:
    """Bytes of those messages of a run that are no known duplicates."""
    history, ids, payloads = source.history, run.batch.ids, run.batch.payloads
    indices = range(run.batch.n) if run.indices is None else run.indices
    if history is None or ids is None:
        return sum([len(payloads[index]) for index in indices])
    known = history.known
    return sum([len(payloads[index]) for index in indices if ids[index] not in known])


def pack(ids: list[bytes]) -> bytes:
    """The stored form of a block: the number of ids, their lengths in a byte each, the ids."""
    return len(ids).to_bytes(4, "big") + bytes(map(len, ids)) + b"".join(ids)


def unpack(block: bytes) -> list[bytes]:
    """Return what ``pack`` was given."""
    number = int.from_bytes(block[:4], "big")
    pos = 4 + number
    ids: list[bytes] = []
    for length in block[4:pos]:
        ids.append(block[pos : pos + length])
        pos += length
    return ids
