"""What handshakes and requests share: the relays in use, their listeners and senders, rights, and counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol

from aiohttp import web

from duobus.auth.authorizer import HTTP_GRACE_MS, Authorizer, Grant, NamespaceRules
from duobus.broker import ScaleUnit
from duobus.broker.entities.relay import HybridConnection
from duobus.clock import Clock, Entropy
from duobus.errors import Unauthorized
from duobus.gateway.relay.control_channel import ControlChannel
from duobus.gateway.relay.listeners import HandshakeRates
from duobus.gateway.relay.refusals import RelayRefusal, disabled, no_listener, no_relay
from duobus.gateway.relay.relay_use import NamespaceRoom, RelayUse
from duobus.gateway.relay.rendezvous import Rendezvous
from duobus.gateway.relay.usage import Metering, RelayTotals, UsageCounter
from duobus.gateway.relay.websocket_end import WebSocketEnd
from duobus.model.descriptions import Right
from duobus.model.relay.addresses import RelayTarget
from duobus.model.relay.headers import AUTHORIZATION, TOKEN_HEADER, description_of
from duobus.model.relay.limits import (
    CLOSE_ERROR,
    CLOSE_GONE,
    CLOSE_UNAUTHORIZED,
    DESCRIPTION_LENGTH_MAX,
    RENDEZVOUS_S,
    RESPONSE_S,
    SWEEP_S,
)
from duobus.telemetry.bounded_log import BoundedLog
from duobus.telemetry.logs import Log, new_tracking_id, tracking_suffix

#: Bits of the unguessable part of a rendezvous' address.
_SECRET_BYTES: Final = 16


class PendingSender(Protocol):
    """A sender that waits for a listener to open a rendezvous."""

    relay: HybridConnection

    async def opened(self, request: web.Request, target: RelayTarget) -> web.StreamResponse:
        """The listener has opened the address; the answer to its handshake."""

    def fail(self, refusal: RelayRefusal) -> None:
        """The relay or the listener is gone."""


class OtherServers(Protocol):
    """Servers that share the catalog; see ``cluster/http/relays.py``."""

    @property
    def tag(self) -> str:
        """What ids of this server's rendezvous have, so that every server knows whose they are."""

    def is_proxied(self, request: web.Request) -> bool:
        """Whether another server has sent a request on: it is sent on no more."""

    def address_of_tag(self, tag: str) -> str | None:
        """The address of another server by the tag of its rendezvous."""

    async def listening(self, request: web.Request, relay: HybridConnection) -> list[str] | None:
        """Addresses of the other servers that have listeners of a relay; None when one of them did not answer."""

    async def proxy_request(self, request: web.Request, address: str) -> web.StreamResponse:
        """The answer of another server to an HTTP request, as it comes."""

    async def proxy_handshake(self, request: web.Request, address: str) -> web.StreamResponse:
        """The answer of another server to the handshake of a WebSocket, and then the bytes of both sides."""


Use = RelayUse[ControlChannel, PendingSender, WebSocketEnd]


class RelayHub:
    """The relays of one server.

    Attributes:
        clock: Time.
        log: Where refusals and listeners are told.
        totals: What all relays have carried, for the metrics.
        refusals: Refused handshakes and requests by status, for the metrics.
        rendezvous_s: How long the address of a rendezvous is good.
        response_s: How long a response may take, from one frame to the next.
        rates: Handshakes of listeners.
        promises: Rendezvous that were not opened yet.
        others: The servers that share the catalog; None for a lone server.
    """

    def __init__(
        self,
        unit: ScaleUnit,
        authorizer: Authorizer,
        clock: Clock,
        entropy: Entropy,
        log: Log,
        metering: Metering,
    ) -> None:
        self._unit = unit
        self._authorizer = authorizer
        self._entropy = entropy
        self.clock = clock
        self.log = BoundedLog(log, clock.monotonic_ms)
        self.totals = RelayTotals()
        self.refusals: Counter[int] = Counter()
        self.rendezvous_s = RENDEZVOUS_S
        self.response_s = RESPONSE_S
        self.rates = HandshakeRates()
        self.promises: Rendezvous[PendingSender] = Rendezvous(self._drawn_id)
        self.others: OtherServers | None = None
        self._metering = metering
        self._uses: dict[HybridConnection, Use] = {}
        self._rooms: dict[str, NamespaceRoom] = {}
        self._totals: dict[HybridConnection, RelayTotals] = {}
        self._timer: asyncio.TimerHandle | None = None
        unit.relays.follow(self._changed)

    # -- relays -----------------------------------------------------------------------------------------------------

    def namespace_of(self, request: web.Request) -> NamespaceRules:
        """The namespace that the request's header Host stands for."""
        return self._authorizer.namespace_of(request.host)

    def namespace_of_host(self, host: str) -> NamespaceRules:
        """The namespace that a host name stands for."""
        return self._authorizer.namespace_of(host)

    def has_relays(self) -> bool:
        """Whether there is any relay."""
        return any(space.relays for space in self._unit.namespaces.values())

    def relay_of(self, namespace: str, segments: Sequence[str]) -> HybridConnection | None:
        """The relay that serves a path."""
        return self._unit.namespace(namespace).relay_of(segments)

    def demand_relay(self, namespace: str, target: RelayTarget) -> HybridConnection:
        """The relay that serves a path, if it is in use; raises RelayRefusal."""
        relay = self.relay_of(namespace, target.segments)
        if relay is None:
            raise no_relay("/".join(target.segments))
        if not relay.is_active:
            raise disabled(relay.path)
        return relay

    def use_of(self, relay: HybridConnection) -> Use:
        """What goes on at a relay."""
        found = self._uses.get(relay)
        if found is None:
            room = self._rooms.setdefault(relay.namespace, NamespaceRoom())
            found = self._uses[relay] = RelayUse(room)
        return found

    def uses(self) -> list[tuple[HybridConnection, Use]]:
        """Every relay that something goes on at."""
        return list(self._uses.items())

    def listeners_of(self, relay: HybridConnection) -> int:
        """How many listeners a relay has at this server."""
        use = self._uses.get(relay)
        return 0 if use is None else len(use.listeners)

    def use_if_any(self, relay: HybridConnection) -> Use | None:
        """What goes on at a relay; None where nothing does."""
        return self._uses.get(relay)

    def totals_of(self, relay: HybridConnection) -> RelayTotals:
        """What a relay has carried since the server began."""
        found = self._totals.get(relay)
        if found is None:
            found = RelayTotals()
            if not relay.is_deleted:
                self._totals[relay] = found
        return found

    def counter_of(self, relay: HybridConnection, kind: str, key: str) -> UsageCounter:
        """What meters one kind of use of a relay by one key."""
        return UsageCounter(self._metering, relay, kind, key)

    def answered(self, relay: HybridConnection | None, status: int) -> None:
        """An HTTP sender has its answer."""
        self.totals.statuses[status] += 1
        if relay is not None:
            self.totals_of(relay).statuses[status] += 1

    def carried(self, relay: HybridConnection, messages: int, size_bytes: int) -> None:
        """Bytes went through, and so many messages have ended with them."""
        for totals in (self.totals, self.totals_of(relay)):
            totals.messages += messages
            totals.handed_on += size_bytes

    def choose(self, relay: HybridConnection) -> ControlChannel | None:
        """A listener of this server, at random; None when there is none."""
        return self.use_of(relay).listeners.choose(self._draw, lambda channel: channel.is_fit)

    async def address_of_listeners(self, request: web.Request, relay: HybridConnection, status: int) -> str:
        """The address of another server that has listeners, at random.

        Raises:
            RelayRefusal: There is no listener anywhere, with this status.
        """
        if self.others is None:
            raise no_listener(relay.path, status, is_known=True)
        if self.others.is_proxied(request):
            # It was here a moment ago.
            raise no_listener(relay.path, status, is_known=False)
        found = await self.others.listening(request, relay)
        if not found:
            raise no_listener(relay.path, status, is_known=found is not None)
        return found[self._draw(len(found))]

    def _draw(self, count: int) -> int:
        return self._entropy.number(32) % count

    def _drawn_id(self) -> str:
        secret = self._entropy.token(_SECRET_BYTES).hex()
        return secret if self.others is None else f"{secret}.{self.others.tag}"

    def address_of_rendezvous(self, request: web.Request, key: str) -> str | None:
        """The address of the other server that has promised a rendezvous; None for one of this server."""
        tag = key.partition("_")[0].partition(".")[2]
        if self.others is None or not tag or self.others.is_proxied(request):
            return None
        return self.others.address_of_tag(tag)

    # -- rights -----------------------------------------------------------------------------------------------------

    def authorize(
        self,
        request: web.Request,
        target: RelayTarget,
        relay: HybridConnection,
        namespace: NamespaceRules,
        right: Right,
    ) -> Grant:
        """What the token of a handshake or a request gives; raises RelayRefusal unless that has the right."""
        token = target.token or request.headers.get(TOKEN_HEADER) or request.headers.get(AUTHORIZATION)
        if not token:
            raise RelayRefusal(
                401, f"No token. Send one in the header {TOKEN_HEADER} or in the parameter sb-hc-token of the query."
            )
        return self.authorize_token(token, target.segments, relay, namespace, right)

    def authorize_token(
        self,
        token: str,
        segments: Sequence[str],
        relay: HybridConnection,
        namespace: NamespaceRules,
        right: Right,
    ) -> Grant:
        """The same for the text of a token."""
        wanted = relay.segments()
        # A listener's right ends with its token; a sender shows its own once.
        grace_ms = 0 if right is Right.LISTEN else HTTP_GRACE_MS
        try:
            grant = self._authorizer.authorize_token(token, namespace, self.clock.now_ms(), grace_ms, wanted)
        except Unauthorized as error:
            raise RelayRefusal(401, str(error)) from None
        lower = [segment.lower() for segment in segments]
        if not grant.covers(wanted) and not (right is Right.SEND and grant.covers(lower)):
            raise RelayRefusal(403, f"The token was made for another resource than '{relay.path}'.")
        if not grant.rights & (int(right) | int(Right.MANAGE)):
            raise RelayRefusal(403, f"The token does not give the right {(right.name or '').title()}.")
        return grant

    # -- refusing ---------------------------------------------------------------------------------------------------

    def new_tracking_id(self) -> str:
        """An id under which the log tells what a client is told."""
        return new_tracking_id(self._entropy)

    def answer_of(self, refusal: RelayRefusal, request: web.Request, tracking_id: str = "") -> web.Response:
        """The answer to a handshake or a request that is refused; it has no Via, as it is the relay's own."""
        tracking_id = tracking_id or self.new_tracking_id()
        self.refusals[refusal.status] += 1
        path = request.path[:256]
        self.log.info("relay refused", tracking_id=tracking_id, status=refusal.status, path=path, reason=refusal.text)
        suffix = tracking_suffix(tracking_id, "G0", request.host, path, self.clock.now_ms())
        # A path may hold characters that a first line must not.
        reason = f"{refusal.reason} {description_of(suffix, DESCRIPTION_LENGTH_MAX)}"
        response = web.Response(status=refusal.status, reason=reason, text=refusal.text + suffix)
        if refusal.status == 401:
            response.headers["WWW-Authenticate"] = "SharedAccessSignature"
        return response

    # -- what happens to listeners ----------------------------------------------------------------------------------

    def begin(self, relay: HybridConnection, channel: ControlChannel) -> None:
        """A listener is there."""
        self.use_of(relay).listen(channel, relay.path)
        channel.count_time(self.clock.monotonic_ms())
        self.watch()

    def end(self, relay: HybridConnection, channel: ControlChannel, refusal: RelayRefusal | None = None) -> None:
        """A listener is not there any more: who waits for it is told, and what is joined goes on."""
        use = self.use_of(relay)
        if use.leave(channel):
            channel.count_time(self.clock.monotonic_ms())
        gone = refusal or RelayRefusal(502, f"The listener of '{relay.path}' is gone.")
        for waiting in [waiting for waiting, asked in use.pending.items() if asked is channel]:
            waiting.fail(gone)

    def watch(self) -> None:
        """Have tokens, pings and rights looked at from now on."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now_ms, mono_ms = self.clock.now_ms(), self.clock.monotonic_ms()
        for relay, use in self.uses():
            for channel in use.listeners.all():
                channel.count_time(mono_ms)
                self._look_at(relay, channel, now_ms, mono_ms)
            if not use.connections and (relay.is_deleted or not use.spliced):
                del self._uses[relay]
        if any(len(use.listeners) for use in self._uses.values()):
            self.watch()

    def _look_at(self, relay: HybridConnection, channel: ControlChannel, now_ms: int, mono_ms: int) -> None:
        grant = channel.grant
        rights = grant.rights if grant.signer is None else grant.signer.rights_now() or 0
        if grant.expires_ms is not None and now_ms > grant.expires_ms:
            self.drop(relay, channel, CLOSE_UNAUTHORIZED, "ExpiredToken: the token of the listener has expired.")
        elif not rights & (int(Right.LISTEN) | int(Right.MANAGE)):
            self.drop(relay, channel, CLOSE_UNAUTHORIZED, "The right to listen was taken away.")
        elif channel.vigil.is_dead(mono_ms):
            self.log.info("relay listener dead", tracking_id=channel.about.tracking_id, path=relay.path)
            self.end(relay, channel)
            channel.end.abort()
        elif channel.vigil.is_ping_due(mono_ms):
            channel.end.ping()

    def drop(self, relay: HybridConnection, channel: ControlChannel, code: int, text: str) -> None:
        """Close a control channel; a peer that does not close in time is cut off."""
        self.log.info("relay listener dropped", tracking_id=channel.about.tracking_id, path=relay.path, code=code)
        channel.end.close(code, f"{text} TrackingId:{channel.about.tracking_id}")
        self.end(relay, channel)

    def cut(self, relay: HybridConnection, channel: ControlChannel) -> None:
        """A listener has left requests unanswered: it is stuck, and would not notice a close frame either."""
        self.drop(relay, channel, CLOSE_ERROR, "Requests were not answered in time.")
        channel.end.abort()

    def _changed(self, relay: HybridConnection) -> None:
        """A relay has other properties, or is deleted."""
        if relay.is_active:
            return
        if relay.is_deleted:
            self._totals.pop(relay, None)
        use = self._uses.get(relay)
        if use is None:
            return
        text = "The hybrid connection was deleted." if relay.is_deleted else "The hybrid connection is disabled."
        refusal = RelayRefusal(404, text)
        for channel in use.listeners.all():
            channel.end.close(CLOSE_GONE, text)
            self.end(relay, channel, refusal)
        for waiting in list(use.pending):
            waiting.fail(refusal)
        for end in list(use.spliced):
            end.close(CLOSE_GONE, text)

    def close(self) -> None:
        """The server stops: everybody is told to come again, here or elsewhere."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for relay, use in self.uses():
            for channel in use.listeners.all():
                channel.end.close(CLOSE_GONE, "The server stops.")
                self.end(relay, channel)
            for end in list(use.spliced):
                end.close(CLOSE_GONE, "The server stops.")
