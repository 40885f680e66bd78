"""The part of a simulated run that is about sessions: clients that accept, use, keep and give back sessions."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from typing import TYPE_CHECKING, Any

from duobus.amqp import Link, Source, Target
from duobus.codec import Array, Symbol, UInt, scan
from simulation.history import events as h
from simulation.history.session_events import SessionAccepted, SessionRenewBegin, StateBegin, StateRead
from simulation.world.client import SimulatedClient
from simulation.world.message import Message, Received

if TYPE_CHECKING:
    from duobus.model.descriptions import QueueDescription
    from simulation.world.world import World

FILTER = Symbol("com.microsoft:session-filter")
UNTIL = Symbol("com.microsoft:locked-until-utc")
TICKS_EPOCH, TICKS_PER_MS = 621_355_968_000_000_000, 10_000
SESSIONS = 5
QUIET_MS = 3_000


class SessionMessage(Message):
    """A message of a session."""

    __slots__ = ()

    def properties(self) -> list[Any]:
        """See Message."""
        return [self.uid, *[None] * 9, self.key]

    def annotations(self) -> dict[Any, Any]:
        """The session places the message; it needs no other key."""
        found = super().annotations()
        found.pop(Symbol("x-opt-partition-key"), None)
        return found


class SessionClient(SimulatedClient):
    """A client that holds sessions, one at a time.

    Attributes:
        held: The link with the session, and the session's id.
    """

    held: tuple[Link, str] | None = None

    async def accept(self, queue: QueueDescription, session: str | None, wait_ms: int) -> str | None:
        """Accept a session by name, or the next available; its id, or None when it was refused."""
        assert self._session is not None
        self._tag += 1
        source = Source(address=queue.name, filter={FILTER: session})
        properties = {Symbol("com.microsoft:timeout"): UInt(wait_ms)}
        link = self._session.attach_receiver(
            f"r{self._tag}", source, Target(address="client"), rcv_settle_mode=1, properties=properties
        )
        self._entities[link] = (queue.name, h.MAIN)
        try:
            await self._attach(link)
        except ConnectionError:
            if self.alive:
                return None
            raise
        remote = link.remote
        if remote is None or remote.source is None or remote.properties is None:
            return None
        found = str(remote.source.filter[FILTER])  # type: ignore[index]
        until_ms = (int(remote.properties[UNTIL]) - TICKS_EPOCH) // TICKS_PER_MS
        fragment = self.world.fragment_of(queue.name, found) or 0
        granted_ms = until_ms - queue.lock_duration_ms
        self.world.history.append(SessionAccepted(self.name, queue.name, found, fragment, until_ms, granted_ms))
        self.held = link, found
        return found

    def give_back(self) -> None:
        """Close the link of the session, in order."""
        if self.held is not None and self.held[0].is_attached:
            self.held[0].detach()
            self._flush()
        self.held = None
        self.received.clear()

    def _delivery(self, payload: bytes, where: tuple[str, str], removed: bool) -> h.Delivery:
        delivery = super()._delivery(payload, where, removed)
        group = scan(payload).group_id
        delivery.session = None if group is None else str(group)
        return delivery

    async def settle_held(self, item: Received, outcome: str) -> bool:
        """Settle a message of the session; through the management node when its link is gone."""
        if item.link.is_attached and item.delivery_id >= 0:
            return await self.settle(item, outcome)
        token = item.event.token
        assert token is not None
        op = self.world.history.next_op()
        self.world.history.append(h.SettleBegin(op, self.name, token, outcome, management=True))
        body = {
            "disposition-status": {h.COMPLETE: "completed", h.ABANDON: "abandoned", h.DEFER: "defered"}[outcome],
            "lock-tokens": Array(uuid.UUID, [uuid.UUID(bytes_le=token)]),
            "session-id": item.event.session,
        }
        return await self._managed(op, item.event.entity, h.MAIN, "update-disposition", body) is not None

    async def renew_session(self, entity: str, session: str) -> None:
        """Renew the lock of a session."""
        op = self.world.history.next_op()
        self.world.history.append(SessionRenewBegin(op, self.name, entity, session))
        await self._managed(op, entity, h.MAIN, "renew-session-lock", {"session-id": session})

    async def set_state(self, entity: str, session: str, value: bytes | None) -> None:
        """Set or clear the state of a session."""
        op = self.world.history.next_op()
        begin = StateBegin(op, self.name, entity, session, value, self.world.broker_ms())
        self.world.history.append(begin)
        body = {"session-id": session, "session-state": value}
        await self._managed(op, entity, h.MAIN, "set-session-state", body)

    async def read_state(self, entity: str, session: str) -> None:
        """Ask for the state of a session."""
        begin_index = len(self.world.history)
        status, _, body = await self.request(entity, "get-session-state", {"session-id": session})
        if status == 200:
            value = body["session-state"]
            self.world.history.append(StateRead(self.name, entity, session, value, begin_index))

    async def fetch(self, entity: str, session: str, seq: int) -> Received | None:
        """A deferred message of a session that is held, locked; None when the broker refuses."""
        self.world.history.append(h.AskedFor(entity, seq))
        body = {
            "sequence-numbers": Array(int, [seq]),
            "receiver-settle-mode": UInt(1),
            "session-id": session,
        }
        status, _, answer = await self.request(entity, "receive-by-sequence-number", body)
        if status != 200 or self.held is None:
            return None
        entry = answer["messages"][0]
        delivery = self._delivery(entry["message"], (entity, h.MAIN), False)
        delivery.mode = h.DEFERRED
        delivery.token = entry["lock-token"].bytes_le
        self.world.history.append(delivery)
        return Received(self.held[0], -1, delivery)


class SessionClients:
    """Senders and receivers of one queue with sessions."""

    def __init__(self, world: World, queue: QueueDescription, stop_at: float, messages: int) -> None:
        self.world = world
        self.queue = queue
        self.stop_at = stop_at
        self.messages = messages
        self.deferred: dict[str, set[int]] = {}
        self._number = 0

    @property
    def _in_phase(self) -> bool:
        return self.world.loop.time() < self.stop_at

    async def _client(self, kind: str, *, drain: bool = False) -> SessionClient | None:
        self._number += 1
        while True:
            try:
                client = await SessionClient.connect(self.world, f"session-{kind}-{self._number}")
            except OSError:
                await asyncio.sleep(0.2)
                if not self._in_phase and not drain:
                    return None
            else:
                assert isinstance(client, SessionClient)
                return client

    async def sender(self, number: int) -> None:
        """Send messages of a few sessions, again when an answer was missing."""
        rng = random.Random(f"session-sender:{self.world.seed}:{number}")
        left = self.messages
        again: list[Message] = []
        while (left > 0 or again) and self._in_phase:
            client = await self._client("sender")
            if client is None:
                return
            with contextlib.suppress(ConnectionError, TimeoutError):
                link = await client.sender(self.queue.name)
                await asyncio.sleep(0.05)
                while (left > 0 or again) and self._in_phase and client.alive:
                    size = min(rng.choice((1, 1, 3, 6)), left)
                    messages = again or [self._message(rng, number, left - index) for index in range(size)]
                    left -= 0 if again else len(messages)
                    batch = len({message.key for message in messages}) == 1 and len(messages) > 1
                    ok = await client.send(link, self.queue.name, messages, batch=batch and rng.random() < 0.5)
                    again = [] if ok or rng.random() < 0.5 else messages
                    await asyncio.sleep(rng.choice((0.0, 0.02, 0.3)))
            client.close()
            await asyncio.sleep(0.05)

    def _message(self, rng: random.Random, sender: int, number: int) -> Message:
        session = f"s{rng.randrange(SESSIONS)}"
        message = SessionMessage(f"in-session-{sender}-{number}", rng.randbytes(rng.choice((0, 20, 200))), session)
        if rng.random() < 0.05:
            message.scheduled_ms = self.world.clock.now_ms() + rng.randint(100, 3_000)
        return message

    async def receiver(self, number: int) -> None:
        """Accept sessions and use them, well and badly."""
        rng = random.Random(f"session-receiver:{self.world.seed}:{number}")
        while self._in_phase:
            client = await self._client("receiver")
            if client is None:
                return
            with contextlib.suppress(ConnectionError, TimeoutError):
                while self._in_phase and client.alive:
                    name = f"s{rng.randrange(SESSIONS)}" if rng.random() < 0.4 else None
                    session = await client.accept(self.queue, name, rng.choice((0, 300, 1_000)))
                    if session is None:
                        await asyncio.sleep(0.1)
                        continue
                    await self._use(client, rng, session)
                    if rng.random() < 0.1:
                        break
                    client.give_back()
            client.close()
            await asyncio.sleep(0.1)

    async def _use(self, client: SessionClient, rng: random.Random, session: str) -> None:
        entity = self.queue.name
        await client.read_state(entity, session)
        assert client.held is not None
        link = client.held[0]
        for turn in range(rng.choice((1, 1, 3, 6))):
            if not client.alive or not link.is_attached:
                break
            client.arrived.clear()
            client.grant(link, rng.choice((1, 3, 10)))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.arrived.wait(), 0.2)
            for item in list(client.received):
                await self._treat(client, rng, item)
            if rng.random() < 0.5:
                value = None if rng.random() < 0.1 else f"{client.name}-{turn}-{rng.random():.6f}".encode()
                await client.set_state(entity, session, value)
            if rng.random() < 0.3:
                await client.read_state(entity, session)
            if rng.random() < 0.2:
                await client.renew_session(entity, session)
            if rng.random() < 0.08:
                # Longer than a lock lasts.
                await asyncio.sleep(self.queue.lock_duration_ms / 1000 + 0.3)
            for seq in sorted(self.deferred.get(session, ())):
                found = await client.fetch(entity, session, seq)
                if found is not None:
                    self.deferred[session].discard(seq)
                    await client.settle_held(found, h.COMPLETE)

    async def _treat(self, client: SessionClient, rng: random.Random, item: Received) -> None:
        client.received.remove(item)
        draw = rng.random()
        if draw < 0.06:
            # Not settled at all: it comes again when the session does.
            return
        if draw < 0.12:
            await asyncio.sleep(rng.choice((0.1, 1.0)))
        outcome = rng.choices((h.COMPLETE, h.ABANDON, h.DEFER), (12, 3, 1))[0]
        done = await client.settle_held(item, outcome)
        if outcome == h.DEFER and (done or rng.random() < 0.5):
            self.deferred.setdefault(item.event.session or "", set()).add(item.event.seq)

    async def drain(self) -> None:
        """Take sessions and complete what they have until none has anything, then look for deferred messages."""
        client = await self._client("drain", drain=True)
        assert client is not None
        while (session := await client.accept(self.queue, None, QUIET_MS)) is not None:
            await self._empty(client, session)
        for session in sorted(self.deferred):
            if await client.accept(self.queue, session, 0) is None:
                continue
            for seq in sorted(self.deferred[session]):
                found = await client.fetch(self.queue.name, session, seq)
                if found is not None:
                    await client.settle_held(found, h.COMPLETE)
            await client.read_state(self.queue.name, session)
            client.give_back()
        for number in range(SESSIONS):
            if await client.accept(self.queue, f"s{number}", 0) is not None:
                await client.read_state(self.queue.name, f"s{number}")
                client.give_back()
        client.close()

    async def _empty(self, client: SessionClient, session: str) -> None:
        assert client.held is not None
        link = client.held[0]
        while link.is_attached:
            client.arrived.clear()
            client.grant(link, 50)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.arrived.wait(), 0.3)
            if not client.received:
                break
            for item in list(client.received):
                client.received.remove(item)
                await client.settle_held(item, h.COMPLETE)
        await client.read_state(self.queue.name, session)
        client.give_back()
