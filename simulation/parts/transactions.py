"""Transactions in the simulation: a client that works in them, in every good and bad way, and writes down what it sees.

Its sends and settlements end, in the history, when their transaction does: ok with a commit that was answered so, fail
with a rollback or a discharge that was never sent, info when a discharge had no answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

from duobus.amqp import (
    ACCEPTED,
    Coordinator,
    Declared,
    DeliveryState,
    EngineMisuse,
    Error,
    Link,
    Modified,
    Rejected,
    Source,
    TransactionalState,
)
from duobus.codec import Described, ULong, build_message
from simulation.history import events as h
from simulation.parts import scheduling
from simulation.parts.scheduling import Scheduling
from simulation.world.client import SimulatedClient
from simulation.world.connection import ANSWER_S
from simulation.world.message import Message, Received
from simulation.world.world import World

_OUTCOMES: dict[str, DeliveryState] = {
    h.COMPLETE: ACCEPTED,
    h.ABANDON: Modified(True, None, None),
    h.DEAD_LETTERED: Rejected(Error("com.microsoft:dead-letter", "poison", {"DeadLetterReason": "poison"})),
}
#: The text of an end that the client knows without an answer.
_CLIENT = "TrackingId:client"

_Answer = asyncio.Future[DeliveryState | None]


class TransactingClient(SimulatedClient):
    """A client with a coordinator link."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._coordinator: Link | None = None
        self._transactions = 0

    async def coordinator(self) -> None:
        """Attach the link that declares and discharges."""
        assert self._session is not None
        target = Coordinator(capabilities=["amqp:local-transactions"])
        self._coordinator = await self._attach(
            self._session.attach_sender("coordinator", Source(address="client"), target)
        )

    async def declare(self) -> SimulatedTransaction | None:
        """Begin a transaction; None when the broker refuses."""
        answer = self._ask(Described(ULong(0x31), [None]))
        self._flush()
        state = await asyncio.wait_for(answer, ANSWER_S)
        if not isinstance(state, Declared):
            return None
        self._transactions += 1
        return SimulatedTransaction(self, f"{self.name}/{self._transactions}", state.txn_id)

    def _ask(self, body: Described) -> _Answer:
        if not self.alive or self._coordinator is None:
            raise ConnectionError(h.LOST_LINK)
        return self._write(self._coordinator, build_message(None, None, body_value=body), None)

    def _write(self, link: Link, payload: bytes, state: DeliveryState | None) -> _Answer:
        """Write a delivery; its outcome."""
        self._tag += 1
        try:
            delivery_id = link.send_one(self._tag.to_bytes(4, "big"), payload, False, state=state)
        except EngineMisuse as gone:
            raise ConnectionError(h.LOST_LINK) from gone
        future: _Answer = asyncio.get_running_loop().create_future()
        self._sends[delivery_id] = future
        return future

    def put(self, link: Link, message: Message, txn_id: bytes) -> _Answer:
        """Send a message in a transaction."""
        return self._write(link, message.encode(), TransactionalState(txn_id))

    def name_delivery(self, item: Received, outcome: str, txn_id: bytes) -> _Answer:
        """Settle a delivery in a transaction."""
        if not self.alive or self._session is None:
            raise ConnectionError(h.LOST_LINK)
        future: _Answer = asyncio.get_running_loop().create_future()
        self._settles[item.delivery_id] = future
        state = TransactionalState(txn_id, _OUTCOMES[outcome])
        self._session.disposition(True, item.delivery_id, item.delivery_id, state, False)
        return future

    def end(self, txn_id: bytes, *, fail: bool) -> _Answer:
        """Discharge a transaction."""
        return self._ask(Described(ULong(0x32), [txn_id, fail]))

    def flush(self) -> None:
        """Write what waits."""
        self._flush()


class SimulatedTransaction:
    """One transaction of a client, in the history under ``name``."""

    def __init__(self, client: TransactingClient, name: str, txn_id: bytes) -> None:
        self.client = client
        self.name = name
        self.txn_id = txn_id
        self.history = client.world.history
        self.open: list[int] = []
        #: Operation, entity, uid or None, and answer of requests to management nodes.
        self.requests: list[tuple[int, str, str | None, asyncio.Future[tuple[int, str, Any]]]] = []
        #: Operation to the sequence number that it was told.
        self.told: dict[int, int] = {}
        #: Part of it could not be written.
        self.is_cut = False
        self._answers: list[tuple[int, _Answer]] = []

    def send(self, link: Link, entity: str, message: Message) -> None:
        """Send a message in it; nothing is written before ``flush``."""
        op = self.client._begin_send(entity, message, settled=False, transaction=self.name)
        self._do(op, lambda: self.client.put(link, message, self.txn_id))

    def settle(self, item: Received, outcome: str) -> None:
        """Settle a delivery in it."""
        assert item.event.token is not None
        op = self.history.next_op()
        begin = h.SettleBegin(op, self.client.name, item.event.token, outcome, transaction=self.name)
        self.history.append(begin)
        self._do(op, lambda: self.client.name_delivery(item, outcome, self.txn_id))

    def schedule(self, entity: str, message: Message) -> None:
        """Schedule a message in it, through the management node of the entity."""
        scheduling.schedule(self, entity, message)

    def cancel(self, entity: str, seq: int) -> None:
        """Cancel a scheduled message in it."""
        scheduling.cancel(self, entity, seq)

    def _do(self, op: int, work: Callable[[], _Answer]) -> None:
        self.open.append(op)
        try:
            self._answers.append((op, work()))
        except ConnectionError:
            # Nothing was written, so nothing of it may be done.
            self.is_cut = True

    async def answers(self) -> None:
        """Wait for the provisional outcomes; a refused piece of work ends at once."""
        await scheduling.answers(self)
        answers, self._answers = self._answers, []
        for op, answer in answers:
            with contextlib.suppress(ConnectionError, TimeoutError):
                state = await asyncio.wait_for(answer, ANSWER_S)
                if isinstance(state, Rejected):
                    self.open.remove(op)
                    error = state.error or Error("amqp:internal-error", "")
                    # What is refused for an earlier refusal can be tried again with all the rest.
                    busy = error.condition in ("com.microsoft:server-busy", "amqp:transaction:rollback")
                    self.history.append(h.Fail(op, error.condition, error.description or "", transient=busy))

    async def discharge(self, *, fail: bool, waits: bool = True) -> bool:
        """Commit it or roll it back; whether it was committed. ``waits``: for provisional outcomes, before that."""
        if self.is_cut:
            self.client.close()
            self.give_up()
            return False
        self.client.flush()
        if waits:
            await self.answers()
        op = self.history.next_op()
        self.history.append(h.DischargeBegin(op, self.client.name, self.name, fail=fail))
        try:
            answer = self.client.end(self.txn_id, fail=fail)
        except ConnectionError:
            self.history.append(h.Fail(op, "client:gone", _CLIENT))
            self.give_up()
            return False
        self.client.flush()
        if not waits:
            await self.answers()
        try:
            state = await asyncio.wait_for(answer, ANSWER_S)
        except (ConnectionError, TimeoutError) as error:
            reason = h.TIMED_OUT if isinstance(error, TimeoutError) else h.LOST_LINK
            self._end(lambda number: h.Fail(number, "client:rollback", _CLIENT) if fail else h.Info(number, reason))
            self.history.append(h.Info(op, reason))
            return False
        if isinstance(state, Rejected):
            refusal = state.error or Error("amqp:internal-error", "")
            text = refusal.description or ""
            self._end(lambda number: h.Fail(number, refusal.condition, text, transient=True))
            self.history.append(h.Fail(op, refusal.condition, text))
            return False
        self._end(
            lambda number: (
                h.Fail(number, "client:rollback", _CLIENT) if fail else h.Ok(number, seq=self.told.get(number))
            )
        )
        self.history.append(h.Ok(op))
        return not fail

    def give_up(self) -> None:
        """It was never discharged: nothing of it may ever be seen."""
        self._end(lambda number: h.Fail(number, "client:gave-up", _CLIENT, transient=True))

    def _end(self, event: Callable[[int], h.Event]) -> None:
        ops, self.open = self.open, []
        for op in ops:
            self.history.append(event(op))


async def transact(
    world: World,
    entity: str,
    number: int,
    connect: Callable[[str, type[TransactingClient]], Awaitable[Any]],
    in_phase: Callable[[], bool],
) -> None:
    """One client that moves messages in transactions until the phase ends."""
    rng = random.Random(f"transactor:{world.seed}:{number}")
    made = 0
    scheduling = Scheduling(world.seed, number)
    while in_phase():
        client = await connect("transactor", TransactingClient)
        if client is None:
            return
        with contextlib.suppress(ConnectionError, TimeoutError):
            await client.coordinator()
            sender, receiver = await client.sender(entity), await client.receiver(entity)
            await client.manage(entity)
            await asyncio.sleep(0.05)
            while not sender.credit and client.alive and in_phase():  # noqa: ASYNC110
                # It comes from another server.
                await asyncio.sleep(0.05)
            while in_phase() and client.alive:
                client.arrived.clear()
                client.grant(receiver, rng.choice((1, 3)))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(client.arrived.wait(), 0.3)
                transaction = await client.declare()
                if transaction is None:
                    break
                made += 1
                await _use(transaction, sender, entity, f"t{number}-{made}", rng, scheduling)
        client.close()
        await asyncio.sleep(0.1)


async def _use(
    transaction: SimulatedTransaction, sender: Link, entity: str, name: str, rng: random.Random, scheduling: Scheduling
) -> None:
    """Do in a transaction what applications do, good and bad, and end it."""
    client = transaction.client
    items = client.received[: rng.choice((0, 1, 1, 2))]
    key = _key_beside(client.world, entity, items[0] if items else None, rng)
    for item in items:
        client.received.remove(item)
        transaction.settle(item, rng.choice((h.COMPLETE, h.COMPLETE, h.COMPLETE, h.ABANDON, h.DEAD_LETTERED)))
    for number in range(rng.choice((0, 1, 2, 3))):
        message = Message(f"{name}-{number}", rng.randbytes(20), key)
        if rng.random() < 0.05:
            # On a partitioned entity an invalid operation (I34).
            message.key = rng.choice((None, f"key{rng.randint(0, 5)}"))
        transaction.send(sender, entity, message)
    scheduling.use(transaction, entity, name, key)
    if rng.random() < 0.3:
        # Provisional outcomes come first, and then the application takes its time: locks may end (I18).
        client.flush()
        await transaction.answers()
        await asyncio.sleep(rng.choice((0.1, 1.0, 3.5)))
    if rng.random() < 0.05:
        client.flush()
        client.close()
        transaction.give_up()
        return
    fail = rng.random() < 0.2
    done = await transaction.discharge(fail=fail, waits=rng.random() < 0.5)
    scheduling.ended(transaction, done=done)
    for item in items:
        # After a rollback it is still locked and may be settled again.
        if not done and client.alive and rng.random() < 0.5:
            await client.settle(item, h.COMPLETE)


def _key_beside(world: World, entity: str, item: Received | None, rng: random.Random) -> str | None:
    """A key for the messages of a transaction: on a partitioned entity one of the fragment where it settles."""
    if world.fragment_of(entity, "any") is None:
        return rng.choice((None, "key1"))
    for _ in range(1_000 if item is not None else 0):
        key = f"beside{rng.randint(0, 999)}"
        if item is not None and world.fragment_of(entity, key) == item.event.fragment:
            return key
    return f"key{rng.randint(0, 5)}"
