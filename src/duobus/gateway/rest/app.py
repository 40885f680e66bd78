"""The HTTP door: so far ``GET /health``, ``GET /metrics`` and the upgrade to AMQP over WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from duobus.broker import ScaleUnit
from duobus.gateway.websocket import PATHS, WebSocketDoor
from duobus.telemetry.metrics import CONTENT_TYPE, Metrics

HEALTHY = "Service is healthy."
UNHEALTHY = "Service not available. Please try after some time."

#: Connections that are left when the server stops get this long; AMQP has taken its leave before.
_SHUTDOWN_S = 1.0


class RestDoor:
    """The HTTP door of one server; ``protocol`` makes the protocol of a connection."""

    def __init__(
        self,
        unit: ScaleUnit,
        metrics: Metrics,
        is_ready: Callable[[], bool],
        *,
        websocket: WebSocketDoor | None = None,
    ) -> None:
        self._unit = unit
        self._metrics = metrics
        self._is_ready = is_ready
        self._websocket = websocket
        self._runner: web.AppRunner | None = None

    async def open(self) -> Callable[[], asyncio.Protocol]:
        """Get ready and return the factory of protocols."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/metrics", self._metrics_page)
        if self._websocket is not None:
            for path in PATHS:
                app.router.add_get(path, self._websocket.serve)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=_SHUTDOWN_S)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        return server

    async def close(self) -> None:
        """Close what is open."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        """200 while any store accepts, with the state of each (design 6); the emulator's form where it has one."""
        stores = {str(store_id): broker.state for store_id, broker in self._unit.brokers.items()}
        is_open = [state == "open" for state in stores.values()]
        if not self._is_ready() or not any(is_open):
            return web.json_response({"status": "unhealthy", "message": UNHEALTHY, "stores": stores}, status=503)
        status = "healthy" if all(is_open) else "degraded"
        return web.json_response({"status": status, "message": HEALTHY, "stores": stores})

    async def _metrics_page(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})
