"""Handshakes of WebSockets: of listeners, of senders, and of the rendezvous of both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.broker.entities.relay import HybridConnection
from duobus.gateway.relay.control_channel import ControlChannel, ListenerAbout
from duobus.gateway.relay.hub import RelayHub
from duobus.gateway.relay.refusals import Rejected, RelayRefusal
from duobus.gateway.relay.splice import SplicedEnd
from duobus.gateway.relay.websocket_end import Upgraded, WebSocketEnd, demand_handshake
from duobus.model.descriptions import Right
from duobus.model.metering import RELAY_LISTENER, RELAY_MESSAGE
from duobus.model.relay.addresses import ACCEPT, CONNECT, LISTEN, REQUEST, RelayTarget, address
from duobus.model.relay.description import HTTP
from duobus.model.relay.headers import AUTHORIZATION, NOT_OF_HANDSHAKE, TOKEN_HEADER, combined, size_of, without
from duobus.model.relay.limits import CLOSE_UNAUTHORIZED, HEADERS_BYTES_MAX, TARPIT_MAX, TARPIT_S
from duobus.model.relay.messages import Accept, RemoteEndpoint

#: Statuses that a listener may reject a sender with.
_STATUS_MIN: Final = 200
_STATUS_MAX: Final = 599


def headers_of(request: web.Request) -> list[tuple[str, str]]:
    """The headers of a request with their names as they were written; what is not UTF-8 is taken for Latin-1."""
    return [(_text(name), _text(value)) for name, value in request.raw_headers]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def without_tokens(
    headers: Iterable[tuple[str, str]], target: RelayTarget, *, is_authorized: bool
) -> list[tuple[str, str]]:
    """The headers without the credentials that were the relay's; others are the application's."""
    found = list(headers)
    has_own = target.token is not None or any(name.lower() == TOKEN_HEADER.lower() for name, _ in found)
    found = without(found, TOKEN_HEADER)
    return without(found, AUTHORIZATION) if is_authorized and not has_own else found


def remote_of(request: web.Request) -> RemoteEndpoint | None:
    """Where the client of a request is."""
    peer = None if request.transport is None else request.transport.get_extra_info("peername")
    return RemoteEndpoint(str(peer[0]), int(peer[1])) if isinstance(peer, tuple) and len(peer) > 1 else None


def base_of(request: web.Request) -> str:
    """Scheme and host by which a client has found the relay: there it finds a rendezvous, too."""
    return f"{'wss' if request.secure else 'ws'}://{request.host}"


def first_protocol(request: web.Request) -> str | None:
    """The sub-protocol that a handshake offers first."""
    found = request.headers.get("Sec-WebSocket-Protocol", "").split(",")[0].strip()
    return found or None


class PendingConnect:
    """A sender that waits for its WebSocket to be accepted.

    Attributes:
        relay: Where.
        done: Has the answer of the sender's handler, or the refusal.
    """

    def __init__(self, hub: RelayHub, relay: HybridConnection, request: web.Request, key: str) -> None:
        self.relay = relay
        self._messages = hub.counter_of(relay, RELAY_MESSAGE, key)
        self.done: asyncio.Future[Upgraded] = asyncio.get_running_loop().create_future()
        self._hub = hub
        self._request = request
        self._offered = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        #: The ends once they are joined: the sender's and the listener's.
        self.ends: tuple[WebSocketEnd, WebSocketEnd] | None = None

    async def opened(self, request: web.Request, target: RelayTarget) -> web.StreamResponse:
        """See PendingSender: joined, or rejected."""
        if target.is_reject:
            status = target.status if target.status and _STATUS_MIN <= target.status <= _STATUS_MAX else 400
            self.fail(Rejected(status, target.description or "The listener has rejected the connection."))
            return web.Response(status=410, reason="Gone", text="The sender is told.")
        demand_handshake(request)
        sender_request = self._request
        transport = sender_request.transport
        if self.done.done() or transport is None or transport.is_closing():
            raise RelayRefusal(410, "The sender is gone.")
        listener, sender = WebSocketEnd(request), WebSocketEnd(sender_request)
        chosen = first_protocol(request)
        chosen = chosen if chosen in self._offered else None
        self.ends = (sender, listener)
        upgraded = listener.open(request, SplicedEnd(listener, sender, self._count), chosen)
        # The listener has its answer; only now may the sender send.
        self.done.set_result(sender.open(sender_request, SplicedEnd(sender, listener, self._count), chosen))
        use = self._hub.use_of(self.relay)
        use.join(self.ends)
        try:
            await listener.finished
        finally:
            use.part(listener)
            # The handler of a listener whose connection is gone is cancelled before its end is told.
            listener.feed_eof()
        return upgraded

    def fail(self, refusal: RelayRefusal) -> None:
        """See PendingSender."""
        if not self.done.done():
            self.done.set_exception(refusal)

    def _count(self, messages: int, size_bytes: int) -> None:
        self._hub.carried(self.relay, messages, size_bytes)
        self._messages.add(messages, size_bytes)


class Handshakes:
    """Serves the handshakes of one server."""

    def __init__(self, hub: RelayHub) -> None:
        self._hub = hub
        self._late = 0

    async def answer(
        self, request: web.Request, target: RelayTarget, namespace: NamespaceRules, tracking_id: str
    ) -> web.StreamResponse:
        """Answer one handshake.

        Raises:
            RelayRefusal: It is refused.
        """
        if target.action == LISTEN:
            return await self._listen(request, target, namespace, tracking_id)
        if target.action == CONNECT:
            return await self._connect(request, target, namespace, tracking_id)
        if target.action in (ACCEPT, REQUEST):
            owner = self._hub.address_of_rendezvous(request, target.id)
            if owner is not None and self._hub.others is not None:
                return await self._hub.others.proxy_handshake(request, owner)
            waiting = self._hub.promises.redeem(target.id, self._hub.clock.monotonic_ms())
            return await waiting.opened(request, target)
        raise RelayRefusal(400, "The parameter sb-hc-action is none of listen, connect, accept and request.")

    async def _listen(
        self, request: web.Request, target: RelayTarget, namespace: NamespaceRules, tracking_id: str
    ) -> web.StreamResponse:
        hub = self._hub
        await self._demand_rate(request, target)
        relay = hub.demand_relay(namespace.name, target)
        demand_handshake(request)
        grant = hub.authorize(request, target, relay, namespace, Right.LISTEN)
        hub.use_of(relay).demand_room(relay.path)
        end = WebSocketEnd(request)
        owner = _Owner(hub, relay, namespace)
        about = ListenerAbout(base_of(request), remote_of(request), target.id, tracking_id, hub.clock.now_ms())
        seconds = hub.counter_of(relay, RELAY_LISTENER, grant.who)
        channel = ControlChannel(end, owner, grant, about, seconds, hub.clock.monotonic_ms())
        hub.begin(relay, channel)
        try:
            upgraded = end.open(request, channel, first_protocol(request))
            hub.log.info("relay listener", tracking_id=tracking_id, path=relay.path, id=target.id)
            await end.finished
            return upgraded
        finally:
            hub.end(relay, channel)
            end.feed_eof()

    async def _demand_rate(self, request: web.Request, target: RelayTarget) -> None:
        """A listener that comes again and again without a pause waits for its refusal."""
        key = ("/".join(target.segments).lower()[:260], request.remote)
        if self._hub.rates.allows(key, self._hub.clock.monotonic_ms()):
            return
        if self._late < TARPIT_MAX:
            self._late += 1
            try:
                await asyncio.sleep(TARPIT_S)
            finally:
                self._late -= 1
        raise RelayRefusal(503, "Too many handshakes of listeners from this address. Wait before the next one.")

    async def _connect(
        self, request: web.Request, target: RelayTarget, namespace: NamespaceRules, tracking_id: str
    ) -> web.StreamResponse:
        hub = self._hub
        relay = hub.demand_relay(namespace.name, target)
        is_authorized = relay.description.requires_client_authorization
        who = hub.authorize(request, target, relay, namespace, Right.SEND).who if is_authorized else ""
        demand_handshake(request)
        if relay.description.senders == HTTP:
            raise RelayRefusal(400, f"The hybrid connection '{relay.path}' takes HTTP requests only.")
        headers = without_tokens(headers_of(request), target, is_authorized=is_authorized)
        headers = without(headers, *NOT_OF_HANDSHAKE)
        if size_of(headers) > HEADERS_BYTES_MAX:
            raise RelayRefusal(431, f"The headers have more than {HEADERS_BYTES_MAX} bytes together.")
        use = hub.use_of(relay)
        use.demand_room(relay.path)
        channel = hub.choose(relay)
        if channel is None:
            elsewhere = await hub.address_of_listeners(request, relay, 404)
            assert hub.others is not None
            return await hub.others.proxy_handshake(request, elsewhere)
        waiting = PendingConnect(hub, relay, request, who)
        key = hub.promises.promise(waiting, hub.clock.monotonic_ms() + round(hub.rendezvous_s * 1000))
        use.wait(waiting, channel)
        where = address(channel.about.base, target.raw_path, ACCEPT, id=key, query=target.query)
        try:
            channel.send(Accept(where, target.id or tracking_id, combined(headers), remote_of(request)))
            async with asyncio.timeout(hub.rendezvous_s):
                upgraded = await asyncio.shield(waiting.done)
        except TimeoutError:
            raise RelayRefusal(504, f"No listener of '{relay.path}' has accepted in time.") from None
        finally:
            hub.promises.withdraw(key)
            use.waited(waiting)
            if not waiting.done.done():
                waiting.done.cancel()
        assert waiting.ends is not None
        sender = waiting.ends[0]
        try:
            await sender.finished
            return upgraded
        finally:
            use.part(sender)
            sender.feed_eof()


class _Owner:
    """Whom the channel of one listener reports to."""

    def __init__(self, hub: RelayHub, relay: HybridConnection, namespace: NamespaceRules) -> None:
        self._hub = hub
        self._relay = relay
        self._namespace = namespace

    def renewed(self, channel: ControlChannel, token: str) -> None:
        """See ChannelOwner."""
        relay = self._relay
        try:
            channel.grant = self._hub.authorize_token(token, relay.segments(), relay, self._namespace, Right.LISTEN)
        except RelayRefusal as refusal:
            self._hub.drop(relay, channel, CLOSE_UNAUTHORIZED, refusal.text)

    def lost(self, channel: ControlChannel) -> None:
        """See ChannelOwner."""
        self._hub.end(self._relay, channel)
