"""Stores of a simulated broker that are real ones with a journal, on a disk that tears writes and loses power.

In one seed of twelve every other store of a world is such a ``JournalStore`` over the real SQLite; the others are
dictionaries (``world/stores.py``). The faults are the same: an operation that is refused, one that fails and has been
done, a sync that is refused, delays, kills and power cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Final, TypeVar

from duobus.clock import Clock
from duobus.errors import StoreFailed
from duobus.storage.creation import Asked
from duobus.storage.interface import CommitBatch, FragmentRow, SourceRow, StoreContents, Tombstone
from duobus.storage.journal.store import JournalStore
from duobus.storage.sqlite.file import StoreOptions
from simulation.parts.virtual_disk import VirtualDisk, VirtualFiles
from simulation.world.disk import AMBIGUOUS, REFUSED, SYNC_FAILED, Disk, DiskFaults, DiskState
from simulation.world.stores import DrawnFaults

T = TypeVar("T")

_PATH: Final = "store.db"
_SEGMENT_BYTES: Final = 16 << 10
#: How often something is brought over behind an operation: a thread does that in a server.
_PASS_CHANCE: Final = 0.3
_SHARE: Final = 12
_NUMBERS: Final = count()


def has_journal(seed: int, store_id: int) -> bool:
    """Whether a store of a world is one with a journal."""
    return seed % _SHARE == _SHARE - 3 and store_id % 2 == 1


class JournalDisk(Disk):
    """The disk of such a store; it outlives the broker's processes."""

    def __init__(self, seed: int | str = 0, faults: DiskFaults | None = None) -> None:
        super().__init__(seed, faults)
        self.virtual = VirtualDisk(f"world-{next(_NUMBERS)}")
        self.files = VirtualFiles(self.virtual)

    def kill(self) -> Disk:
        """See Disk."""
        self._stop()
        self.virtual.come_back()
        return super().kill()

    def power_cut(self) -> Disk:
        """See Disk."""
        self._stop()
        self.virtual.lose_power(self.random)
        return super().kill()

    def held(self) -> DiskState:
        """See Disk; of a store that is open."""
        return self.owner.held() if isinstance(self.owner, JournaledStore) else self.seen

    def _stop(self) -> None:
        """Whatever the dying process still does reaches no disk."""
        self.virtual.cut_at = self.virtual.operations
        if isinstance(self.owner, JournaledStore):
            self.owner.close()


class JournaledStore(DrawnFaults, JournalStore):
    """The store of one life of a broker on such a disk."""

    def __init__(self, disk: JournalDisk, store_id: int, clock: Clock) -> None:
        super().__init__(
            _PATH,
            store_id,
            must_exist=_PATH in disk.virtual.files,
            options=StoreOptions(vfs=disk.virtual.name),
            salt=disk.random.randbytes,
            clock=clock,
            brings_over=False,
            segment_bytes=_SEGMENT_BYTES,
            files=disk.files,
        )
        self._disk: JournalDisk = disk

    def open(self) -> StoreContents:
        """See MessagingStore; refused while another life holds the disk, or by a drawn fault."""
        disk = self._disk
        if disk.owner not in (None, self):
            raise StoreFailed("the disk is locked by another process")
        if disk.random.random() < disk.faults.open_refused:
            raise StoreFailed("planted: the store cannot be opened")
        contents = super().open()
        disk.owner = self
        return contents

    def close(self) -> None:
        """See MessagingStore."""
        super().close()
        if self._disk.owner is self:
            self._disk.owner = None

    def commit(self, batch: CommitBatch) -> None:
        """See MessagingStore."""
        self._perform(lambda: super(JournaledStore, self).commit(batch))
        if self._disk.random.random() < _PASS_CHANCE:
            self.bring_over_due()

    def begin_generation(self, deletions: Iterable[Tombstone], counters: Mapping[int, bytes] | None = None) -> int:
        """See MessagingStore."""
        return self._perform(lambda: super(JournaledStore, self).begin_generation(deletions, counters))

    def add_fragments(self, asked: Sequence[Asked]) -> list[tuple[FragmentRow, list[SourceRow]]]:
        """See MessagingStore."""
        return self._perform(lambda: super(JournaledStore, self).add_fragments(asked))

    def drop_fragment(self, entity_id: int, fragment_no: int, limit: int) -> bool:
        """See MessagingStore."""
        return self._perform(lambda: super(JournaledStore, self).drop_fragment(entity_id, fragment_no, limit))

    def drop_source(self, entity_id: int, source_no: int, limit: int) -> bool:
        """See MessagingStore."""
        return self._perform(lambda: super(JournaledStore, self).drop_source(entity_id, source_no, limit))

    def probe(self) -> None:
        """See MessagingStore."""
        self._perform(super().probe)

    def held(self) -> DiskState:
        """What the store holds, as plain values."""
        state = DiskState()
        for key, fragment in self._fragments.items():
            state.fragments[key] = (fragment.entity_id, fragment.fragment_no, fragment.epoch)
        for key in self._sources:
            state.messages[key] = {
                row.count: (row.enqueued_ms, row.state, row.deliveries, row.payload, row.metadata, row.origin)
                for row in self.load(key, 1, 1 << 20)
            }
        return state

    def _perform(self, operation: Callable[[], T]) -> T:
        """Do one durable operation, with whatever fault is its turn."""
        disk = self._disk
        self._opened()
        if disk.owner is not self:
            raise StoreFailed("another process owns the disk now")
        disk.operations += 1
        fault = self.draw_fault()
        if fault == REFUSED:
            raise self._give_up("commit", StoreFailed("planted: refused before anything was stored"))
        if fault == SYNC_FAILED:
            disk.virtual.refuse_sync = disk.virtual.syncs + 1
        try:
            result = operation()
        finally:
            disk.virtual.refuse_sync = None
        if fault == AMBIGUOUS:
            raise self._give_up("commit", StoreFailed("planted: failed after everything was stored"))
        return result
