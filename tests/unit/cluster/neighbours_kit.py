"""What one of two units knows of the other, and asks it when entities move between them."""

from __future__ import annotations

import asyncio
from typing import Any

from clustered_kit import Owner

from duobus.cluster.directory import HERE, MOVING
from duobus.cluster.forwarding.protocol import ForwardReply, decode_reply, decode_request, encode, refusal
from duobus.errors import ServiceBusError

#: Virtual seconds that no move takes.
LONG_S = 30.0


class Wire:
    """What one unit asks another one, in the bytes that would travel."""

    is_gone = False

    def __init__(self, other: Owner, namespace: str) -> None:
        self._other = other
        self._namespace = namespace

    def ask(self, make: Any) -> asyncio.Future[ForwardReply]:
        return asyncio.ensure_future(self._answer(decode_request(encode(make(1)))))

    async def _answer(self, request: Any) -> ForwardReply:
        try:
            data = await self._other.unit.copies.answer(self._namespace, request)
        except ServiceBusError as error:
            return decode_reply(encode(refusal(request.number, error)))
        return decode_reply(encode(ForwardReply(request.number, data=data)))


class Neighbours:
    """What a unit knows of the only other one."""

    def __init__(self, own: Owner, other: Owner) -> None:
        self._own = own
        self._other = other

    def owner_of(self, store_id: int) -> str:
        for owner, name in ((self._own, HERE), (self._other, "other")):
            if store_id in owner.unit.adopted:
                return name
        return MOVING

    def where(self, namespace: str, key: str) -> str:
        store_id = self._own.unit.directory.store_of(namespace, key)
        return MOVING if store_id is None else self.owner_of(store_id)

    async def refresh(self) -> None:
        await self._own.unit.read_again()

    async def get(self, _address: str, namespace: str) -> Wire:
        return Wire(self._other, namespace)

    def close(self) -> None:
        """Nothing is open."""


def connect(first: Owner, second: Owner) -> None:
    """Have two units know each other, and that both know of moves."""
    for own, other in ((first, second), (second, first)):
        neighbours = Neighbours(own, other)
        own.unit.remote.connect(neighbours, neighbours)  # type: ignore[arg-type]
        own.unit.entity_moves.is_understood = lambda: True
