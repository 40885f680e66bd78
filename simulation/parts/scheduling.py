"""What the simulation's transactors schedule and cancel in their transactions, and what they are told at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import TransactionalState
from duobus.codec import Array
from simulation.history import events as h
from simulation.history.events import NumberTold
from simulation.world.connection import ANSWER_S
from simulation.world.message import Message

if TYPE_CHECKING:
    from simulation.parts.transactions import SimulatedTransaction

#: Of ten transactions so many schedule something, or cancel it.
SHARE: Final = 0.3


class Scheduling:
    """What one transactor has scheduled, in committed transactions, and not cancelled yet."""

    def __init__(self, seed: int, number: int) -> None:
        # Drawn apart, so that what a transactor does else stays what it was.
        self._random = random.Random(f"scheduling:{seed}:{number}")
        self._numbers: list[int] = []

    def use(self, transaction: SimulatedTransaction, entity: str, name: str, key: str | None) -> None:
        """Schedule in a transaction, or cancel, or neither."""
        rng = self._random
        if rng.random() >= SHARE:
            return
        if self._numbers and rng.random() < 0.4:
            transaction.cancel(entity, self._numbers.pop(rng.randrange(len(self._numbers))))
            return
        message = Message(f"{name}-later", rng.randbytes(20), key)
        # Some are due before their transaction is discharged.
        message.scheduled_ms = transaction.client.world.clock.now_ms() + rng.choice((50, 500, 4_000))
        transaction.schedule(entity, message)

    def ended(self, transaction: SimulatedTransaction, *, done: bool) -> None:
        """Remember what can be cancelled from now on."""
        if done:
            self._numbers += transaction.told.values()


def schedule(transaction: SimulatedTransaction, entity: str, message: Message) -> None:
    """Write a request to schedule a message in a transaction."""
    entry = {"message-id": message.uid, "message": message.encode()}
    op = transaction.client._begin_send(entity, message, settled=False, transaction=transaction.name)
    _ask(transaction, op, entity, "schedule-message", {"messages": [entry]}, message.uid)


def cancel(transaction: SimulatedTransaction, entity: str, seq: int) -> None:
    """Write a request to cancel a scheduled message in a transaction."""
    op = transaction.history.next_op()
    transaction.history.append(h.CancelBegin(op, transaction.client.name, entity, seq))
    _ask(transaction, op, entity, "cancel-scheduled-message", {"sequence-numbers": Array(int, [seq])}, None)


def _ask(
    transaction: SimulatedTransaction, op: int, entity: str, operation: str, body: dict[str, Any], uid: str | None
) -> None:
    transaction.open.append(op)
    state = TransactionalState(transaction.txn_id)
    try:
        answer = transaction.client.ask_node(entity, operation, body, state)
    except ConnectionError:
        # Nothing was written, so nothing of it may be done.
        transaction.is_cut = True
    else:
        transaction.requests.append((op, entity, uid, answer))


async def answers(transaction: SimulatedTransaction) -> None:
    """Wait for the answers to requests; a refused one ends at once, a number that is told is noted."""
    requests, transaction.requests = transaction.requests, []
    for op, entity, uid, answer in requests:
        with contextlib.suppress(ConnectionError, TimeoutError):
            status, condition, body = await asyncio.wait_for(answer, ANSWER_S)
            if status == 408:
                # It may be reserved all the same, and then it is stored with the rest.
                continue
            if status >= 300:
                transaction.open.remove(op)
                name, _, text = condition.partition(" ")
                transaction.history.append(h.Fail(op, name, text, transient=status >= 500))
            elif uid is not None:
                seq = transaction.told[op] = int(body["sequence-numbers"].items[0])
                transaction.history.append(NumberTold(entity, seq, uid))
