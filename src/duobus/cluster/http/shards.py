"""Requests for messages of a sharded entity: which of its shards each goes to (decision 0029).

A send with a key belongs to the shard of the key, any other goes to the shards in turn; a receive asks one after the
other until one has something; a lock token names the shard that it is of. What is asked then is asked of a shard, as of
any queue, at its own address.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import quote

from aiohttp import web

from duobus.broker import string_key
from duobus.cluster.http.lists import ENTRY, entries_of, title_of
from duobus.cluster.sharding.shard_choice import ANY, shard_of_key, the_one
from duobus.cluster.shards import ShardedEntityMap
from duobus.errors import ArgumentInvalid, MessageLockLost, StoreUnavailable
from duobus.gateway.rest.atom.xml.runtime_info import AVAILABLE, LIMITED
from duobus.gateway.rest.request_target import Target
from duobus.gateway.rest.runtime import routes
from duobus.gateway.rest.runtime.broker_properties import BrokerProperties, read_header
from duobus.gateway.rest.runtime.messages import timeout_of
from duobus.gateway.rest.runtime.requests import batch_properties
from duobus.gateway.rest.runtime.routes import Call
from duobus.gateway.rest.runtime.sends import SEND_BYTES_MAX, is_batch_type

#: Between two looks through all shards for a message that is to come, in seconds.
PAUSE_S: Final = 0.25

_NUMBER: Final = re.compile(r"<(SizeInBytes|(?:d2p1:)?[A-Za-z]*MessageCount)>(\d+)<")
#: Its times have one form, so that the later one is the greater text.
_ACCESSED: Final = re.compile(r"<AccessedAt>([^<]*)<")

#: Sends a request on to a path of a shard, by its number; None when it has no server. With a body in place of its own.
Send = Callable[[int, str, bytes | None], Awaitable[web.StreamResponse | None]]
#: Gives the body of a request.
Read = Callable[[int], Awaitable[bytes]]


class HttpShardRouter:
    """Takes turns over the shards of all queues, for one server."""

    def __init__(self) -> None:
        self._turn = 0

    async def answer(
        self, call: Call, request: web.Request, target: Target, sharded: ShardedEntityMap, send: Send, read: Read
    ) -> web.StreamResponse:
        """The answer of the shard that a request is for; ``read``: gives its body, of so many bytes at most.

        Raises:
            ServiceBusError: There is none.
        """
        self._turn += 1
        if call.kind == routes.SEND:
            return await self._send(request, call, sharded, send, read)
        if call.kind in (routes.PEEK_LOCK, routes.RECEIVE):
            return await self._receive(target, call, sharded, send)
        try:
            token = uuid.UUID(call.token).bytes_le
        except ValueError:
            raise ArgumentInvalid("The lock token in the address is no GUID.") from None
        index = sharded.of_number(int.from_bytes(token[:2], "big"))
        if index is None:
            raise MessageLockLost("The lock token is not one of this entity. Receive the message again.")
        rest = f"{quote(call.message)}/{quote(call.token)}"
        return _found(await send(index, f"{_messages_of(sharded, index, call)}/{rest}{query_text(target.query)}", None))

    async def entry(
        self, own: web.StreamResponse, target: Target, sharded: ShardedEntityMap, send: Send
    ) -> web.StreamResponse:
        """What this server tells of an entity, with the numbers of all its shards."""
        if own.status != 200 or not isinstance(own, web.Response):
            return own
        texts = await _told(target, sharded, send)
        text = _limited(summed(own.text or "", texts), is_whole=len(texts) == len(sharded.shares))
        return web.Response(body=text.encode(), headers={"Content-Type": own.headers["Content-Type"]})

    async def subscriptions(
        self, own: web.StreamResponse, target: Target, topic: ShardedEntityMap, send: Send
    ) -> web.StreamResponse:
        """What this server tells of the subscriptions of a topic, with the numbers of all shards."""
        if own.status != 200 or not isinstance(own, web.Response):
            return own
        parts = [entries_of([text]) for text in await _told(target, topic, send, f"/{target.segments[-1]}")]
        is_whole = len(parts) == len(topic.shares)

        def completed(entry: str) -> str:
            title = title_of(entry)
            return _limited(summed(entry, [part[title] for part in parts if title in part]), is_whole=is_whole)

        text = ENTRY.sub(lambda entry: completed(entry[0]), own.text or "")
        return web.Response(body=text.encode(), headers={"Content-Type": own.headers["Content-Type"]})

    async def _send(
        self, request: web.Request, call: Call, sharded: ShardedEntityMap, send: Send, read: Read
    ) -> web.StreamResponse:
        body: bytes | None = None
        if is_batch_type(request.headers.get("Content-Type")):
            # It is stored as a whole, in one fragment.
            body = await read(SEND_BYTES_MAX)
            index = the_one(_shard_of(sharded, about) for about in batch_properties(body))
        else:
            text = request.headers.get("BrokerProperties")
            index = ANY if text is None else _shard_of(sharded, read_header(text))
        if index != ANY:
            return _found(await send(index, _messages_of(sharded, index, call), body), sharded.slots_of(index))
        for index in self._order(sharded):
            # A body can be sent on once: what an owner has begun to read it has answered, or nobody knows.
            answer = await send(index, _messages_of(sharded, index, call), body)
            if answer is not None:
                return answer
        return _found(None)

    async def _receive(self, target: Target, call: Call, sharded: ShardedEntityMap, send: Send) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_of(target.query)
        query = query_text({**target.query, "timeout": "0"})
        while True:
            answer: web.StreamResponse | None = None
            for index in self._order(sharded):
                found = await send(index, f"{_messages_of(sharded, index, call)}/head{query}", None)
                if found is not None and found.status != 204:
                    return found
                answer = answer or found
            if loop.time() + PAUSE_S >= end:
                return _found(answer)
            await asyncio.sleep(PAUSE_S)

    def _order(self, sharded: ShardedEntityMap) -> list[int]:
        number = len(sharded.shares)
        return [(self._turn + step) % number for step in range(number)]


def _shard_of(sharded: ShardedEntityMap, about: BrokerProperties) -> int:
    """The shard of a message with these properties; ANY when nothing decides."""
    text = about.session_id or about.partition_key
    if text is None and sharded.about.requires_duplicate_detection:
        # As the message is going to have it.
        text = about.message_id or None
    return shard_of_key(sharded, None if text is None else string_key(text))


def summed(text: str, parts: list[str]) -> str:
    """An entry with the numbers of its parts, added up, and the last time at which any of them was used."""
    totals: dict[str, int] = {}
    for part in parts:
        for name, number in _NUMBER.findall(part):
            totals[name] = totals.get(name, 0) + int(number)
    last = max((at for one in (text, *parts) for at in _ACCESSED.findall(one)), default="")
    text = _ACCESSED.sub(f"<AccessedAt>{last}<", text)
    return _NUMBER.sub(lambda found: f"<{found[1]}>{totals.get(found[1], 0)}<", text)


def _messages_of(sharded: ShardedEntityMap, index: int, call: Call) -> str:
    """The path of a shard's messages, or of those of the same sub-queue of it."""
    rest = call.entity[len(sharded.row.path) :]
    return quote(f"/{sharded.shares[index].path}{rest}/messages")


def query_text(query: Mapping[str, str]) -> str:
    """A query as it stands in an address."""
    text = "&".join(f"{quote(name)}={quote(value)}" for name, value in query.items())
    return f"?{text}" if text else ""


def _found(answer: web.StreamResponse | None, fragments: tuple[int, int, int] | None = None) -> web.StreamResponse:
    if answer is None:
        raise StoreUnavailable("That part of the queue has no server now. Try again in a few seconds.", fragments)
    return answer


async def _told(target: Target, sharded: ShardedEntityMap, send: Send, behind: str = "") -> list[str]:
    """What the shards tell of themselves, or of what stands behind their paths; those that do not are left out."""
    query = query_text(target.query)
    paths = [f"{quote(f'/{share.path}{behind}')}{query}" for share in sharded.shares]
    found = await asyncio.gather(*(send(index, path, None) for index, path in enumerate(paths)))
    return [one.text or "" for one in found if isinstance(one, web.Response) and one.status == 200]


def _limited(text: str, *, is_whole: bool) -> str:
    """A description that says so when not all shards have told their part."""
    return text if is_whole else text.replace(f">{AVAILABLE}<", f">{LIMITED}<")
