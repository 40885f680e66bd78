"""HTTP requests about entities that another server has: sent on to it as they came, and its answers back."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Awaitable, Sequence
from functools import partial
from ssl import SSLCertVerificationError, SSLContext
from typing import Any, Final, Protocol
from urllib.parse import quote

from aiohttp import ClientConnectorCertificateError, ClientError, ClientSession, ClientTimeout, TCPConnector, web
from yarl import URL

from duobus.auth.authorizer import Authorizer
from duobus.clock import Clock
from duobus.cluster.http.dead_letters import ShardedDeadLetters
from duobus.cluster.http.lists import LISTS, Listed, ListPage, PageSegment, entries_of, query_of
from duobus.cluster.http.shards import HttpShardRouter, query_text, summed
from duobus.cluster.shards import ShardedEntityMap
from duobus.errors import ArgumentInvalid, ServiceBusError
from duobus.gateway.rest.atom.paging import page_of
from duobus.gateway.rest.atom.resources import RULE, RULES, SUBSCRIPTION, SUBSCRIPTIONS, resource_of
from duobus.gateway.rest.atom.xml import documents
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.dead_letters.endpoint import ORDER_BYTES_MAX, is_dead_letter_request
from duobus.gateway.rest.keys.endpoint import entity_of
from duobus.gateway.rest.operations.endpoint import DRILLS, FRAGMENTS_MAX
from duobus.gateway.rest.request_bodies import BodyBudget, read_body
from duobus.gateway.rest.request_target import HOST, Target, parse_target
from duobus.gateway.rest.runtime.routes import Call, call_of, is_about_messages
from duobus.gateway.tls import untrusted
from duobus.model.address import parse_address
from duobus.model.descriptions import QUEUE, TOPIC

#: Names the server that has sent a request on: it is sent on no more.
PROXIED: Final = "X-Duobus-Passed-By"
#: Connections to all other servers at a time; more requests wait for one.
CONNECTIONS_MAX: Final = 256
#: Seconds to connect to another server, and for the whole answer: a receive waits for a minute at most.
CONNECT_S: Final = 5.0
ANSWER_S: Final = 120.0
_PIECE: Final = 1 << 16
#: Options of TCP: after 2 s of silence the other server is asked every second, and after 6 s it is given up.
_WATCHED: Final = (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 6_000))
#: What belongs to one connection and not to the message.
_HOP: Final = frozenset(
    ("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-connection", "expect")
)
#: First segments of what is this server's own, or of the whole namespace.
_OWN: Final = ("$duobus", "$namespaceinfo", "$cbs")
#: Address of the list of fragments.
FRAGMENTS: Final = ("$duobus", "fragments")
#: Address of the moves of fragments.
MOVES: Final = ("$duobus", "moves")
#: The number of a store in a path.
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_KINDS: Final = {"queues": QUEUE, "topics": TOPIC}
#: How often a list is asked for anew when entities came, went or moved meanwhile.
LIST_TRIES: Final = 3


class HttpOwnerDirectory(Protocol):
    """Who has which entity, for requests; see ``cluster/router.py``."""

    node_id: str
    context: SSLContext | None

    @property
    def own_http_address(self) -> str:
        """This server's own address."""

    def http_address_of(self, namespace: str, lower: tuple[str, ...], *, may_be_new: bool) -> str | None:
        """Address of the server that has what a path is in.

        None for this one, empty while it moves, ``?`` when nothing is known of any part of the path. ``may_be_new``:
        something is to be created there.
        """

    def listed(self, namespace: str, kind: str) -> Sequence[Listed]:
        """All entities of a kind, and who has them; this server with its own address."""

    def sharded_entity_of(self, namespace: str, key: str) -> ShardedEntityMap | None:
        """A queue, topic or subscription that lies in several stores, by its lower-case path; or None."""

    def http_address_at(self, store_id: int) -> str:
        """Address of the server that has a store, this one too; empty while it moves."""

    def http_addresses(self) -> Sequence[str]:
        """Addresses of all servers that are alive, this one too."""

    @property
    def is_member(self) -> bool:
        """Whether this server can reach what it shares with the others."""

    def refresh(self) -> Awaitable[None]:
        """Read the catalog again."""

    @property
    def knows_catalog(self) -> bool:
        """Whether the catalog's database is reached."""


class HttpProxy:
    """Sends requests on, for one server."""

    def __init__(self, owners: HttpOwnerDirectory, authorizer: Authorizer, clock: Clock) -> None:
        self._owners = owners
        self._authorizer = authorizer
        self._clock = clock
        self._session: ClientSession | None = None
        self._shard_router = HttpShardRouter()
        self._guard = Guard(authorizer, clock)
        # What bodies take of memory that are taken apart here.
        self._room = BodyBudget()

    @property
    def is_member(self) -> bool:
        """Whether requests can be answered though no store is here."""
        return self._owners.is_member

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
        if not HOST.fullmatch(request.host) or not target.lower:
            return None
        # The access rules of an entity are changed where the entity is.
        entity = entity_of(target)
        if (
            target.lower[0] in _OWN
            and entity is None
            and not (request.method == "GET" and target.lower in (FRAGMENTS, MOVES))
        ):
            return await self._of_owner(request, target)
        if PROXIED not in request.headers:
            # Who is asked by another server tells what it has itself.
            gathered = await self._of_several(request, target, is_about_keys=entity is not None)
            if gathered is not None:
                return gathered
        if entity is None and target.lower[0] in (*_OWN, LISTS):
            return None
        address = await self._address(request, entity or target.lower)
        if address is None:
            return None
        if address in ("", "?") or PROXIED in request.headers:
            what = "is not known: the catalog is not reached" if address == "?" else "moves to another server"
            return _refusal(503, f"The entity {what}. Please wait a second and try again.")
        return await self._sent_on(request, address)

    async def _of_several(
        self, request: web.Request, target: Target, *, is_about_keys: bool
    ) -> web.StreamResponse | None:
        """The answer to what concerns several servers; None when the request does not, or this one says as much."""
        if request.method == "GET" and target.lower == FRAGMENTS:
            rows = await self._rows_of_all(request)
            if isinstance(rows, web.Response):
                return rows
            rows.sort(key=lambda row: (row["entity"].lower(), row["fragment"]))
            return web.json_response(rows[:FRAGMENTS_MAX])
        if request.method == "GET" and target.lower == MOVES:
            rows = await self._rows_of_all(request)
            if isinstance(rows, web.Response):
                return rows
            rows.sort(key=lambda row: -int(row["begunMs"]))
            return web.json_response(rows)
        if is_about_keys or target.lower[0] in _OWN:
            return None
        if target.lower[0] == LISTS:
            return await self._list(request, target)
        if is_dead_letter_request(request.method, target):
            sharded = self._sharded_at(request, "/".join(target.segments[:-1]))
            return None if sharded is None else await self._of_dead_letters(request, target, sharded)
        topic = self._topic_of(request, target)
        if topic is not None:
            # Another server may have changed its subscriptions or their rules a moment ago.
            await self._owners.refresh()
            if request.method == "GET" and target.lower[-1] == SUBSCRIPTIONS:
                return await self._of_subscriptions(request, target, topic)
        whole = self._whole_of(request, target)
        return None if whole is None else await self._of_shards(request, target, *whole)

    def _topic_of(self, request: web.Request, target: Target) -> ShardedEntityMap | None:
        """The sharded topic whose subscriptions or rules are asked for, or changed."""
        resource = resource_of(target)
        if resource.kind not in (SUBSCRIPTIONS, SUBSCRIPTION, RULES, RULE) or is_about_messages(target):
            return None
        return self._sharded_at(request, resource.entity)

    async def _of_subscriptions(
        self, request: web.Request, target: Target, topic: ShardedEntityMap
    ) -> web.StreamResponse:
        """The list of a topic's subscriptions, with the numbers of all shards."""
        try:
            own = await self._whole(request, self._owners.own_http_address, request.raw_path)
            return await self._shard_router.subscriptions(own, target, topic, partial(self._of_shard, request, topic))
        except (ClientError, OSError, TimeoutError) as error:
            return _refusal(503, f"A server of the topic cannot be reached ({type(error).__name__}). Try again.")

    def _whole_of(self, request: web.Request, target: Target) -> tuple[Call | None, ShardedEntityMap] | None:
        """What is asked of a sharded entity: something of its messages, or for its entry (None).

        None altogether when it is about another entity, or changes this one, which any server does.
        """
        try:
            call = call_of(request.method, target)
        except ServiceBusError:
            return None
        if call is None and request.method != "GET":
            return None
        sharded = self._sharded_at(request, "/".join(target.lower) if call is None else call.entity)
        return None if sharded is None else (call, sharded)

    def _sharded_at(self, request: web.Request, path: str) -> ShardedEntityMap | None:
        """The sharded entity that an address is in."""
        try:
            key = parse_address(path).entity_key
        except ServiceBusError:
            return None
        return self._owners.sharded_entity_of(self._authorizer.namespace_of(request.host).name, key)

    async def _of_shards(
        self, request: web.Request, target: Target, call: Call | None, sharded: ShardedEntityMap
    ) -> web.StreamResponse:
        """The answer of a share; or, where nothing is asked of messages, the entry of all of them."""
        send = partial(self._of_shard, request, sharded)
        held = 0

        async def read(limit: int) -> bytes:
            nonlocal held
            body = await self._body(request, target, limit)
            held += len(body)
            return body

        try:
            if call is not None:
                return await self._shard_router.answer(call, request, target, sharded, send, read)
            own = await self._whole(request, self._owners.own_http_address, request.raw_path)
            return await self._shard_router.entry(own, target, sharded, send)
        except ServiceBusError as error:
            return _refusal(error.http_status, str(error))
        except (ClientError, OSError, TimeoutError) as error:
            return _refusal(503, f"The server of the entity cannot be reached ({type(error).__name__}). Try again.")
        finally:
            self._room.give(held)

    async def _of_shard(
        self, request: web.Request, sharded: ShardedEntityMap, index: int, path: str, body: bytes | None
    ) -> web.Response | None:
        """The answer of the owner of one shard; None when it has no server."""
        address = self._owners.http_address_at(sharded.store_of(index))
        return await self._whole(request, address, path, body) if address else None

    async def _of_dead_letters(self, request: web.Request, target: Target, sharded: ShardedEntityMap) -> web.Response:
        """What the shards say to work on the messages of all of them."""
        send = partial(self._of_shard, request, sharded)
        rest = tuple(target.segments[sharded.row.path.count("/") + 1 : -1])
        body = b""
        try:
            body = await self._body(request, target, ORDER_BYTES_MAX)
            return await ShardedDeadLetters(sharded, rest, send).answer(body)
        except ServiceBusError as error:
            return _refusal(error.http_status, str(error))
        except (ClientError, OSError, TimeoutError) as error:
            return _refusal(503, f"The server of the entity cannot be reached ({type(error).__name__}). Try again.")
        finally:
            self._room.give(len(body))

    async def _body(self, request: web.Request, target: Target, limit: int) -> bytes:
        """The body of a request, of somebody who has a good token; what it may do there the owner says.

        The caller gives the room for it back.

        Raises:
            ServiceBusError: It is too large, or the token is not good, or there is no room.
        """
        self._guard.demand(request, target, self._authorizer.namespace_of(request.host), None)
        return await read_body(request, limit, self._room)

    async def _rows_of_all(self, request: web.Request) -> web.Response | list[dict[str, Any]]:
        """The rows of a list of all servers, or a refusal."""
        addresses = self._owners.http_addresses()
        answers = await asyncio.gather(
            *(self._whole(request, address, request.raw_path) for address in addresses), return_exceptions=True
        )
        found = [answer for answer in answers if isinstance(answer, web.Response)]
        rows: list[dict[str, Any]] = []
        for answer in found:
            if answer.status == 200:
                rows += json.loads(answer.body if isinstance(answer.body, bytes) else b"[]")
        refused = [answer for answer in found if answer.status not in (200, 404)] or found
        if refused and not any(answer.status == 200 for answer in found):
            return refused[0]
        if not found:
            return _refusal(503, "No server of the cluster can be reached. Try again.")
        return rows

    async def _whole(self, request: web.Request, address: str, path: str, body: bytes | None = None) -> web.Response:
        """Another server's answer, as a whole; ``body``: in place of the request's own."""
        async with self._opened().request(
            request.method,
            self._url(address, path),
            headers=self._headers(request, keeps_length=body is None),
            data=body if body is not None else request.content if request.can_read_body else None,
            allow_redirects=False,
        ) as found:
            answer = web.Response(status=found.status, reason=found.reason, body=await found.read())
            for name, value in found.headers.items():
                if name.lower() not in _HOP and name.lower() not in ("content-length", "content-type"):
                    answer.headers.add(name, value)
            if "Content-Type" in found.headers:
                answer.headers["Content-Type"] = found.headers["Content-Type"]
            return answer

    async def _of_owner(self, request: web.Request, target: Target) -> web.StreamResponse | None:
        """Have the owner of a store do a drill with it, or the owner of a fragment move it.

        None when this server is it, or something else is asked for.
        """
        match request.method, *target.lower:
            case "POST", "$duobus", "stores", number, drill if drill in DRILLS and _NUMBER.fullmatch(number):
                address, what = self._owners.http_address_at(int(number)), f"Messaging store {number}"
            case "POST", "$duobus", "moves" if PROXIED not in request.headers:
                found = await self._owner_of_fragment(request, target)
                if found is None:
                    return None
                address, what = found, f"'{target.query.get('entity', '')[:100]}'"
            case _:
                return None
        if not address:
            return _refusal(503, f"{what} moves between servers. Please wait a second and try again.")
        if address == self._owners.own_http_address or PROXIED in request.headers:
            return None
        return await self._sent_on(request, address)

    async def _owner_of_fragment(self, request: web.Request, target: Target) -> str | None:
        """Address of the server that has a fragment that is to be moved; None when nobody has, or this server."""
        path, number = target.query.get("entity", ""), target.query.get("fragment", "")
        sharded = self._sharded_at(request, path)
        if sharded is not None:
            index = sharded.of_number(int(number)) if _NUMBER.fullmatch(number) else None
            return None if index is None else self._owners.http_address_at(sharded.store_of(index))
        try:
            lower = tuple(parse_address(path).key.split("/"))
        except ServiceBusError:
            # It is refused here.
            return None
        address = await self._address(request, lower)
        return "" if address == "?" else address

    async def _sent_on(self, request: web.Request, address: str) -> web.StreamResponse:
        try:
            return await self._send_on(request, address)
        except ClientConnectorCertificateError as error:
            found = error.certificate_error
            text = untrusted(address, found) if isinstance(found, SSLCertVerificationError) else str(found)
            return _refusal(503, f"The entity is served by another server, and {text}.")
        except (ClientError, OSError, TimeoutError) as error:
            return _refusal(503, f"The server of the entity cannot be reached ({type(error).__name__}). Try again.")

    async def _address(self, request: web.Request, lower: tuple[str, ...]) -> str | None:
        namespace = self._authorizer.namespace_of(request.host).name
        find = self._owners.http_address_of
        address = find(namespace, lower, may_be_new=False)
        if address == "?":
            # It may have been created a moment ago, by another server.
            await self._owners.refresh()
            address = find(namespace, lower, may_be_new=request.method == "PUT")
        return None if address == "?" and self._owners.knows_catalog else address

    async def _list(self, request: web.Request, target: Target) -> web.Response | None:
        """One feed of what all servers have; None when this one says as much alone."""
        kind = _KINDS.get(target.lower[1]) if len(target.lower) == 2 and request.method == "GET" else None
        if kind is None:
            return None
        try:
            page = page_of(target.query)
        except ArgumentInvalid:
            return None
        namespace = self._authorizer.namespace_of(request.host).name
        for _ in range(LIST_TRIES):
            # Another server may have changed something a moment ago.
            await self._owners.refresh()
            found = ListPage(self._owners.listed(namespace, kind), page)
            if not found.paths:
                return None
            answer = None if found.is_moving else await self._gathered(request, target, found)
            if answer is not None:
                return answer
        return _refusal(503, "Entities move between servers, or change. Please wait a second and list them again.")

    async def _gathered(self, request: web.Request, target: Target, page: ListPage) -> web.Response | None:
        """The feed of a page, or the first refusal; None when it is not what it was a moment ago."""
        try:
            answers = await asyncio.gather(*(self._part(request, target, part) for part in page.parts))
        except (ClientError, OSError, TimeoutError):
            return None
        refused = next((answer for answer in answers if answer.status != 200), None)
        if refused is not None:
            return refused
        url = f"{'https' if request.secure else 'http'}://{request.host}/{'/'.join(target.segments)}"
        texts = [answer.text or "" for answer in answers]
        completed = await self._completed(request, query_text(target.query), page, entries_of(texts))
        feed = page.assemble(target.lower[1].title(), url, texts, self._clock.now_ms(), completed)
        return None if feed is None else web.Response(text=feed, headers={"Content-Type": documents.FEED_TYPE})

    async def _completed(
        self, request: web.Request, query: str, page: ListPage, entries: dict[str, str]
    ) -> dict[str, str]:
        """The entries of the sharded queues on a page, with the numbers of all shards."""
        namespace = self._authorizer.namespace_of(request.host).name
        found: dict[str, str] = {}
        for key in map(str.lower, page.paths):
            sharded = self._owners.sharded_entity_of(namespace, key)
            if sharded is not None and key in entries:
                found[key] = await self._summed(request, query, sharded, entries[key])
        return found

    async def _summed(self, request: web.Request, query: str, sharded: ShardedEntityMap, entry: str) -> str:
        """The entry of a sharded queue with the numbers of all shards."""
        addresses = [self._owners.http_address_at(sharded.store_of(index)) for index in range(len(sharded.shares))]
        answers = await asyncio.gather(
            *(
                self._whole(request, address, f"{quote(f'/{share.path}')}{query}")
                for share, address in zip(sharded.shares, addresses, strict=True)
                if address
            ),
            return_exceptions=True,
        )
        return summed(entry, [one.text or "" for one in answers if isinstance(one, web.Response) and one.status == 200])

    async def _part(self, request: web.Request, target: Target, part: PageSegment) -> web.Response:
        path = f"/{'/'.join(target.segments)}?{query_of(target.query, part)}"
        async with self._opened().request(
            "GET", self._url(part.address, path), headers=self._headers(request), allow_redirects=False
        ) as found:
            text = await found.text()
            return web.Response(
                status=found.status, reason=found.reason, text=text, content_type=found.content_type, charset="utf-8"
            )

    def _opened(self) -> ClientSession:
        if self._session is None:
            self._session = ClientSession(
                connector=TCPConnector(
                    limit=CONNECTIONS_MAX, ssl=self._owners.context or True, socket_factory=watched_socket
                ),
                timeout=ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S),
                auto_decompress=False,
            )
        return self._session

    def _headers(self, request: web.Request, *, keeps_length: bool = True) -> list[tuple[str, str]]:
        headers = [
            (name, value)
            for name, value in request.headers.items()
            if name.lower() not in _HOP and (keeps_length or name.lower() != "content-length")
        ]
        return [*headers, (PROXIED, self._owners.node_id)]

    def _url(self, address: str, path: str) -> URL:
        return URL(f"{'https' if self._owners.context else 'http'}://{address}{path}", encoded=True)

    async def _send_on(self, request: web.Request, address: str) -> web.StreamResponse:
        body = request.content if request.can_read_body else None
        async with self._opened().request(
            request.method,
            self._url(address, request.raw_path),
            headers=self._headers(request),
            data=body,
            allow_redirects=False,
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


def watched_socket(where: tuple[Any, ...]) -> socket.socket:
    """A socket to another server that notices in seconds when that falls silent, also while it waits for an answer."""
    family, kind, protocol, *_ = where
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _WATCHED:
        # Not every system has all of them.
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _refusal(status: int, text: str) -> web.Response:
    return web.Response(
        status=status,
        text=f"<Error><Code>{status}</Code><Detail>{text}</Detail></Error>",
        content_type="application/xml",
        headers={"Retry-After": "1"} if status == 503 else None,
    )
