"""HTTP requests about entities that another server has: sent on to it as they came, and its answers back."""

from __future__ import annotations

from collections.abc import Awaitable
from ssl import SSLCertVerificationError, SSLContext
from typing import Final, Protocol

from aiohttp import ClientConnectorCertificateError, ClientError, ClientSession, ClientTimeout, TCPConnector, web

from duobus.auth.authorizer import Authorizer
from duobus.errors import ArgumentInvalid
from duobus.gateway.rest.target import HOST, Target, parse_target
from duobus.gateway.tls import untrusted

#: Names the server that has sent a request on: it is sent on no more.
PASSED: Final = "X-Duobus-Passed-By"
#: Connections to all other servers at a time; more requests wait for one.
CONNECTIONS_MAX: Final = 256
#: Seconds to connect to another server, and for the whole answer: a receive waits for a minute at most.
CONNECT_S: Final = 5.0
ANSWER_S: Final = 120.0
_PIECE: Final = 1 << 16
#: What belongs to one connection and not to the message.
_HOP: Final = frozenset(
    ("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-connection", "expect")
)
#: First segments of what is this server's own, or of the whole namespace.
_OWN: Final = ("$duobus", "$namespaceinfo", "$cbs")
_LISTS: Final = "$resources"


class HttpWhereabouts(Protocol):
    """Who has which entity, for requests; see ``gateway/amqp/passing.py``."""

    node_id: str
    context: SSLContext | None

    def http_door_of(self, namespace: str, lower: tuple[str, ...], *, may_be_new: bool) -> str | None:
        """Address of the server that has what a path is in.

        None for this one, empty while it moves, ``?`` when nothing is known of any part of the path. ``may_be_new``:
        something is to be created there.
        """

    @property
    def is_joined(self) -> bool:
        """Whether this server can reach what it shares with the others."""

    def look_again(self) -> Awaitable[None]:
        """Read the catalog anew."""


class HttpPassing:
    """Sends requests on, for one server."""

    def __init__(self, whereabouts: HttpWhereabouts, authorizer: Authorizer) -> None:
        self._whereabouts = whereabouts
        self._authorizer = authorizer
        self._session: ClientSession | None = None

    @property
    def is_joined(self) -> bool:
        """Whether requests can be answered though no store is here."""
        return self._whereabouts.is_joined

    async def close(self) -> None:
        """Close the connections to the others."""
        if self._session is not None:
            await self._session.close()

    async def answer(self, request: web.Request) -> web.StreamResponse | None:
        """Another server's answer; None when the request is for this one."""
        try:
            target = parse_target(request.raw_path)
        except ArgumentInvalid:
            return None
        if not HOST.fullmatch(request.host) or not target.lower or target.lower[0] in _OWN:
            return None
        if target.lower[0] == _LISTS:
            return _refusal(501, "Servers that share a catalog do not list entities yet. Ask for them by name.")
        door = await self._door(request, target)
        if door is None:
            return None
        if not door or PASSED in request.headers:
            return _refusal(503, "The entity moves to another server. Please wait a second and try again.")
        try:
            return await self._send_on(request, door)
        except ClientConnectorCertificateError as error:
            found = error.certificate_error
            text = untrusted(door, found) if isinstance(found, SSLCertVerificationError) else str(found)
            return _refusal(503, f"The entity is served by another server, and {text}.")
        except (ClientError, OSError, TimeoutError) as error:
            return _refusal(503, f"The server of the entity cannot be reached ({type(error).__name__}). Try again.")

    async def _door(self, request: web.Request, target: Target) -> str | None:
        namespace = self._authorizer.namespace_of(request.host).name
        find = self._whereabouts.http_door_of
        door = find(namespace, target.lower, may_be_new=False)
        if door == "?":
            # It may have been created a moment ago, by another server.
            await self._whereabouts.look_again()
            door = find(namespace, target.lower, may_be_new=request.method == "PUT")
        return None if door == "?" else door

    async def _send_on(self, request: web.Request, door: str) -> web.StreamResponse:
        context = self._whereabouts.context
        if self._session is None:
            self._session = ClientSession(
                auto_decompress=False,
                connector=TCPConnector(limit=CONNECTIONS_MAX, ssl=context or True),
                timeout=ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S),
            )
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOP]
        headers.append((PASSED, self._whereabouts.node_id))
        from yarl import URL

        url = URL(f"{'https' if context else 'http'}://{door}{request.raw_path}", encoded=True)
        body = request.content if request.can_read_body else None
        async with self._session.request(
            request.method, url, headers=headers, data=body, allow_redirects=False
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


def _refusal(status: int, text: str) -> web.Response:
    return web.Response(
        status=status,
        text=f"<Error><Code>{status}</Code><Detail>{text}</Detail></Error>",
        content_type="application/xml",
        headers={"Retry-After": "1"} if status == 503 else None,
    )
