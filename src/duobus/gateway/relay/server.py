"""The relay of one server: tells handshakes, requests and questions about relays apart, and answers what is refused."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.gateway.relay.handshakes import Handshakes
from duobus.gateway.relay.http_requests import HttpRequests
from duobus.gateway.relay.hub import RelayHub
from duobus.gateway.relay.refusals import Rejected, RelayRefusal
from duobus.model.relay.addresses import RelayTarget, parse_handshake, parse_request
from duobus.model.relay.headers import AUTHORIZATION, MANAGEMENT_HEADER, TOKEN_HEADER, VIA, description_of
from duobus.model.relay.limits import DESCRIPTION_LENGTH_MAX

#: By what requests of management clients are known.
_METHODS: Final = frozenset(("GET", "HEAD", "PUT", "DELETE"))
_ATOM: Final = "application/atom+xml"
_VERSION: Final = "api-version"


def is_of_management(request: web.Request, target: RelayTarget) -> bool:
    """Whether a request is that of a management client about a queue or topic, and not for the service behind a relay.

    Those clients ask for Atom, name the version of the API, and show their token where senders of a relay may show the
    token of the service. A sender whose service is one of Atom shows its own token by the means of relays.
    """
    headers = request.headers
    is_atom = any(_ATOM in headers.get(name, "").lower() for name in ("Accept", "Content-Type"))
    has_version = any(part.partition("=")[0].lower() == _VERSION for part in target.query.split("&"))
    has_own_token = target.token is not None or TOKEN_HEADER in headers
    return request.method in _METHODS and is_atom and has_version and AUTHORIZATION in headers and not has_own_token


class RelayServer:
    """Answers what comes for relays.

    Attributes:
        hub: The relays and who uses them.
    """

    def __init__(self, hub: RelayHub) -> None:
        self.hub = hub
        self._handshakes = Handshakes(hub)
        self._requests = HttpRequests(hub)

    async def answer(self, request: web.Request) -> web.StreamResponse | None:
        """Answer a request; None when it is for no relay."""
        text = request.raw_path
        handshake = parse_handshake(text)
        if handshake is not None:
            return await self._answered(request, handshake, self.hub.namespace_of(request), is_handshake=True)
        if not self.hub.has_relays():
            return None
        namespace = self.hub.namespace_of(request)
        target = parse_request(text)
        relay = self.hub.relay_of(namespace.name, target.segments)
        if relay is None or MANAGEMENT_HEADER in request.headers or is_of_management(request, target):
            return None
        return await self._answered(request, target, namespace, is_handshake=False)

    def is_relayed(self, host: str, text: str) -> bool:
        """Whether the target of a request is served by a relay."""
        if not self.hub.has_relays():
            return False
        namespace = self.hub.namespace_of_host(host)
        return self.hub.relay_of(namespace.name, parse_request(text).segments) is not None

    async def _answered(
        self, request: web.Request, target: RelayTarget, namespace: NamespaceRules, *, is_handshake: bool
    ) -> web.StreamResponse:
        tracking_id = self.hub.new_tracking_id()
        handler = self._handshakes if is_handshake else self._requests
        try:
            return await handler.answer(request, target, namespace, tracking_id)
        except Rejected as rejected:
            # The listener's own words, and nothing of the relay's but its Via: a sender with two relays does not take
            # the choice of the service for an outage of the relay.
            reason = description_of(rejected.text, DESCRIPTION_LENGTH_MAX)
            via = {VIA: f"1.1 {request.host}"}
            return web.Response(status=rejected.status, reason=reason, text=rejected.text, headers=via)
        except RelayRefusal as refusal:
            if not is_handshake:
                self.hub.answered(self.hub.relay_of(namespace.name, target.segments), refusal.status)
            return self.hub.answer_of(refusal, request, tracking_id)

    def close(self) -> None:
        """The server stops."""
        self.hub.close()
