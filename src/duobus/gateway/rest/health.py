"""Health: what supervisors and balancers ask of a server over HTTP, without a token.

| address | says 200 while |
|---|---|
| /health, /healthz | a store accepts; the answer tells the state of each |
| /health/live | the loop answers, and its turns are short |
| /health/ready | a store accepts, and the server does not drain: send it clients |
| /health/started | the start is over |

Stores that were idle are probed first: a state without a recent commit behind it is a guess. Nothing in the answers is
secret: numbers and states of stores, and no word of what is wrong with them, for that may name places.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aiohttp import web

if TYPE_CHECKING:
    from duobus.broker import MessageBroker, ScaleUnit
    from duobus.broker.store_probes import StoreProbes

#: The emulator's words, with which the others begin.
HEALTHY: Final = "Service is healthy."
DEGRADED: Final = "Service is degraded"
UNHEALTHY: Final = "Service not available. Please try after some time."
#: A turn of the loop that takes longer is no life: clients wait for as long.
TURN_S: Final = 1.0
#: Turns that are measured for an answer; what a client has asked for may lie in any of them.
_TURNS: Final = 3


class Health:
    """Answers these questions for one server.

    Args:
        unit: Whose stores.
        is_ready: Whether the start is over and the stop has not begun.
        is_draining: Whether the server is about to stop.
        probes: Probes idle stores.

    Attributes:
        is_member: Whether the server serves through others; None where there are none.
        clock_fault: Why the machine's clock is not believed, or None.
    """

    def __init__(
        self,
        unit: ScaleUnit,
        is_ready: Callable[[], bool],
        is_draining: Callable[[], bool],
        probes: StoreProbes | None,
    ) -> None:
        self._unit = unit
        self._is_ready = is_ready
        self._is_draining = is_draining
        self._probes = probes
        self._was_ready = False
        self.is_member: Callable[[], bool] | None = None
        #: What is known of all stores of servers that share a catalog; None where nobody does.
        self.cluster: Callable[[], dict[str, object]] | None = None
        self.clock_fault: Callable[[], str | None] = lambda: None

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register the addresses."""
        router.add_get("/health", self._whole)
        router.add_get("/healthz", self._whole)
        router.add_get("/health/live", self._live)
        router.add_get("/health/ready", self._ready)
        router.add_get("/health/started", self._started)

    async def _whole(self, _request: web.Request) -> web.Response:
        status, message, stores = await self._look()
        code = 503 if status == "unhealthy" else 200
        clock = None if status == "unhealthy" else self.clock_fault()
        if status == "healthy" and clock is not None:
            status, message = "degraded", f"{DEGRADED}: the machine's clock is not believed."
        more: dict[str, object] = {} if clock is None else {"clock": clock}
        if self.cluster is not None:
            more["cluster"] = self.cluster()
        return web.json_response({"status": status, "message": message, "stores": stores, **more}, status=code)

    async def _ready(self, _request: web.Request) -> web.Response:
        status, message, stores = await self._look()
        if self._is_draining():
            status, message = "draining", "Service is about to stop: it serves its clients and wants no more."
        code = 200 if status in ("healthy", "degraded") else 503
        word = "ready" if code == 200 else "not ready"
        return web.json_response({"status": word, "message": message, "stores": stores}, status=code)

    async def _started(self, _request: web.Request) -> web.Response:
        self._was_ready = self._was_ready or self._is_ready()
        if self._was_ready:
            return web.json_response({"status": "started", "message": "Service has started."})
        return web.json_response({"status": "starting", "message": "Service is starting."}, status=503)

    async def _live(self, _request: web.Request) -> web.Response:
        loop = asyncio.get_running_loop()
        longest_s = 0.0
        for _ in range(_TURNS):
            began_s = loop.time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, loop.time() - began_s)
        told = {"turnMs": round(longest_s * 1000, 1)}
        if longest_s > TURN_S:
            message = f"Service answers late: a turn of its loop took {longest_s:.1f} seconds."
            return web.json_response({"status": "late", "message": message, **told}, status=503)
        return web.json_response({"status": "live", "message": "Service is live.", **told})

    async def _look(self) -> tuple[str, str, dict[str, str]]:
        """Status, words for it, and the state of each store."""
        if self._is_ready() and self._probes is not None:
            await self._probes.look()
        brokers = self._unit.brokers
        stores = {str(store_id): state_of(broker) for store_id, broker in brokers.items()}
        ill = ", ".join(f"{number} is {state}" for number, state in stores.items() if state != "open")
        accepts = [broker.state == "open" for broker in brokers.values()]
        if self.is_member is not None:
            # Others have the other stores; this one may have none, and serve.
            accepts.append(self.is_member())
        if not self._is_ready():
            # It starts, or stops: the emulator's words alone, which its clients may compare.
            return "unhealthy", UNHEALTHY, stores
        if not any(accepts):
            why = ill or "there is none"
            if self.is_member is not None and not ill:
                why = "the catalog's database is not reached, so no other server's is known, and this one has none"
            return "unhealthy", f"{UNHEALTHY} No messaging store accepts: {why}.", stores
        if not all(accepts) or ill:
            what = f"messaging store {ill}" if ill else "the other servers are not reached"
            return "degraded", f"{DEGRADED}: {what}. What the other stores have is served.", stores
        return "healthy", HEALTHY, stores


def state_of(broker: MessageBroker) -> str:
    """The state of a store as it is told: of one that does not answer, that it is late or stalled."""
    if broker.is_late:
        return "late"
    return "stalled" if broker.is_stalled and broker.state != "open" else broker.state
