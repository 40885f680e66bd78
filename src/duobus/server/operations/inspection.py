"""What is looked up of one entity for people: its locks with who holds them, and its sessions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from duobus.broker import COUNT_BITS, Queue, ScaleUnit, kind_of, sub_queue_of
from duobus.codec import DecodeError
from duobus.codec.sections import message_id_of
from duobus.errors import ArgumentInvalid, NotAllowed
from duobus.fragment.looking.held_locks import held_sessions, lock_of_session, locked_messages, note_ends
from duobus.fragment.looking.session_lists import describe, ids_after
from duobus.gateway.amqp.connection_list import summary_of
from duobus.gateway.amqp.lock_holders import holders_of_messages, holders_of_sessions
from duobus.gateway.waits import StepBudget
from duobus.model.address import Address

if TYPE_CHECKING:
    from duobus.broker import FragmentHandle, QueuedMessage, SessionLock
    from duobus.fragment.source import Source
    from duobus.gateway.amqp.peer import Peer
    from duobus.gateway.amqp.server import AmqpServer

#: Locks, and sessions, of one answer: by default, and at most.
PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 500

_CURSOR: Final = re.compile(r"(\d{1,5})\.([01])\.(\d{1,19})", re.ASCII)
#: Kinds of locks in a cursor: those of sessions come first in each fragment.
_OF_SESSION: Final = 0
_OF_MESSAGE: Final = 1
_STATES: Final = ("active", "deferred", "scheduled")
_SUB_QUEUES: Final = ("", "$DeadLetterQueue", "$Transfer/$DeadLetterQueue")
#: Steps of one slice, and what telling a lock or a session counts for.
_STEPS_AT_ONCE: Final = 2_000
_STEPS_OF_ROW: Final = 40


class _Held(NamedTuple):
    """One lock: of a session (``message`` is None), or of a message."""

    handle: FragmentHandle
    source: Source
    counter: int
    session: SessionLock | None
    message: QueuedMessage | None

    @property
    def cursor(self) -> str:
        kind = _OF_SESSION if self.message is None else _OF_MESSAGE
        return f"{self.handle.number}.{kind}.{self.counter}"


class Inspection:
    """Looks into the fragments when somebody asks, and into the connections for who holds what."""

    def __init__(self, unit: ScaleUnit, amqp: AmqpServer) -> None:
        self._unit = unit
        self._amqp = amqp

    async def locks(self, namespace: str, address: Address, after: str, limit: int | None) -> dict[str, Any]:
        """Return a page of the locks of an entity and ``next``, with which the page after that is asked for.

        Raises:
            EntityNotFound: There is no such entity.
            NotAllowed: It is a topic.
            ArgumentInvalid: ``after`` is not what an answer gave.
        """
        queue = self._entity(namespace, address)
        room = _bounded(limit)
        budget = StepBudget(_STEPS_AT_ONCE)
        held = await _page_of(queue, _cursor_of(after), room + 1, budget)
        await budget.spend(len(held) * _STEPS_OF_ROW)
        page = held[:room]
        ends, wanted = await self._ends(page, budget)
        peers = await holders_of_messages(self._amqp, wanted) if wanted else {}
        owners = await holders_of_sessions(self._amqp, queue) if any(one.session for one in page) else {}
        rows = []
        for one in page:
            if one.message is None:
                assert one.session is not None
                rows.append(_session_row(one.session, one.source, owners.get(one.session.session_id)))
            elif one.source.locks.get(one.counter) is one.message:
                # Whoever holds the session has its messages, too, over links of the same connection.
                peer = peers.get((one.handle, one.counter))
                if peer is None and one.session is not None:
                    peer = owners.get(one.session.session_id)
                rows.append(_message_row(one, one.message, ends.get((one.handle, one.counter)), peer))
            await budget.spend(_STEPS_OF_ROW)
        return {"entity": queue.path, "locks": rows, "next": page[-1].cursor if len(held) > room else None}

    async def sessions(self, namespace: str, address: Address, after: str | None, limit: int | None) -> dict[str, Any]:
        """Return a page of the sessions of an entity in the order of their ids, and ``next`` as above.

        Raises:
            EntityNotFound: There is no such entity.
            NotAllowed: It has no sessions.
        """
        queue = self._entity(namespace, address)
        if queue.acceptor is None:
            raise NotAllowed(f"The {queue.kind} '{queue.path}' does not require sessions, so it has none to list.")
        room = _bounded(limit)
        budget = StepBudget(_STEPS_AT_ONCE)
        found: dict[str, Source] = {}
        for handle in queue.fragments:
            if handle.fragment is None:
                continue
            source = handle.fragment.sources[queue.source_no]
            best: list[str] = []
            for part in ids_after(source, after, room + 1):
                best = part
                await budget.spend(_STEPS_AT_ONCE)
            # Of all fragments no more than one page is kept.
            found |= dict.fromkeys(best, source)
            found = {session_id: found[session_id] for session_id in sorted(found)[: room + 1]}
        rows = []
        names = list(found)
        for session_id in names[:room]:
            row = describe(found[session_id], session_id)
            if row is not None:
                rows.append(row)
            await budget.spend(_STEPS_OF_ROW)
        return {"entity": queue.path, "sessions": rows, "next": names[room - 1] if len(names) > room else None}

    def _entity(self, namespace: str, address: Address) -> Queue:
        queue = self._unit.namespace(namespace).resolve(address)
        if queue.kind == "topic":
            raise NotAllowed(f"The topic '{queue.path}' has no messages. Name a subscription.")
        return queue

    @staticmethod
    async def _ends(
        page: list[_Held], budget: StepBudget
    ) -> tuple[dict[tuple[FragmentHandle, int], tuple[int, int]], dict[FragmentHandle, list[int]]]:
        """(Beginning, end) of each lock of a message, and the counters of these locks by fragment."""
        wanted: dict[FragmentHandle, list[int]] = {}
        sources: dict[FragmentHandle, Source] = {}
        for one in page:
            if one.message is not None:
                wanted.setdefault(one.handle, []).append(one.counter)
                sources[one.handle] = one.source
        ends: dict[tuple[FragmentHandle, int], tuple[int, int]] = {}
        for handle, counters in wanted.items():
            found: dict[int, tuple[int, int]] = {}
            for steps in note_ends(sources[handle], counters, found):
                await budget.spend(steps)
            ends |= {(handle, counter): span for counter, span in found.items()}
        return ends, wanted


def _bounded(limit: int | None) -> int:
    return PAGE_DEFAULT if limit is None else max(1, min(limit, PAGE_MAX))


def _cursor_of(after: str) -> tuple[int, int, int]:
    if not after:
        return 0, _OF_SESSION, -1
    found = _CURSOR.fullmatch(after)
    if found is None:
        raise ArgumentInvalid("after is not the next of an earlier answer. Leave it out to begin at the first lock.")
    return int(found[1]), int(found[2]), int(found[3])


async def _page_of(queue: Queue, after: tuple[int, int, int], limit: int, budget: StepBudget) -> list[_Held]:
    first_fragment, first_kind, last = after
    held: list[_Held] = []
    for handle in sorted(queue.fragments, key=lambda one: one.number):
        if handle.number < first_fragment or handle.fragment is None:
            continue
        source = handle.fragment.sources[queue.source_no]
        is_first = handle.number == first_fragment
        if not is_first or first_kind == _OF_SESSION:
            beyond = last if is_first else -1
            for lock in held_sessions(source, beyond, limit - len(held)):
                held.append(_Held(handle, source, lock.number, lock, None))
        if len(held) < limit:
            beyond = last if is_first and first_kind == _OF_MESSAGE else -1
            found: list[tuple[int, QueuedMessage]] = []
            for part in locked_messages(source, beyond, limit - len(held)):
                found = part
                await budget.spend(_STEPS_AT_ONCE)
            for counter, message in found:
                held.append(_Held(handle, source, counter, lock_of_session(source, message), message))
        if len(held) >= limit:
            break
    return held


def _holder(peer: Peer | None) -> dict[str, Any]:
    return {"connection": None, "from": None, "client": None} if peer is None else summary_of(peer)


def _session_row(lock: SessionLock, source: Source, peer: Peer | None) -> dict[str, Any]:
    return {
        "kind": "session",
        "session": lock.session_id,
        "sinceMs": lock.until_ms - source.settings.lock_duration_ms,
        "untilMs": lock.until_ms,
        "messages": len(lock.unsettled(source.locks)),
    } | _holder(peer)


def _message_row(one: _Held, message: QueuedMessage, span: tuple[int, int] | None, peer: Peer | None) -> dict[str, Any]:
    if one.session is not None:
        span = one.session.until_ms - one.source.settings.lock_duration_ms, one.session.until_ms
    since_ms, until_ms = span or (None, None)
    try:
        message_id = message_id_of(message.payload)
    except DecodeError:
        message_id = None
    return {
        "kind": "message",
        "sequenceNumber": one.handle.number << COUNT_BITS | message.count,
        "messageId": message_id.hex() if isinstance(message_id, bytes) else message_id and str(message_id),
        "session": None if message.metadata is None else message.metadata.session_id,
        "subQueue": _SUB_QUEUES[sub_queue_of(message.state)],
        "state": _STATES[kind_of(message.state)],
        "deliveryCount": message.deliveries,
        "enqueuedMs": message.enqueued_ms,
        "sinceMs": since_ms,
        "untilMs": until_ms,
    } | _holder(peer)
