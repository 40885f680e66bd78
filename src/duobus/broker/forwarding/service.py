"""Forwarding: which forwarders there are, when each is tried again, and when accepted numbers are forgotten.

One object for a scale unit. Queues with ForwardTo or ForwardDeadLetteredMessagesTo have a forwarder for each fragment;
what was sent via a queue has one for each destination, as long as there is anything for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from duobus.broker.entities.queue import SOURCE
from duobus.broker.forwarding.batches import origin_of
from duobus.broker.forwarding.forwarder import Forwarder
from duobus.fragment.forward_dedup import ForgetForwarded
from duobus.fragment.message import DEAD_LETTER, MAIN, TRANSFER

if TYPE_CHECKING:
    from duobus.broker.entities.destination import ForwardSource
    from duobus.broker.entities.namespace import Namespace, RemoteEntities
    from duobus.broker.entities.queue import Queue
    from duobus.broker.forwarding.batches import InFlightBatch
    from duobus.broker.fragment_handle import AvailabilityListener, FragmentHandle
    from duobus.broker.message_broker import MessageBroker
    from duobus.fragment.commands import Group
    from duobus.fragment.forward_dedup import Origin
    from duobus.fragment.fragment import Fragment

#: How often a forward dedup is checked while it has entries.
SWEEP_S: Final = 1.0


class ForwardPath:
    """Stands where a credit scheduler does in a fragment's handle.

    Messages are forwarded, and only for what is left credit is granted.
    """

    __slots__ = ("_forwarder", "_scheduler")

    def __init__(self, forwarder: Forwarder, scheduler: AvailabilityListener) -> None:
        self._forwarder = forwarder
        self._scheduler = scheduler

    def offer(self, handle: FragmentHandle) -> None:
        """A fragment has available messages."""
        self._forwarder.pump()
        self._scheduler.offer(handle)


class ViaForwardPath:
    """The same for what was sent via an entity."""

    __slots__ = ("_entity", "_service", "_source_no")

    def __init__(self, service: ForwardingService, entity: ForwardSource, source_no: int) -> None:
        self._service = service
        self._entity = entity
        self._source_no = source_no

    def offer(self, handle: FragmentHandle) -> None:
        """A fragment has messages in its transfer queue."""
        self._service.pump_via(self._entity, self._source_no, handle)


class ForwardingService:
    """The forwarders of a scale unit.

    Attributes:
        remote_entities: Where origins are that this server does not have; None without other servers.

    Args:
        find_home: Gives a namespace by its name.
    """

    __slots__ = (
        "_dedups",
        "_find_home",
        "_forwarders",
        "_is_stopped",
        "_lives",
        "_origins",
        "_timer",
        "remote_entities",
    )

    def __init__(self, find_home: Callable[[str], Namespace]) -> None:
        self._find_home = find_home
        self._is_stopped = False
        self.remote_entities: RemoteEntities | None = None
        # Source of a fragment to its forwarders, by channel and destination. Those that forward nothing are not in it,
        # for all of it is checked whenever an entity is created or changed.
        self._forwarders: dict[Origin, dict[tuple[int, str], Forwarder]] = {}
        # The same to the fragment's present life, and the first count that no earlier life can have sent on.
        self._lives: dict[Origin, tuple[Fragment, int]] = {}
        self._origins: dict[Origin, FragmentHandle] = {}
        # Fragments with entries in their forward dedup.
        self._dedups: dict[FragmentHandle, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def namespace_of(self, entity: ForwardSource) -> Namespace:
        """The namespace in which an entity finds its destinations."""
        return self._find_home(entity.namespace)

    # -- entities -----------------------------------------------------------------------------------------------

    def begin(self, entity: ForwardSource, source_no: int = SOURCE) -> None:
        """An entity is new, has new properties, or is there again after a start."""
        about = entity.description
        for handle in entity.fragments:
            origin = origin_of(handle, source_no)
            self._origins[origin] = handle
            self._note_life(origin, handle)
            self._set(entity, source_no, handle, MAIN, about.forward_to)
            self._set(entity, source_no, handle, DEAD_LETTER, about.forward_dead_lettered_messages_to)
            handle.schedulers[source_no, TRANSFER] = ViaForwardPath(self, entity, source_no)
            self.pump_via(entity, source_no, handle)
        self.entity_changed(entity.path)

    def _set(
        self, entity: ForwardSource, source_no: int, handle: FragmentHandle, channel: int, path: str | None
    ) -> None:
        """Have the messages of a sub-queue forwarded to ``path``; None: to nowhere any more."""
        origin = origin_of(handle, source_no)
        forwarders = self._forwarders.get(origin, {})
        old = next((forwarder for (found, _), forwarder in forwarders.items() if found == channel), None)
        if old is not None and path is not None and old.path.lower() == path.lower():
            old.retry()
            return
        scheduler: AvailabilityListener = entity.schedulers[channel]
        if channel == MAIN and entity.acceptor is not None:
            scheduler = entity.acceptor
        if old is not None:
            del forwarders[channel, old.path.lower()]
            handle.schedulers[source_no, channel] = scheduler
            old.close()
        if path is not None:
            forwarder = forwarders[channel, path.lower()] = Forwarder(self, entity, source_no, handle, channel, path)
            self._forwarders[origin] = forwarders
            handle.schedulers[source_no, channel] = ForwardPath(forwarder, scheduler)
            forwarder.pump()
        elif old is not None:
            scheduler.offer(handle)

    def end(self, entity: ForwardSource, source_no: int = SOURCE) -> None:
        """An entity is gone."""
        for handle in entity.fragments:
            origin = origin_of(handle, source_no)
            # First, so that no new forwarder takes what an old one gives back: the entity may return with new handles.
            self._origins.pop(origin, None)
            for forwarder in self._forwarders.pop(origin, {}).values():
                forwarder.close()
            self._lives.pop(origin, None)
            self._dedups.pop(handle, None)

    def stop(self) -> None:
        """Forward nothing more; what is not on its way was never taken, as far as a store knows."""
        self._is_stopped = True
        for forwarder in list(self._every()):
            forwarder.halt()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def entity_changed(self, path: str) -> None:
        """An entity is there, or has changed: whoever waits for it tries again."""
        key = path.lower()
        for forwarder in list(self._every()):
            if forwarder.path.lower() == key:
                forwarder.retry()

    def store_opened(self, broker: MessageBroker) -> None:
        """A store is there again: its fragments have begun a new life, and others may have waited for them."""
        for origin, handle in self._origins.items():
            if handle.broker is broker:
                self._note_life(origin, handle)
        for forwarder in list(self._every()):
            forwarder.retry()

    def stranded(self, broker: MessageBroker) -> list[tuple[InFlightBatch, Group]]:
        """What was on its way into a store that this server has lost; see Forwarder."""
        return [found for forwarder in list(self._every()) for found in forwarder.stranded(broker)]

    def _every(self) -> Iterator[Forwarder]:
        for forwarders in self._forwarders.values():
            yield from forwarders.values()

    # -- via ----------------------------------------------------------------------------------------------------

    def pump_via(self, entity: ForwardSource, source_no: int, handle: FragmentHandle) -> None:
        """Send on what was sent via a fragment, each to its destination."""
        fragment, origin = handle.fragment, origin_of(handle, source_no)
        if fragment is None or self._is_stopped or self._origins.get(origin) is not handle:
            return
        transfers = fragment.sources[source_no].transfers
        forwarders = self._forwarders.get(origin, {})
        for (channel, path), forwarder in list(forwarders.items()):
            if channel == TRANSFER and forwarder.is_idle and path not in transfers:
                del forwarders[channel, path]
        for path in list(transfers):
            found = forwarders.get((TRANSFER, path))
            if found is None:
                found = forwarders[TRANSFER, path] = Forwarder(self, entity, source_no, handle, TRANSFER, path)
                self._forwarders[origin] = forwarders
            found.pump()

    # -- repeats ------------------------------------------------------------------------------------------------

    def _note_life(self, origin: Origin, handle: FragmentHandle) -> None:
        fragment = handle.fragment
        if fragment is None:
            return
        if origin not in self._lives or self._lives[origin][0] is not fragment:
            source = fragment.sources[origin[2]]
            self._lives[origin] = fragment, source.next_count
            if source.dedup.known:
                self.note_dedup(handle)

    def in_doubt_below(self, handle: FragmentHandle, source_no: int, fragment: Fragment) -> int:
        """Messages with lower counts may have been sent on in an earlier life of their fragment."""
        known = self._lives.get(origin_of(handle, source_no))
        return known[1] if known is not None and known[0] is fragment else fragment.sources[source_no].next_count

    def has_taken(self, origin: Origin, count: int) -> bool:
        """Whether an entity that is there has taken over a message of another store already (I14)."""
        return any(
            handle.fragment is not None and handle.fragment.sources[SOURCE].dedup.has(origin, count)
            for handle in self._dedups
        )

    def note_dedup(self, handle: FragmentHandle) -> None:
        """A fragment has entries in its forward dedup, which are to be forgotten some time."""
        self._dedups[handle] = None
        if self._timer is None and not self._is_stopped:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._forget_due)

    def _forget_due(self) -> None:
        """Have each forward dedup forget what its origins do not have any more."""
        self._timer = None
        dedups, self._dedups = self._dedups, {}
        for handle in dedups:
            fragment = handle.fragment
            if fragment is None:
                # It is noted again when its store is there.
                continue
            known = fragment.sources[SOURCE].dedup.known
            for origin, counts in list(known.items()):
                is_remote = origin not in self._origins and self.remote_entities is not None
                gone = (self.remote_entities.gone if is_remote and self.remote_entities else self.gone)(
                    origin, list(counts)
                )
                if gone:
                    handle.submit(ForgetForwarded(handle, SOURCE, None, origin=origin, counts=gone))
            if known:
                self.note_dedup(handle)

    def gone(self, origin: Origin, counts: list[int]) -> list[int]:
        """Which messages their origin, which is served here, does not have any more; their removal is durable."""
        handle = self._origins.get(origin)
        if handle is None:
            # The entity was deleted with all that was in it.
            return counts
        if handle.fragment is None:
            return []
        source = handle.fragment.sources[origin[2]]
        return [count for count in counts if count not in source.by_count and not source.is_paged_out(count)]


def transfer_message_count(queue: Queue) -> int:
    """Messages that are to be forwarded and have not left yet (TransferMessageCount; Azure: Service Bus REST API)."""
    number = 0
    about = queue.description
    for handle in queue.fragments:
        if handle.fragment is None:
            continue
        source = handle.fragment.sources[queue.source_no]
        number += source.transferring
        number += source.numbers[MAIN] if about.forward_to is not None else 0
        number += source.numbers[DEAD_LETTER] if about.forward_dead_lettered_messages_to is not None else 0
    return number
