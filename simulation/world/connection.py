"""SimulatedConnection: one connection with one session over the project's own engine, in virtual time."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any, Final, Self

from duobus.amqp import (
    Closed,
    Connection,
    ConnectionSettings,
    DeliveryState,
    Dispositions,
    Error,
    Link,
    LinkAttached,
    LinkDetached,
    Session,
    Source,
    Target,
    Transfers,
    plain_response,
)
from simulation.history import events as h
from simulation.history.survey_events import path_of
from simulation.world.message import Received

if TYPE_CHECKING:
    from simulation.world.world import World

ANSWER_S: Final = 20.0
#: Looks for credit, 50 ms apart.
CREDIT_TRIES: Final = 100


class SimulatedConnection(asyncio.Protocol):
    """One connection with one session.

    Attributes:
        name: Of the connection, in the history.
        received: Deliveries that came and are not settled, in order.
        alive: Whether the connection still is.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = False
        self.received: list[Received] = []
        self.arrived = asyncio.Event()
        self._engine = Connection(
            ConnectionSettings(name, mechanisms=("PLAIN",), sasl_response=plain_response(world.rule, world.key)),
            acceptor=False,
        )
        self._transport: asyncio.Transport | None = None
        self._session: Session | None = None
        self._attached: dict[str, asyncio.Future[None]] = {}
        self._sends: dict[int, asyncio.Future[DeliveryState | None]] = {}
        self._settles: dict[int, asyncio.Future[DeliveryState | None]] = {}
        self._requests: dict[uuid.UUID, asyncio.Future[tuple[int, str, Any]]] = {}
        self._entities: dict[Link, tuple[str, str]] = {}
        self._errors: dict[Link, Error | None] = {}
        self._tag = 0

    # -- the wire -----------------------------------------------------------------------------------------------

    @classmethod
    async def connect(cls, world: World, name: str) -> Self:
        """Open a connection and a session; raises OSError when the broker is not there."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(world, name), *world.door())
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.alive = True
        self._engine.open(self.world.loop.time_ms(), hostname=self.world.HOST)
        self._session = self._engine.begin()
        self._flush()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        for event in self._engine.receive(data, self.world.loop.time_ms()):
            if isinstance(event, Transfers):
                self._on_transfers(event)
            elif isinstance(event, Dispositions):
                self._on_dispositions(event)
            elif isinstance(event, LinkAttached):
                self._resolve(self._attached, event.link.name)
            elif isinstance(event, LinkDetached):
                self._errors[event.link] = event.error
                self._resolve(self._attached, event.link.name)
            elif isinstance(event, Closed) and self._transport is not None:
                self._transport.close()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol: whatever had no answer has none now."""
        if self.alive:
            self.alive = False
            self.world.history.append(h.LinkLost(self.name, self.world.broker_ms()))
        waiting: list[asyncio.Future[Any]] = [
            *self._attached.values(),
            *self._sends.values(),
            *self._settles.values(),
            *self._requests.values(),
        ]
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionError(h.LOST_LINK))
                future.exception()  # whoever waits gets it; nobody may
        self._attached, self._sends, self._settles, self._requests = {}, {}, {}, {}
        self.arrived.set()

    def close(self) -> None:
        """Close without ceremony, as a process that ends."""
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        output = self._engine.take_output()
        if output and self._transport is not None and not self._transport.is_closing():
            self._transport.write(output)

    @staticmethod
    def _resolve(futures: dict[str, asyncio.Future[None]], name: str) -> None:
        future = futures.pop(name, None)
        if future is not None and not future.done():
            future.set_result(None)

    async def _attach(self, link: Link) -> Link:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._attached[link.name] = future
        self._flush()
        await asyncio.wait_for(future, ANSWER_S)
        if not link.is_attached:
            error = self._errors.get(link)
            raise ConnectionError(f"attach refused: {error}")
        return link

    async def sender(self, entity: str) -> Link:
        """Attach a link to send on."""
        assert self._session is not None
        self._tag += 1
        name = f"s{self._tag}"
        return await self._attach(self._session.attach_sender(name, Source(address=name), Target(address=entity)))

    async def receiver(self, entity: str, *, subqueue: str = h.MAIN, removing: bool = False) -> Link:
        """Attach a link to receive on, without credit."""
        assert self._session is not None
        self._tag += 1
        link = self._session.attach_receiver(
            f"r{self._tag}",
            Source(address=path_of(entity, subqueue)),
            Target(address="client"),
            snd_settle_mode=1 if removing else 0,
            rcv_settle_mode=0 if removing else 1,
        )
        self._entities[link] = (entity, subqueue)
        return await self._attach(link)

    def grant(self, link: Link, credit: int, *, drain: bool = False) -> None:
        """Give credit."""
        link.grant(credit, drain=drain)
        self._flush()

    async def _credit(self, link: Link, number: int) -> None:
        """Wait for credit as an SDK does, and not for ever: it comes in a frame of its own behind the attach."""
        for _ in range(CREDIT_TRIES):
            if link.sendable() >= number or not self.alive or not link.is_attached:
                return
            await asyncio.sleep(0.05)

    def _on_transfers(self, event: Transfers) -> None:
        raise NotImplementedError

    def _on_dispositions(self, event: Dispositions) -> None:
        raise NotImplementedError
