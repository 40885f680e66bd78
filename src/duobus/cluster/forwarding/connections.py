"""Connections of this server to others, over which it forwards messages; the other side is ``endpoint.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from ssl import SSLCertVerificationError, SSLContext
from typing import Any, Final

from duobus.amqp import (
    ANONYMOUS,
    Closed,
    ConnectionSettings,
    Link,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    Session,
    SessionEnded,
    Source,
    Target,
    Transfers,
)
from duobus.clock import Clock
from duobus.cluster.connection import CONNECT_S, FRAME_SIZE, IDLE_MS, ServerConnection, connect
from duobus.cluster.forwarding.endpoint import CHALLENGE, PROOF, proof_of, signing_key
from duobus.cluster.forwarding.protocol import ForwardReply, Request, decode_reply, encode
from duobus.errors import Undecodable
from duobus.gateway.amqp.router import FORWARDING_NODE
from duobus.gateway.tls import untrusted
from duobus.model.descriptions import AccessRule
from duobus.telemetry.logs import Log

#: How often heartbeats are seen to, in seconds.
TICK_S: Final = 0.5
#: A server that could not be reached is not tried again for so long, in seconds.
PAUSE_S: Final = 0.5
_REPLIES: Final = 1_000


class AmqpClusterConnection(ServerConnection):
    """One connection to another server, for one namespace.

    Attributes:
        is_gone: It has ended, or was never made.
        ready: Done when requests can be sent.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, settings: ConnectionSettings, key: str) -> None:
        super().__init__(loop, clock.monotonic_ms, settings)
        self.ready: asyncio.Future[None] = loop.create_future()
        self._key = key
        self._session: Session | None = None
        self._requests: Link | None = None
        self._replies: Link | None = None
        self._last = 0
        self._asked: dict[int, asyncio.Future[ForwardReply]] = {}
        self._waiting: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    # -- asyncio ------------------------------------------------------------------------------------------------

    def _opened(self) -> None:
        self._session = self._engine.begin()
        self._replies = self._session.attach_receiver(
            "replies", Source(address=FORWARDING_NODE), Target(address=FORWARDING_NODE)
        )
        self._tick()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        try:
            super().data_received(data)
        except Undecodable as error:
            self.fail(str(error))

    # -- requests -----------------------------------------------------------------------------------------------

    def ask(self, make: Callable[[int], Request]) -> asyncio.Future[ForwardReply]:
        """See sender.ClusterConnection."""
        future: asyncio.Future[ForwardReply] = self._loop.create_future()
        if self.is_gone:
            future.set_exception(ConnectionError("the connection to it has ended"))
            return future
        self._last += 1
        self._asked[self._last] = future
        self._waiting.append(encode(make(self._last)))
        self._send()
        return future

    def _send(self) -> None:
        requests = self._requests
        while self._waiting and requests is not None and requests.credit > 0:
            payload = self._waiting.pop(0)
            requests.send_one(b"\0", payload, settled=True)
        self.write_soon()

    # -- events -------------------------------------------------------------------------------------------------

    def _handle(self, event: Any) -> None:
        if isinstance(event, Transfers):
            self._take_replies(event)
        elif isinstance(event, LinkAttached):
            self._attached(event.link)
        elif isinstance(event, LinkFlow):
            if event.link is self._requests and not self.ready.done():
                self.ready.set_result(None)
            self._send()
        elif isinstance(event, LinkDetached):
            text = "it ended the link" if event.error is None else f"{event.error.description}"
            self.fail(text)
        elif isinstance(event, (Closed, SessionEnded)):
            self.fail("it has closed the connection")

    def _attached(self, link: Link) -> None:
        remote = link.remote
        if link is not self._replies or remote is None or remote.source is None:
            # A refusal follows, or credit.
            return
        challenge = next((value for name, value in (remote.properties or {}).items() if str(name) == CHALLENGE), None)
        if not isinstance(challenge, bytes) or self._session is None:
            self.fail("it has no challenge")
            return
        link.grant(_REPLIES)
        self._requests = self._session.attach_sender(
            "requests",
            Source(address=FORWARDING_NODE),
            Target(address=FORWARDING_NODE),
            properties={PROOF: proof_of(self._key, challenge)},
        )

    def _take_replies(self, event: Transfers) -> None:
        for payload in event.payloads:
            reply = decode_reply(payload)
            future = self._asked.pop(reply.number, None)
            if future is not None and not future.done():
                future.set_result(reply)
        if self._replies is not None and self._replies.credit <= _REPLIES // 2:
            self._replies.grant(_REPLIES)

    # -- bytes --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Heartbeats, and a server that is silent for too long."""
        if not self.is_gone:
            self._timer = self._loop.call_later(TICK_S, self._tick)
            self._handle_all(self._engine.tick(self._monotonic_ms()))
            self.write_soon()

    def _failed(self, text: str) -> None:
        """The connection is gone: nobody hears what became of what was asked."""
        error = ConnectionError(text)
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_exception(error)
                # Whoever asked may have gone.
                future.exception()
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()
        if self._timer is not None:
            self._timer.cancel()


class AmqpClusterConnections:
    """The connections to all other servers; see sender.ClusterConnections.

    Args:
        node_id: This server's name among the others.
        context: For TLS, or None for plain connections.
        rules: A namespace's access rules, as the catalog has them.
    """

    def __init__(
        self,
        node_id: str,
        context: SSLContext | None,
        clock: Clock,
        rules: Callable[[str], Iterable[AccessRule]],
    ) -> None:
        self._node_id = node_id
        self._context = context
        self._clock = clock
        self._rules = rules
        self._loop = asyncio.get_running_loop()
        self._log = Log("forwarding")
        self._connections: dict[tuple[str, str], AmqpClusterConnection] = {}
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        # Until when a server is not tried again, and why.
        self._shunned: dict[tuple[str, str], tuple[float, str]] = {}

    async def get(self, address: str, namespace: str) -> AmqpClusterConnection:
        """See sender.ClusterConnections."""
        key = address, namespace.lower()
        found = self._connections.get(key)
        if found is not None and not found.is_gone:
            return found
        async with self._locks.setdefault(key, asyncio.Lock()):
            found = self._connections.get(key)
            if found is not None and not found.is_gone:
                return found
            until_s, why = self._shunned.get(key, (0.0, ""))
            if self._loop.time() < until_s:
                raise ConnectionError(why)
            self._clear()
            try:
                made = await self._make(address, namespace)
            except ConnectionError as error:
                self._shunned[key] = self._loop.time() + PAUSE_S, str(error)
                self._log.warning("messages wait for a server", server=address, reason=str(error))
                raise
            self._connections[key] = made
            return made

    def _clear(self) -> None:
        """Forget what has ended: addresses of servers that are no more."""
        now_s = self._loop.time()
        self._connections = {key: connection for key, connection in self._connections.items() if not connection.is_gone}
        self._shunned = {key: entry for key, entry in self._shunned.items() if entry[0] > now_s}
        self._locks = {
            key: lock
            for key, lock in self._locks.items()
            if lock.locked() or key in self._connections or key in self._shunned
        }

    async def _make(self, address: str, namespace: str) -> AmqpClusterConnection:
        key = signing_key(self._rules(namespace))
        if key is None:
            raise ConnectionError(f"the namespace '{namespace}' has no access rule with Manage, which servers need")
        settings = ConnectionSettings(
            container_id=f"duobus-{self._node_id}",
            hostname=namespace,
            max_frame_size=FRAME_SIZE,
            idle_time_out_ms=IDLE_MS,
            mechanisms=(ANONYMOUS,),
        )
        connection = AmqpClusterConnection(self._loop, self._clock, settings, key)
        try:
            async with asyncio.timeout(CONNECT_S):
                await connect(connection, address, self._context)
                await asyncio.shield(connection.ready)
        except SSLCertVerificationError as error:
            connection.fail("its certificate is not good")
            raise ConnectionError(untrusted(address, error)) from error
        except ConnectionError as error:
            connection.fail(str(error))
            raise ConnectionError(f"the server at {address}: {error}") from error
        except (OSError, TimeoutError) as error:
            connection.fail(type(error).__name__)
            raise ConnectionError(f"the server at {address} cannot be reached ({type(error).__name__})") from error
        except BaseException:
            connection.fail("it is not needed any more")
            raise
        return connection

    def close(self) -> None:
        """See sender.ClusterConnections."""
        for connection in self._connections.values():
            connection.fail("this server stops")
        self._connections.clear()
