"""Moving inside a fragment: messages are taken by number, and others are put straight into a sub-queue.

What is put in this way was a message of the broker already, so it is no send: neither a topic's rules nor duplicate
detection look at it. That is how a dead letter goes back to the one subscription that had it, and how an undone move
makes dead letters again. ``transfer.py`` has the other half: how what was taken leaves, or is given back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from duobus.errors import ServiceBusError
from duobus.fragment.admission import over_quota
from duobus.fragment.message import (
    ACTIVE,
    DEFERRED,
    FORWARDING,
    Slot,
    kind_of,
    state_of,
    stored_state,
    sub_queue_of,
)
from duobus.fragment.transfer import Departure
from duobus.model.metadata import Special
from duobus.storage.interface import CommitBatch, Put

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import Source
    from duobus.model.batches import Mailbox

_MOVABLE: Final = (ACTIVE, DEFERRED)


class Enter(Departure):
    """Put messages into a sub-queue of a source, under new numbers.

    Attributes:
        slots: After apply: the messages.
        payloads, specials: What they are.
        sub_queue: Where they go.
        grows: They are more than what leaves in the same commit, so that the size quota has a say.
    """

    __slots__ = ("grows", "payloads", "specials", "sub_queue")

    def __init__(
        self,
        handle: Any,
        source_no: int,
        reply: Mailbox | None,
        payloads: list[bytes],
        specials: list[Special],
        sub_queue: int,
        *,
        grows: bool,
    ) -> None:
        super().__init__(handle, source_no, reply, [])
        self.payloads = payloads
        self.specials = specials
        self.sub_queue = sub_queue
        self.grows = grows

    def fault(self, source: Source) -> ServiceBusError | None:
        """Why they cannot be put in now."""
        fragment: Fragment = self.handle.fragment
        size = sum([len(payload) for payload in self.payloads])
        if not self.grows or fragment.has_room(size):
            return None
        return over_quota(source.bytes, source.settings.max_bytes or 0)

    def apply(self, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Number them and write them down."""
        first = source.next_count
        state = state_of(self.sub_queue, ACTIVE)
        rows: dict[int, tuple[int, int, bytes | None]] = {}
        for index, payload in enumerate(self.payloads):
            special = self.specials[index]
            slot = Slot(first + index, payload, now_ms)
            slot.state = state
            slot.special = special
            rows[index] = (stored_state(state, special), 0, special.encode())
            source.counted(state, 1)
            source.bytes += len(payload)
            self.slots.append(slot)
        source.next_count = first + len(self.slots)
        commit.puts.append(Put(source.source_key, first, now_ms, self.payloads, rows))
        fragment: Fragment = self.handle.fragment
        if fragment.topic is not None and source.source_no:
            fragment.topic.pending += sum([len(payload) for payload in self.payloads])

    def release(self, fragment: Fragment, source: Source) -> None:
        """They are durable, so they can be had."""
        fragment.release_rare(source, self.slots)


def take(source: Source, sub_queue: int, counts: Iterable[int]) -> list[Slot]:
    """Take those messages of a sub-queue off that nobody has; they stand in no list until they leave or are back."""
    slots: list[Slot] = []
    for count in counts:
        slot = source.by_count.get(count)
        if slot is None or slot.lock or sub_queue_of(slot.state) != sub_queue or kind_of(slot.state) not in _MOVABLE:
            continue
        if kind_of(slot.state) == ACTIVE:
            slot = source.withdraw(slot)
        slot.lock = FORWARDING
        slots.append(slot)
    return slots
