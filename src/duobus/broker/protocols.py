"""What a message broker needs of others: a watcher, and plans of its fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from duobus.errors import OperationTimeout, ServiceBusError
from duobus.fragment.source import SourceSettings
from duobus.model.batches import Refusal
from duobus.storage.interface import StoreContents, Tombstone

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.pager import MemoryRoom
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.send import Run
    from duobus.fragment.topics.topic_state import TopicRules


class LateRefusal:
    """The refusal of a run of which nobody knows whether it is on disk; given when it cannot appear any more (I38).

    That is so once its tombstones are durable in other stores, or once its own stores were recovered without it. While
    all stores are away neither can happen: then the sender is told, in time, that nobody knows.
    """

    __slots__ = ("_error", "_is_given", "_run", "_tombstones_of")

    def __init__(self, run: Run, tombstones: list[Tombstone], error: ServiceBusError) -> None:
        self._run = run
        self._tombstones_of = list(tombstones)
        self._error = error
        self._is_given = False

    def settled(self, tombstone: Tombstone) -> None:
        """One of the tombstones has done its work, or is kept."""
        if tombstone in self._tombstones_of:
            self._tombstones_of.remove(tombstone)
            if not self._tombstones_of:
                self.give()

    def give(self) -> None:
        """Answer, unless that was done."""
        if self._is_given:
            return
        self._is_given = True
        batch = self._run.batch
        batch.reply.ready.append(Refusal(batch, self._run.indices, self._error))
        batch.reply.wake()

    def give_up(self) -> None:
        """Answer that nobody knows yet. The tombstones stay where they are: they are as good as this process."""
        self._error = OperationTimeout(
            "The messaging stores failed while they were to store this, and none can tell yet whether it is stored. "
            "Send it again: a first copy is deleted when its store is back, unless this server ends before."
        )
        self.give()


class StoreWatcher(Protocol):
    """Who hears of what happens to a store: the scale unit.

    Attributes:
        memory_room: What messages of all its stores may take in memory.
    """

    memory_room: MemoryRoom

    def demand_own(self, broker: MessageBroker, contents: StoreContents) -> None:
        """Raise StoreForeign when the store that was just opened is not the one that the catalog knows."""

    def store_opened(self, broker: MessageBroker, contents: StoreContents) -> None:
        """The store is open and its fragments are recovered."""

    def store_failed(self, broker: MessageBroker, error: BaseException) -> None:
        """The store failed; its fragments are away."""

    def run_lost(self, broker: MessageBroker, run: Run, tombstones: list[Tombstone]) -> None:
        """A run was not stored (no tombstones) or nobody knows: find it another place, or answer it."""

    def messages_missing(self, broker: MessageBroker, fragment: Fragment, number: int) -> None:
        """The store could not give so many messages back: it has quarantined them (I57)."""

    def messages_quarantined(self, broker: MessageBroker, found: list[tuple[Fragment | None, int, str]]) -> None:
        """Reading has found messages damaged: the fragment, if it is there, the count, and what is wrong."""

    def tombstones_lost(self, tombstones: list[tuple[Tombstone, LateRefusal]]) -> None:
        """The store that was to keep these tombstones failed: find them another."""

    def tombstones_of(self, store_id: int, generation: int) -> list[Tombstone]:
        """Runs of that store that were sent elsewhere since it was opened as ``generation``."""

    def forget_tombstones(self, store_id: int, generation: int) -> None:
        """Tombstones of that store up to that generation have been acted upon."""


class FragmentPlan:
    """What a message broker must know of a fragment to recover it: handle, settings per source, rules of a topic."""

    __slots__ = ("handle", "settings", "topic")

    def __init__(
        self, handle: FragmentHandle, settings: dict[int, SourceSettings], topic: TopicRules | None = None
    ) -> None:
        self.handle = handle
        self.settings = settings
        self.topic = topic
