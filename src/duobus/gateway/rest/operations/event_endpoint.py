"""``GET /$duobus/events``: what happens, as server-sent events, for as long as the token is good."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

import msgspec
from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.errors import Unauthorized
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.request_target import Target
from duobus.model.descriptions import Right

#: Seconds without an event after which a comment shows that the connection is alive; the token is looked at then, too.
HEARTBEAT_S: Final = 15.0
#: Seconds that a client may take to read what was written, before its connection is closed.
WRITE_S: Final = 30.0


class EventQueue(Protocol):
    """What waits for one who listens; see ``duobus.server.operations.events``."""

    async def take(self, timeout_s: float) -> list[tuple[str, dict[str, Any]]] | None:
        """Wait for events, but not for longer; None when nothing more comes."""


class EventFeed(Protocol):
    """Where events come from; see ``duobus.server.operations.events``."""

    def listen(self, namespace: str) -> Any:
        """Begin to listen."""

    def leave(self, listener: Any) -> None:
        """Listen no more."""


class EventEndpoint:
    """Serves these requests for one server."""

    def __init__(self, feed: EventFeed, guard: Guard) -> None:
        self._feed = feed
        self._guard = guard
        self._heartbeat_s = HEARTBEAT_S

    async def answer(
        self, request: web.Request, target: Target, namespace: NamespaceRules
    ) -> web.StreamResponse | None:
        """Answer one request; None when it asks for something else.

        Raises:
            ServiceBusError: It is refused; the caller says so.
        """
        if (request.method, *target.lower[1:]) != ("GET", "events"):
            return None
        self._guard.demand(request, target, namespace, Right.MANAGE)
        listener = self._feed.listen(namespace.name)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        try:
            await response.prepare(request)
            await self._write(request, response, target, namespace, listener)
        except (ConnectionError, TimeoutError):
            # The client has gone, or does not read.
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._feed.leave(listener)
        return response

    async def _write(
        self,
        request: web.Request,
        response: web.StreamResponse,
        target: Target,
        namespace: NamespaceRules,
        listener: EventQueue,
    ) -> None:
        checked = asyncio.get_running_loop().time()
        while True:
            events = await listener.take(self._heartbeat_s)
            if events is None:
                return
            text = b"".join(_form_of(name, about) for name, about in events) or b": alive\n\n"
            now = asyncio.get_running_loop().time()
            if now - checked >= self._heartbeat_s:
                checked = now
                try:
                    self._guard.demand(request, target, namespace, Right.MANAGE)
                except Unauthorized as error:
                    text += _form_of("end", {"reason": str(error)})
                    events = None
            async with asyncio.timeout(WRITE_S):
                await response.write(text)
            if events is None:
                return


def _form_of(name: str, about: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(about))
