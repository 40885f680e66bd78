"""HTTP requests of senders: over the control channel when they are small, over a rendezvous otherwise.

An answer of the application is known by the header Via, which names this relay: the relay's own errors never have it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import HttpVersion11, web

from duobus.auth.authorizer import NamespaceRules
from duobus.broker.entities.relay import HybridConnection
from duobus.gateway.relay.body_stream import BodyStream, RendezvousBroken
from duobus.gateway.relay.control_channel import Answer, ControlChannel
from duobus.gateway.relay.handshakes import headers_of, remote_of, without_tokens
from duobus.gateway.relay.hub import RelayHub
from duobus.gateway.relay.refusals import RelayRefusal
from duobus.gateway.relay.websocket_end import WebSocketEnd, demand_handshake
from duobus.model.descriptions import Right
from duobus.model.metering import RELAY_REQUEST
from duobus.model.relay import addresses
from duobus.model.relay.addresses import RelayTarget
from duobus.model.relay.description import WEBSOCKET
from duobus.model.relay.frames import BINARY, Piece
from duobus.model.relay.headers import (
    combined,
    description_of,
    end_to_end,
    size_of,
    via_appended,
    with_cookies_apart,
)
from duobus.model.relay.limits import (
    BODY_AHEAD_BYTES,
    CHANNEL_BODY_BYTES_MAX,
    CLOSE_ERROR,
    CLOSE_NORMAL,
    DESCRIPTION_LENGTH_MAX,
    HEADERS_BYTES_MAX,
)
from duobus.model.relay.messages import Rendezvous, Request, Response

#: Statuses that are the relay's own: what a listener answers with them becomes another.
_NOT_OF_LISTENERS: Final = frozenset((502, 504))
_OWN_FAULT: Final = 500
_FIRST_FINAL: Final = 200
_WITHOUT_BODY: Final = frozenset((204, 304))


class PendingRequest:
    """One HTTP request that waits for its response, wherever that comes.

    Attributes:
        relay: Where.
        done: The answer of the control channel, or the stream of a rendezvous.
    """

    def __init__(self, hub: RelayHub, relay: HybridConnection, key: str) -> None:
        self.relay = relay
        self._hub = hub
        self._usage = hub.counter_of(relay, RELAY_REQUEST, key)
        self.done: asyncio.Future[Answer | BodyStream] = asyncio.get_running_loop().create_future()
        #: The listener's rendezvous, once it is open.
        self.end: WebSocketEnd | None = None

    async def opened(self, request: web.Request, target: RelayTarget) -> web.StreamResponse:
        """See PendingSender."""
        demand_handshake(request)
        if self.done.done():
            raise RelayRefusal(410, "The sender is gone.")
        end = self.end = WebSocketEnd(request)
        stream = BodyStream(end)
        upgraded = end.open(request, stream, None)
        self.done.set_result(stream)
        try:
            await end.finished
        finally:
            end.feed_eof()
        return upgraded

    def count(self, requests: int, size_bytes: int) -> None:
        """Count this request, once, or bytes of its body or of the body of its answer."""
        self._hub.carried(self.relay, 0, size_bytes)
        self._usage.add(requests, size_bytes)

    def answered(self, answer: Answer) -> None:
        """The control channel has brought the response; None: one that HTTP does not allow."""
        if not self.done.done():
            self.done.set_result(answer)

    def fail(self, refusal: RelayRefusal) -> None:
        """See PendingSender."""
        if not self.done.done():
            self.done.set_exception(refusal)


class HttpRequests:
    """Serves the HTTP requests of one server's relays."""

    def __init__(self, hub: RelayHub) -> None:
        self._hub = hub

    async def answer(
        self, request: web.Request, target: RelayTarget, namespace: NamespaceRules, tracking_id: str
    ) -> web.StreamResponse:
        """Answer one request.

        Raises:
            RelayRefusal: The relay has no answer of the application.
        """
        hub = self._hub
        relay = hub.demand_relay(namespace.name, target)
        is_authorized = relay.description.requires_client_authorization
        who = hub.authorize(request, target, relay, namespace, Right.SEND).who if is_authorized else ""
        if relay.description.senders == WEBSOCKET:
            raise RelayRefusal(400, f"The hybrid connection '{relay.path}' takes WebSockets only.")
        if request.method == "CONNECT":
            raise RelayRefusal(405, "The relay does not take the method CONNECT.")
        headers = without_tokens(headers_of(request), target, is_authorized=is_authorized)
        headers = via_appended(end_to_end(headers), request.host)
        if size_of(headers) > HEADERS_BYTES_MAX:
            raise RelayRefusal(431, f"The headers have more than {HEADERS_BYTES_MAX} bytes together.")
        use = hub.use_of(relay)
        use.demand_room(relay.path)
        channel = hub.choose(relay)
        if channel is None:
            elsewhere = await hub.address_of_listeners(request, relay, 502)
            assert hub.others is not None
            await _invite_body(request)
            return await hub.others.proxy_request(request, elsewhere)
        waiting = PendingRequest(hub, relay, who)
        use.wait(waiting, channel)
        key = hub.promises.promise(waiting, None)
        channel.expect(key, waiting.answered)
        try:
            large = await self._send(request, target, channel, waiting, key, combined(headers))
            return await self._respond(request, waiting, channel, large)
        finally:
            use.waited(waiting)
            hub.promises.withdraw(key)
            channel.forget(key)
            if not waiting.done.done():
                waiting.done.cancel()
            elif not waiting.done.cancelled():
                # The refusal is read, or asyncio would log an error that was never retrieved.
                waiting.done.exception()
            if waiting.end is not None:
                waiting.end.close(CLOSE_NORMAL)

    async def _send(
        self,
        request: web.Request,
        target: RelayTarget,
        channel: ControlChannel,
        waiting: PendingRequest,
        key: str,
        headers: dict[str, str],
    ) -> Request | None:
        """Send a small request; return a large one, which goes over the rendezvous that the listener is asked for."""
        where = addresses.address(channel.about.base, target.raw_path, addresses.REQUEST, id=key)
        query = f"?{target.query}" if target.query else ""
        length = request.content_length
        is_small = not request.body_exists or (length is not None and length <= CHANNEL_BODY_BYTES_MAX)
        body = b""
        await _invite_body(request)
        if is_small and request.body_exists:
            try:
                async with asyncio.timeout(self._hub.response_s):
                    body = await request.content.read()
            except TimeoutError:
                raise RelayRefusal(408, "The body did not arrive in time.") from None
        has_body = bool(body) or not is_small
        message = Request(where, key, target.raw_path + query, request.method, headers, has_body, remote_of(request))
        waiting.count(1, len(body))
        if is_small:
            channel.send(message, body)
            return None
        channel.send(Rendezvous(where))
        return message

    async def _respond(
        self, request: web.Request, waiting: PendingRequest, channel: ControlChannel, large: Request | None
    ) -> web.StreamResponse:
        hub = self._hub
        try:
            async with asyncio.timeout(hub.response_s):
                found = await asyncio.shield(waiting.done)
        except TimeoutError:
            if channel.vigil.left_unanswered():
                hub.cut(waiting.relay, channel)
            raise RelayRefusal(504, f"The listener of '{waiting.relay.path}' has not answered in time.") from None
        if not isinstance(found, BodyStream):
            response, body = self._demand(found)
            return await self._whole(request, waiting, response, body)
        assert waiting.end is not None
        sending: asyncio.Task[None] | None = None
        try:
            if large is not None:
                waiting.end.send_text(large.to_json())
                sending = asyncio.get_running_loop().create_task(
                    self._send_body(request, waiting, waiting.end), name="relay-body"
                )
            response, _ = self._demand((await found.head(hub.response_s), b""))
            channel.vigil.answered()
            return await self._streamed(request, waiting, response, found)
        except TimeoutError:
            raise RelayRefusal(504, f"The listener of '{waiting.relay.path}' has not answered in time.") from None
        except RendezvousBroken as error:
            raise RelayRefusal(502, f"The rendezvous has brought no response: {error}.") from None
        finally:
            if sending is not None:
                sending.cancel()

    async def _send_body(self, request: web.Request, waiting: PendingRequest, end: WebSocketEnd) -> None:
        """Hand the body on as it comes, as fast as the listener reads."""
        is_first = True
        try:
            async for part in request.content.iter_any():
                waiting.count(0, len(part))
                for pos in range(0, len(part), BODY_AHEAD_BYTES):
                    end.send_piece(Piece(BINARY, part[pos : pos + BODY_AHEAD_BYTES], is_first, False))
                    is_first = False
                if end.is_full:
                    await end.drained()
        except (OSError, ValueError, web.HTTPException):
            end.close(CLOSE_ERROR, "The sender's body has ended too early.")
            return
        end.send_piece(Piece(BINARY, b"", is_first, True))

    def _demand(self, found: Answer) -> tuple[Response, bytes]:
        if found is None or found[0].status < _FIRST_FINAL:
            raise RelayRefusal(502, "The listener has answered with something that is no response of HTTP.")
        if size_of(found[0].headers.items()) > HEADERS_BYTES_MAX:
            raise RelayRefusal(502, f"The listener's response has headers of more than {HEADERS_BYTES_MAX} bytes.")
        return found

    def _head(
        self, request: web.Request, waiting: PendingRequest, response: Response
    ) -> tuple[int, str | None, list[tuple[str, str]]]:
        status = _OWN_FAULT if response.status in _NOT_OF_LISTENERS else response.status
        self._hub.answered(waiting.relay, status)
        reason = description_of(response.description, DESCRIPTION_LENGTH_MAX) or None
        headers = with_cookies_apart(end_to_end(response.headers.items()))
        return status, reason, via_appended(headers, request.host)

    async def _whole(
        self, request: web.Request, waiting: PendingRequest, response: Response, body: bytes
    ) -> web.StreamResponse:
        status, reason, headers = self._head(request, waiting, response)
        waiting.count(0, len(body))
        return web.Response(status=status, reason=reason, headers=headers, body=body or None)

    async def _streamed(
        self, request: web.Request, waiting: PendingRequest, response: Response, stream: BodyStream
    ) -> web.StreamResponse:
        status, reason, headers = self._head(request, waiting, response)
        answer = web.StreamResponse(status=status, reason=reason, headers=headers)
        await answer.prepare(request)
        is_bare = request.method == "HEAD" or status in _WITHOUT_BODY
        try:
            while data := await stream.next(self._hub.response_s):
                waiting.count(0, len(data))
                if not is_bare:
                    await answer.write(data)
        except (TimeoutError, RendezvousBroken):
            # The head is out: the sender learns of it by the connection's end.
            if request.transport is not None:
                request.transport.abort()
            return answer
        await answer.write_eof()
        return answer


async def _invite_body(request: web.Request) -> None:
    """Tell a sender that waits with its body to send it: the request is one that is handed on."""
    is_waiting = request.headers.get("Expect", "").lower() == "100-continue" and request.version == HttpVersion11
    if request.body_exists and is_waiting:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
