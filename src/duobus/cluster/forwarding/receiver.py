"""ForwardReceiver: accepts what other servers forward to entities of this one, each message once (I14).

As in one process a message is written together with an entry in the forward dedup of its fragment, in one commit, and
only then its origin learns that it is there. An origin that gets no answer sends the message again, to the server that
has the destination by then; the forward dedup, which is in the store, knows it.

Three things could still bring a message twice, and each has its rule:

- A repeat comes while the first is in a commit whose outcome is open: it has to wait (``InDoubt``).
- A connection brings a request late, when its origin has sent the message again on another connection and has removed
  it, and the forward dedup has forgotten it. A request counts only under the last registration of its origin, and only
  in that life of the destination in which the origin was registered.
- A former owner of the origin goes on: its registration has a lower epoch than the present owner's.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from duobus.broker.entities import destination as ends
from duobus.broker.entities.queue import SOURCE
from duobus.broker.forwarding.batches import NOBODY
from duobus.cluster.forwarding.protocol import ASKED_MAX, InDoubt
from duobus.errors import ServerBusy, ServiceBusError, StoreUnavailable
from duobus.fragment.commands import Command, Group
from duobus.fragment.forward_dedup import ForgetForwarded, QueryForwarded, RecordForwarded
from duobus.fragment.send import Run
from duobus.model.batches import Mailbox, SendBatch

if TYPE_CHECKING:
    from duobus.broker.entities.destination import Destination
    from duobus.broker.entities.queue import Queue
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.scale_unit import ScaleUnit
    from duobus.fragment.forward_dedup import Origin
    from duobus.model.metadata import MessageMetadata

#: Origins that are registered at one entity: more than all fragments of all entities that could forward to it.
LANDED_MAX: Final = 100_000


class OriginRegistration:
    """An origin that is registered at an entity.

    Attributes:
        entity: The entity, in its present life here.
        origin: The origin.
        epoch: Of its fragment.
    """

    __slots__ = ("entity", "epoch", "origin")

    def __init__(self, entity: Destination, origin: Origin, epoch: int) -> None:
        self.entity = entity
        self.origin = origin
        self.epoch = epoch


class _DestinationState:
    """What there is of an entity.

    Attributes:
        registrations: The last registration of each origin.
        open: Messages whose commit is not decided yet.
        pending: What waits for these.
    """

    __slots__ = ("open", "pending", "registrations")

    def __init__(self) -> None:
        self.registrations: dict[Origin, OriginRegistration] = {}
        self.open: dict[Origin, set[int]] = {}
        self.pending: dict[PendingAccept, None] = {}


class PendingAccept(Mailbox):
    """A forward request on its way into stores.

    Attributes:
        done: Gets the error, or None when all of it is durable.
    """

    __slots__ = ("_counts", "_groups", "_origin", "_receiver", "_state", "done")

    def __init__(self, receiver: ForwardReceiver, state: _DestinationState, origin: Origin, counts: list[int]) -> None:
        super().__init__()
        self.done: asyncio.Future[ServiceBusError | None] = asyncio.get_running_loop().create_future()
        self._receiver = receiver
        self._state = state
        self._origin = origin
        self._counts = counts
        self._groups: list[Group] = []

    def submit(self, groups: dict[MessageBroker, Group]) -> None:
        """Have it done; what is open until then, is noted."""
        self._state.pending[self] = None
        self._state.open.setdefault(self._origin, set()).update(self._counts)
        self._groups = list(groups.values())
        for broker, group in groups.items():
            broker.submit(group)

    def wake(self) -> None:
        """See Mailbox."""
        if len(self.ready) < len(self._groups):
            return
        del self._state.pending[self]
        still_open = self._state.open[self._origin]
        still_open.difference_update(self._counts)
        if not still_open:
            del self._state.open[self._origin]
        errors = [group.error for group in self._groups if group.error is not None]
        if len(errors) < len(self._groups):
            for group in self._groups:
                for member in group.members:
                    self._receiver.note_dedup(member.handle)
        error = errors[0] if errors else None
        if error is not None and len(errors) < len(self._groups):
            # Part of it is there: only a repeat can tell the origin of the rest.
            error = InDoubt(f"Part of the messages could not be taken: {error}")
        self.end(error)

    def end(self, error: ServiceBusError | None) -> None:
        """Tell what became of it."""
        if not self.done.done():
            self.done.set_result(error)


class FragmentAnswers(Mailbox):
    """Where the answers to questions come that were asked of several fragments.

    Attributes:
        done: All of them are there.
    """

    __slots__ = ("_number", "done")

    def __init__(self, number: int) -> None:
        super().__init__()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number = number

    def wake(self) -> None:
        """See Mailbox."""
        if len(self.ready) == self._number and not self.done.done():
            self.done.set_result(None)


class ForwardReceiver:
    """The entities of this server as destinations of others.

    Args:
        unit: Whose entities.
        is_here: Whether the store of the entity with this number is served by this server.
    """

    __slots__ = ("_is_here", "_states", "_unit")

    def __init__(self, unit: ScaleUnit, is_here: Callable[[int], bool]) -> None:
        self._unit = unit
        self._is_here = is_here
        self._states: dict[Destination, _DestinationState] = {}
        unit.follow(self._changed)

    def register(self, namespace: str, path: str, origin: Origin, epoch: int) -> OriginRegistration:
        """Register an origin: what still comes under an earlier registration of it does not count any more.

        Raises:
            NotAllowed: The origin has another owner by now.
            ServerBusy: Too many are registered.
            StoreUnavailable: The entity is not here.
        """
        home = self._unit.namespace(namespace)
        key = path.lower()
        entity: Queue | None = home.queues.get(key) or home.topics.get(key)
        if entity is None:
            raise StoreUnavailable(f"'{path}' is not at this server. Ask for its owner again.")
        state = self._states.setdefault(entity, _DestinationState())
        last = state.registrations.get(origin)
        if last is not None and last.epoch > epoch:
            raise StoreUnavailable("What forwards has a new owner, which has been here already.")
        if last is None and len(state.registrations) >= LANDED_MAX:
            raise ServerBusy(f"{LANDED_MAX} fragments forward to '{path}', which is the limit.")
        registration = state.registrations[origin] = OriginRegistration(entity, origin, epoch)
        return registration

    def is_current(self, registration: OriginRegistration) -> bool:
        """Whether a request may still come under a registration."""
        state = self._states.get(registration.entity)
        return state is not None and state.registrations.get(registration.origin) is registration

    def take(
        self,
        registration: OriginRegistration,
        counts: list[int],
        payloads: list[bytes],
        all_metadata: list[MessageMetadata],
    ) -> asyncio.Future[ServiceBusError | None]:
        """Accept messages; the future ends when they are durable, or with the reason why they are not.

        Raises:
            ServiceBusError: Nothing was accepted, or (``InDoubt``) that is not known yet.
        """
        entity, origin = registration.entity, registration.origin
        state = self._states.get(entity)
        if state is None or state.registrations.get(origin) is not registration:
            raise StoreUnavailable(f"This way to '{entity.path}' is not good any more. Land again.")
        if not state.open.get(origin, set()).isdisjoint(counts):
            raise InDoubt("They are in a commit that is not decided yet. Send them again.")
        dedups: list[tuple[FragmentHandle, dict[int, int]]] = []
        for handle in entity.fragments:
            if handle.fragment is None:
                raise StoreUnavailable(f"A store of '{entity.path}' is away, which may have them. Send them again.")
            known = handle.fragment.sources[SOURCE].dedup.known.get(origin)
            if known:
                dedups.append((handle, known))
        groups: dict[MessageBroker, Group] = {}
        pending = PendingAccept(self, state, origin, counts)
        fresh: list[int] = []
        for index, count in enumerate(counts):
            home = next((handle for handle, known in dedups if count in known), None)
            if home is None:
                fresh.append(index)
            elif home.broker not in groups:
                # It has them, perhaps in a commit that is under way: what comes behind that is answered behind it.
                behind: Command = ForgetForwarded(home, SOURCE, None, origin=origin, counts=[])
                groups[home.broker] = Group([behind], pending)
        if fresh:
            self._load(groups, pending, registration, [(counts[i], payloads[i], all_metadata[i]) for i in fresh])
        pending.submit(groups)
        return pending.done

    async def ask(self, registration: OriginRegistration, first: int) -> list[int]:
        """The numbers of an origin, from a count on, that the forward dedup here holds: ASKED_MAX at most, ascending.

        The answer is final for earlier lives of the origin: the registration has ended what they had on its way, and
        what had come before is decided.

        Raises:
            StoreUnavailable: The registration has ended, or a store is away that may have some.
        """
        found = FragmentAnswers(len(registration.entity.fragments))
        for handle in registration.entity.fragments:
            handle.submit(QueryForwarded(handle, SOURCE, found, origin=registration.origin))
        await found.done
        if not self.is_current(registration):
            raise StoreUnavailable(f"This way to '{registration.entity.path}' is not good any more. Land again.")
        error = next((ask.error for ask in found.ready if ask.error is not None), None)
        if error is not None:
            raise StoreUnavailable(str(error))
        return heapq.nsmallest(ASKED_MAX, [count for ask in found.ready for count in ask.taken if count >= first])

    def arrived(self, origin: Origin, epoch: int) -> None:
        """An origin is at this server now: what a former owner of it still has on its way here counts no more."""
        for entity, state in self._states.items():
            last = state.registrations.get(origin)
            if last is not None and last.epoch < epoch:
                state.registrations[origin] = OriginRegistration(entity, origin, epoch)

    def _load(
        self,
        groups: dict[MessageBroker, Group],
        pending: PendingAccept,
        registration: OriginRegistration,
        messages: list[tuple[int, bytes, MessageMetadata]],
    ) -> None:
        """Place messages, as a forwarder does (``forwarder.py``).

        Raises:
            ServiceBusError: The entity does not take them.
        """
        entity = registration.entity
        # It may be disabled, or forbid this otherwise.
        ends.demand_status(entity)
        for _, payload, metadata in messages:
            why = ends.fault(entity, payload, metadata)
            if why is not None:
                raise ends.Unfit(*why)
        batch = SendBatch(0, [payload for _, payload, _ in messages], False, NOBODY)
        batch.extra = {index: metadata for index, (_, _, metadata) in enumerate(messages)}
        if entity.is_partitioned:
            found = [ends.key_of(metadata) for _, _, metadata in messages]
            batch.keys = found if any(key is not None for key in found) else None
        entity.prepare(batch)
        # With duplicate detection the message ids are keys as well, so that all duplicates meet in one fragment (PE10).
        keys: list[bytes | None] = batch.keys or [None] * batch.n
        by_handle: dict[tuple[FragmentHandle, bool], list[int]] = {}
        keyless: FragmentHandle | None = None
        for index, key in enumerate(keys):
            fixed = ends.fixed_fragment(entity, key, 0)
            if fixed is not None:
                where = fixed, False
            elif entity.is_partitioned:
                keyless = keyless or entity.placement.keyless(batch.bytes_total)
                where = keyless, True
            else:
                where = entity.fragments[0], False
            by_handle.setdefault(where, []).append(index)
        for (handle, is_keyless), indices in by_handle.items():
            made = SendBatch(0, [batch.payloads[index] for index in indices], False, NOBODY)
            run = Run(
                handle, SOURCE, ends.sub_batch(batch, indices, made), None, entity.placement if is_keyless else None
            )
            counts = [messages[index][0] for index in indices]
            group = groups.setdefault(handle.broker, Group([], pending))
            group.members += [RecordForwarded(handle, SOURCE, origin=registration.origin, counts=counts, run=run), run]

    def note_dedup(self, handle: FragmentHandle) -> None:
        """A fragment has entries that are to be forgotten some time."""
        if handle.fragment is not None:
            self._unit.forwarding.note_dedup(handle)

    def gone(self, origin: Origin, counts: list[int]) -> list[int]:
        """Which of these messages their origin, which is here, does not have any more.

        Raises:
            StoreUnavailable: The origin is not here, or not wholly yet.
        """
        if not self._is_here(origin[0]):
            raise StoreUnavailable("The entity is not at this server. Ask for its owner again.")
        return self._unit.forwarding.gone(origin, counts)

    def _changed(self, queue: Queue) -> None:
        """An entity that has moved or is gone takes nothing; who waits for its commits has to ask its next owner."""
        if not queue.has_moved and not queue.is_deleted:
            return
        state = self._states.pop(queue, None)
        for pending in [] if state is None else state.pending:
            pending.end(InDoubt(f"'{queue.path}' has moved. Ask for its owner again."))
