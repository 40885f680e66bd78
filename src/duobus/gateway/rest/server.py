"""The HTTP server: health (``health.py``), ``GET /metrics``, the upgrade to AMQP over WebSocket, and the two APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from duobus.broker import ScaleUnit
from duobus.clock import Clock
from duobus.gateway.rest.api import HttpApi, expect_nothing
from duobus.gateway.rest.connection_limit import bounded
from duobus.gateway.rest.fast_sends import FastSendServer
from duobus.gateway.rest.head_limit import LimitedHeads
from duobus.gateway.rest.health import Health
from duobus.gateway.rest.operations.cluster_endpoint import ClusterManagement
from duobus.gateway.waits import StepBudget
from duobus.gateway.websocket import PATHS, WebSocketServer
from duobus.telemetry.bounded_log import BoundedLog, ServerLog
from duobus.telemetry.logs import Log
from duobus.telemetry.metrics import CONTENT_TYPE, Metrics

if TYPE_CHECKING:
    from duobus.broker.store_probes import StoreProbes
    from duobus.gateway.rest.token_endpoint import TokenEndpoint

METRICS_REFUSED = "The metrics need a token: Authorization: Bearer and what stands in the file of --metrics-token-file."

#: Connections that are left when the server stops get this long; AMQP has taken its leave before.
_SHUTDOWN_S = 1.0
#: Samples of the metrics page that are read, or rendered, in one slice: some half a millisecond.
_SAMPLES_AT_ONCE = 100
#: Longest request line and longest header, in bytes: BrokerProperties and properties travel in headers. What they may
#: have together, and how long they may take: ``head_limit``.
LINE_BYTES_MAX = 16_384
HEADER_BYTES_MAX = 32_768
#: Headers of a request: custom properties are headers.
HEADERS_MAX = 512
#: How long a connection may do nothing between two requests.
KEEP_ALIVE_S = 300.0


class RequestRouter(Protocol):
    """Has requests about entities of other servers answered by these."""

    @property
    def is_member(self) -> bool:
        """Whether requests can be answered though no store is here."""

    async def answer(self, request: web.Request) -> web.StreamResponse | None:
        """Another server's answer; None when the request is for this one."""

    async def close(self) -> None:
        """Close the connections to the others."""


class Relays(Protocol):
    """Answers what comes for relays; see ``gateway/relay/server.py``."""

    async def answer(self, request: web.Request) -> web.StreamResponse | None:
        """The answer; None when the request is for no relay."""

    def is_relayed(self, host: str, text: str) -> bool:
        """Whether a host and the target of a request are those of a relay."""

    def close(self) -> None:
        """The server stops."""


def is_of_browser(request: web.Request) -> bool:
    """Whether a browser asks for the start page: a browser names the kinds of answers that people read."""
    return request.method == "GET" and request.raw_path == "/" and "text/html" in request.headers.get("Accept", "")


class RestServer:
    """The HTTP front end of one server.

    Attributes:
        health: Answers what supervisors ask.
        fast_sends: The fast path, where its connections begin, once it is open and has an API.
        console_url: Tells the address of the console that runs beside the server; None while none runs.
    """

    def __init__(
        self,
        unit: ScaleUnit,
        metrics: Metrics,
        is_ready: Callable[[], bool],
        *,
        websocket: WebSocketServer | None = None,
        api: HttpApi | None = None,
        tokens: TokenEndpoint | None = None,
        is_draining: Callable[[], bool] = lambda: False,
        probes: StoreProbes | None = None,
        may_read_metrics: Callable[[str], bool] = lambda authorization: True,
        relays: Relays | None = None,
    ) -> None:
        """``may_read_metrics``: whether the metrics are for who sends this text in the header Authorization."""
        self.health = Health(unit, is_ready, is_draining, probes)
        self._metrics = metrics
        self._websocket = websocket
        self._api = api
        self._tokens = tokens
        self._may_read_metrics = may_read_metrics
        self._relays = relays
        self._log = ServerLog(BoundedLog(Log("http"), Clock().monotonic_ms if api is None else api.clock.monotonic_ms))
        self._runner: web.AppRunner | None = None
        self._heads: LimitedHeads | None = None
        self._router: RequestRouter | None = None
        self.fast_sends: FastSendServer | None = None
        self.console_url: Callable[[], str | None] = lambda: None

    def pass_on(self, router: RequestRouter) -> None:
        """Send requests about entities of other servers on to them."""
        self._router = router
        self.health.is_member = lambda: router.is_member
        if self.fast_sends is not None:
            # Whose a request is has to be found out first, for each.
            self.fast_sends.is_open = False

    def manage(self, cluster: ClusterManagement) -> None:
        """Answer what operators ask of the servers that share the catalog."""
        if self._api is not None:
            self._api.cluster = cluster
        self.health.cluster = cluster.outline

    async def open(self) -> Callable[[], asyncio.Protocol]:
        """Get ready and return the factory of protocols."""
        app = web.Application()
        self.health.add_to(app.router)
        app.router.add_get("/metrics", self._metrics_page)
        if self._websocket is not None:
            for path in PATHS:
                app.router.add_get(path, self._websocket.serve)
        if self._tokens is not None:
            self._tokens.add_to(app.router)
        if self._api is not None:
            # Last: whatever nothing else is registered for.
            app.router.add_route("*", r"/{address:[\s\S]*}", self._serve, expect_handler=expect_nothing)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=self._log,
            handle_signals=False,
            shutdown_timeout=_SHUTDOWN_S,
            keepalive_timeout=KEEP_ALIVE_S,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            max_headers=HEADERS_MAX,
            # A body is the message that is to come out again, byte by byte; and a small one could unpack to a huge one.
            auto_decompress=False,
            # Whoever waits for a message and goes away must not get one.
            handler_cancellation=True,
        )
        await self._runner.setup()
        assert self._runner.server is not None
        server = self._heads = LimitedHeads(self._runner.server)
        if self._api is None:
            return bounded(server)
        fast_sends = self.fast_sends = FastSendServer(server, self._api.sends, self._api.clock, KEEP_ALIVE_S)
        if self._relays is not None:
            fast_sends.is_relayed = self._relays.is_relayed
        return bounded(fast_sends)

    async def close(self) -> None:
        """Close what is open."""
        if self._relays is not None:
            self._relays.close()
        if self._router is not None:
            await self._router.close()
        if self.fast_sends is not None:
            await self.fast_sends.close(_SHUTDOWN_S)
        if self._api is not None:
            await self._api.close()
        if self._heads is not None:
            self._heads.close()
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len((self.fast_sends or self._heads).connections) if self._heads is not None else 0

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        assert self._api is not None
        if is_of_browser(request) and (url := self.console_url()) is not None:
            return web.Response(status=302, headers={"Location": url, "Cache-Control": "no-store"})
        answer = None if self._relays is None else await self._relays.answer(request)
        if answer is None and self._router is not None:
            answer = await self._router.answer(request)
        return answer or await self._api.serve(request)

    async def _metrics_page(self, request: web.Request) -> web.Response:
        if not self._may_read_metrics(request.headers.get("Authorization", "")):
            return web.Response(status=401, text=METRICS_REFUSED, headers={"WWW-Authenticate": "Bearer"})
        page = await self._metrics.render(StepBudget(_SAMPLES_AT_ONCE).spend)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})
