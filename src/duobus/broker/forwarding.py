"""Forwarding: which lanes there are, when they are tried again, and when ledgers forget (HTTP contract A.7).

One object for a scale unit. Queues with ForwardTo or ForwardDeadLetteredMessagesTo have a lane for each fragment; what
was sent via a queue has one for each destination, as long as there is anything for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from duobus.broker.fragment.ledger import Forget
from duobus.broker.fragment.slot import DEAD_LETTER, MAIN, TRANSFER
from duobus.broker.lane import Lane, origin_of
from duobus.broker.queue import SOURCE

if TYPE_CHECKING:
    from duobus.broker.fragment.fragment import Fragment
    from duobus.broker.fragment.ledger import Origin
    from duobus.broker.handle import FragmentHandle, Taker
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.namespace import Namespace
    from duobus.broker.queue import Queue

#: How often ledgers are looked at while they have entries.
SWEEP_S: Final = 1.0


class Exit:
    """Stands where a lender does in a fragment's handle: messages are forwarded, and only what is left is lent."""

    __slots__ = ("_lane", "_lender")

    def __init__(self, lane: Lane, lender: Taker) -> None:
        self._lane = lane
        self._lender = lender

    def offer(self, handle: FragmentHandle) -> None:
        """A fragment has available messages."""
        self._lane.pump()
        self._lender.offer(handle)


class ViaExit:
    """The same for what was sent via a queue."""

    __slots__ = ("_desk", "_queue")

    def __init__(self, desk: Forwarding, queue: Queue) -> None:
        self._desk = desk
        self._queue = queue

    def offer(self, handle: FragmentHandle) -> None:
        """A fragment has messages in its transfer queue."""
        self._desk.pump_via(self._queue, handle)


class Forwarding:
    """The lanes of a scale unit.

    Args:
        find_home: Gives a namespace by its name.
    """

    __slots__ = ("_find_home", "_is_stopped", "_lanes", "_ledgers", "_lives", "_origins", "_timer")

    def __init__(self, find_home: Callable[[str], Namespace]) -> None:
        self._find_home = find_home
        self._is_stopped = False
        # Fragment to its lanes, by channel and destination.
        self._lanes: dict[FragmentHandle, dict[tuple[int, str], Lane]] = {}
        # Fragment to its present life, and the first count that no earlier life can have sent on.
        self._lives: dict[FragmentHandle, tuple[Fragment, int]] = {}
        self._origins: dict[Origin, FragmentHandle] = {}
        # Fragments with entries in their ledger.
        self._ledgers: dict[FragmentHandle, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def home_of(self, queue: Queue) -> Namespace:
        """The namespace in which a queue finds its destinations."""
        return self._find_home(queue.namespace)

    # -- entities -----------------------------------------------------------------------------------------------

    def begin(self, queue: Queue) -> None:
        """A queue is new, has new properties, or is there again after a start."""
        about = queue.description
        for handle in queue.fragments:
            self._origins[origin_of(handle)] = handle
            self._note_life(handle)
            self._set(queue, handle, MAIN, about.forward_to)
            self._set(queue, handle, DEAD_LETTER, about.forward_dead_lettered_messages_to)
            handle.lenders[SOURCE, TRANSFER] = ViaExit(self, queue)
            self.pump_via(queue, handle)
        self.entity_changed(queue)

    def _set(self, queue: Queue, handle: FragmentHandle, channel: int, path: str | None) -> None:
        """Have the messages of a sub-queue forwarded to ``path``; None: to nowhere any more."""
        lanes = self._lanes.setdefault(handle, {})
        old = next((lane for (found, _), lane in lanes.items() if found == channel), None)
        if old is not None and path is not None and old.path.lower() == path.lower():
            old.retry()
            return
        lender: Taker = queue.lenders[channel]
        if channel == MAIN and queue.acceptor is not None:
            lender = queue.acceptor
        if old is not None:
            del lanes[channel, old.path.lower()]
            handle.lenders[SOURCE, channel] = lender
            old.close()
        if path is not None:
            lane = lanes[channel, path.lower()] = Lane(self, queue, handle, channel, path)
            handle.lenders[SOURCE, channel] = Exit(lane, lender)
            lane.pump()
        elif old is not None:
            lender.offer(handle)

    def end(self, queue: Queue) -> None:
        """A queue is gone."""
        for handle in queue.fragments:
            for lane in self._lanes.pop(handle, {}).values():
                lane.close()
            self._lives.pop(handle, None)
            self._origins.pop(origin_of(handle), None)
            self._ledgers.pop(handle, None)

    def stop(self) -> None:
        """Forward nothing more; what is not on its way was never taken, as far as a store knows."""
        self._is_stopped = True
        for lane in list(self._every()):
            lane.halt()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def entity_changed(self, queue: Queue) -> None:
        """An entity is there, is gone, or has changed: whoever waits for it tries again."""
        key = queue.path.lower()
        for lane in list(self._every()):
            if lane.path.lower() == key:
                lane.retry()

    def store_opened(self, broker: MessageBroker) -> None:
        """A store is there again: its fragments have begun a new life, and others may have waited for them."""
        for handle in self._origins.values():
            if handle.broker is broker:
                self._note_life(handle)
        for lane in list(self._every()):
            lane.retry()

    def _every(self) -> Iterator[Lane]:
        for lanes in self._lanes.values():
            yield from lanes.values()

    # -- via ----------------------------------------------------------------------------------------------------

    def pump_via(self, queue: Queue, handle: FragmentHandle) -> None:
        """Send on what was sent via a fragment, each to its destination."""
        fragment = handle.fragment
        if fragment is None or self._is_stopped:
            return
        lanes = self._lanes.setdefault(handle, {})
        for (channel, path), lane in list(lanes.items()):
            if channel == TRANSFER and lane.is_idle and path not in fragment.sources[SOURCE].transfers:
                del lanes[channel, path]
        for path in list(fragment.sources[SOURCE].transfers):
            found = lanes.get((TRANSFER, path))
            if found is None:
                found = lanes[TRANSFER, path] = Lane(self, queue, handle, TRANSFER, path)
            found.pump()

    # -- repeats ------------------------------------------------------------------------------------------------

    def _note_life(self, handle: FragmentHandle) -> None:
        fragment = handle.fragment
        if fragment is None:
            return
        if handle not in self._lives or self._lives[handle][0] is not fragment:
            self._lives[handle] = fragment, fragment.sources[SOURCE].next_count
            if fragment.sources[SOURCE].ledger.known:
                self.note_ledger(handle)

    def doubt_below(self, handle: FragmentHandle, fragment: Fragment) -> int:
        """Messages with lower counts may have been sent on in an earlier life of their fragment."""
        known = self._lives.get(handle)
        return known[1] if known is not None and known[0] is fragment else fragment.sources[SOURCE].next_count

    def note_ledger(self, handle: FragmentHandle) -> None:
        """A fragment has entries in its ledger, which are to be forgotten some time."""
        self._ledgers[handle] = None
        if self._timer is None and not self._is_stopped:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Have ledgers forget what their origins do not have any more."""
        self._timer = None
        ledgers, self._ledgers = self._ledgers, {}
        for handle in ledgers:
            fragment = handle.fragment
            if fragment is None:
                # It is noted again when its store is there.
                continue
            known = fragment.sources[SOURCE].ledger.known
            for origin, counts in list(known.items()):
                gone = self._gone(origin, list(counts))
                if gone:
                    handle.broker.submit(Forget(handle, SOURCE, None, origin=origin, counts=gone))
            if known:
                self.note_ledger(handle)

    def _gone(self, origin: Origin, counts: list[int]) -> list[int]:
        """Which messages their origin does not have any more; their removal is durable."""
        handle = self._origins.get(origin)
        if handle is None:
            # The entity was deleted with all that was in it.
            return counts
        if handle.fragment is None:
            return []
        source = handle.fragment.sources[SOURCE]
        return [count for count in counts if count not in source.by_count and not source.is_cold(count)]


def transfer_message_count(queue: Queue) -> int:
    """Messages that are to be forwarded and have not left yet (TransferMessageCount, HTTP contract A.7)."""
    number = 0
    about = queue.description
    for handle in queue.fragments:
        if handle.fragment is None:
            continue
        source = handle.fragment.sources[SOURCE]
        number += source.transferring
        number += source.numbers[MAIN] if about.forward_to is not None else 0
        number += source.numbers[DEAD_LETTER] if about.forward_dead_lettered_messages_to is not None else 0
    return number
