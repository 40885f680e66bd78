"""Relays of servers that share a catalog: a sender at one of them reaches listeners at another.

Every server has all relays, and its own listeners alone. A server whose relay has no listener asks the others, and
sends the request or the handshake on to one that has. What a server has told counts for FRESH_MS. Bytes of joined
WebSockets go through as they come: the frames of the sender are those that the other server gets.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from ssl import SSLContext
from typing import Any, Final, Protocol
from urllib.parse import quote

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web
from yarl import URL

from duobus.broker.entities.relay import HybridConnection
from duobus.clock import Clock
from duobus.cluster.http.proxied_handshake import HeadTooLarge, ProxiedHandshake
from duobus.cluster.http.proxy import CONNECT_S, PROXIED, watched_socket
from duobus.gateway.relay.refusals import RelayRefusal
from duobus.model.access_rules import sign_token
from duobus.model.descriptions import AccessRule, Right
from duobus.model.relay.limits import RESPONSE_S
from duobus.storage.catalog.leases import NodeEntry

#: How long a server waits for what another one tells of its listeners, in seconds.
ASK_S: Final = 2.0
#: How long that counts, in ms.
FRESH_MS: Final = 1_000
#: Relays of which it is kept who listens; then all of it is forgotten.
KNOWN_MAX: Final = 10_000
#: For how many seconds the token of such a question is good.
_TOKEN_S: Final = 60
_PIECE: Final = 1 << 16
#: What belongs to one connection and not to the message; what a body needs is set anew.
_HOP: Final = frozenset(("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "expect"))


class OtherNodes(Protocol):
    """The other servers; ``ClusterNode`` answers."""

    node_id: str
    context: SSLContext | None

    def nodes(self) -> Mapping[str, NodeEntry]:
        """Node id to server, of those that are alive, this one too."""


class ClusterRelays:
    """Sends what has no listener here on to servers that have one.

    Args:
        owners: The other servers.
        clock: Time.
        rules: Finds the access rules of a namespace, with whose keys questions are signed.
    """

    def __init__(self, owners: OtherNodes, clock: Clock, rules: Callable[[str], Iterable[AccessRule]]) -> None:
        self._owners = owners
        self._clock = clock
        self._rules = rules
        self._session: ClientSession | None = None
        self._known: dict[HybridConnection, tuple[int, list[str]]] = {}
        self._asking: dict[HybridConnection, asyncio.Future[list[str] | None]] = {}

    @property
    def tag(self) -> str:
        """What ids of this server's rendezvous have, so that every server knows whose they are."""
        return self._owners.node_id.replace("-", "")[:12]

    async def close(self) -> None:
        """Close the connections to the others."""
        if self._session is not None:
            await self._session.close()

    def is_proxied(self, request: web.Request) -> bool:
        """Whether another server has sent a request on: it is sent on no more."""
        return PROXIED in request.headers

    def address_of_tag(self, tag: str) -> str | None:
        """The address of another server by the tag of its rendezvous."""
        if tag == self.tag:
            return None
        nodes = self._owners.nodes()
        return next((node.http_address for id, node in nodes.items() if id.replace("-", "")[:12] == tag), None)

    # -- who listens ------------------------------------------------------------------------------------------------

    async def listening(self, request: web.Request, relay: HybridConnection) -> list[str] | None:
        """Addresses of the other servers that have listeners of a relay; None when one of them did not answer."""
        now_ms = self._clock.monotonic_ms()
        known = self._known.get(relay)
        if known is not None and now_ms - known[0] < FRESH_MS:
            return known[1]
        asking = self._asking.get(relay)
        if asking is None:
            asking = self._asking[relay] = asyncio.ensure_future(self._ask_all(request.host, relay))
            asking.add_done_callback(lambda _: self._asking.pop(relay, None))
        return await asyncio.shield(asking)

    async def _ask_all(self, host: str, relay: HybridConnection) -> list[str] | None:
        own = self._owners.node_id
        others = [node.http_address for node_id, node in self._owners.nodes().items() if node_id != own]
        rule = next((rule for rule in self._rules(relay.namespace) if rule.rights & int(Right.MANAGE)), None)
        if rule is None:
            return None if others else []
        expires_s = self._clock.now_ms() // 1000 + _TOKEN_S
        headers = {
            "Host": host,
            "Authorization": sign_token(f"http://{host}/", rule.name, rule.primary_key, expires_s),
            PROXIED: own,
        }
        path = f"/$duobus/relays/{quote(relay.path)}"
        counts = await asyncio.gather(*(self._ask(address, path, headers) for address in others))
        found = [address for address, count in zip(others, counts, strict=True) if count]
        if None in counts and not found:
            return None
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[relay] = self._clock.monotonic_ms(), found
        return found

    async def _ask(self, address: str, path: str, headers: Mapping[str, str]) -> int | None:
        try:
            timeout = ClientTimeout(total=ASK_S)
            async with self._opened().get(self._url(address, path), headers=headers, timeout=timeout) as answer:
                # 404: it has not read the catalog since the relay was made.
                return 0 if answer.status == 404 else int(json.loads(await answer.read())["listeners"])
        except (ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError):
            return None

    # -- sending on -------------------------------------------------------------------------------------------------

    async def proxy_request(self, request: web.Request, address: str) -> web.StreamResponse:
        """The answer of another server to an HTTP request, as it comes."""
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOP]
        body = request.content if request.can_read_body else None
        if body is not None and "Content-Length" in request.headers:
            # Of unknown length aiohttp sends it in chunks.
            headers = [(name, value) for name, value in headers if name.lower() != "content-length"]
            headers.append(("Content-Length", request.headers["Content-Length"]))
        answer: web.StreamResponse | None = None
        try:
            async with self._opened().request(
                request.method,
                self._url(address, request.raw_path),
                headers=[*headers, (PROXIED, self._owners.node_id)],
                data=body,
                allow_redirects=False,
                # The other server ends what takes too long; this one only notices that it is gone.
                timeout=ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=RESPONSE_S + 10),
            ) as found:
                answer = web.StreamResponse(status=found.status, reason=found.reason)
                for name, value in found.headers.items():
                    if name.lower() not in _HOP:
                        answer.headers.add(name, value)
                await answer.prepare(request)
                async for piece in found.content.iter_chunked(_PIECE):
                    await answer.write(piece)
                await answer.write_eof()
                return answer
        except (ClientError, OSError, TimeoutError) as error:
            if answer is not None:
                # The head is out: the sender learns of it by the connection's end.
                if request.transport is not None:
                    request.transport.abort()
                return answer
            raise _unreachable(address, error) from None

    async def proxy_handshake(self, request: web.Request, address: str) -> web.StreamResponse:
        """The answer of another server to the handshake of a WebSocket, and then the bytes of both sides."""
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    host.strip("[]"), int(port), ssl=self._owners.context, limit=_PIECE
                )
        except (OSError, TimeoutError, ValueError) as error:
            raise _unreachable(address, error) from None
        proxied = ProxiedHandshake(request, reader, writer)
        try:
            return await proxied.answer(((PROXIED, self._owners.node_id),))
        except (OSError, TimeoutError, HeadTooLarge, asyncio.IncompleteReadError) as error:
            raise _unreachable(address, error) from None
        finally:
            proxied.close()

    def _opened(self) -> ClientSession:
        if self._session is None:
            self._session = ClientSession(
                connector=TCPConnector(limit=0, ssl=self._owners.context or True, socket_factory=watched_socket),
                auto_decompress=False,
            )
        return self._session

    def _url(self, address: str, path: str) -> URL:
        return URL(f"{'https' if self._owners.context else 'http'}://{address}{path}", encoded=True)


def _unreachable(address: str, error: BaseException) -> RelayRefusal:
    return RelayRefusal(503, f"The listeners are at the server {address}, which cannot be reached ({_name(error)}).")


def _name(error: Any) -> str:
    return type(error).__name__
