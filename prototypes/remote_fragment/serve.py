"""``duobus serve`` with remote fragments: ``python -m prototypes.remote_fragment.serve serve --join ...``.

Beside the product's options there is one variable of the environment: ``DUOBUS_REMOTE_PORTS``, a folder of this machine
in which servers find each other's port for fronts.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Any, Final

from duobus.auth.authorizer import Authorizer
from duobus.cli.main import main
from duobus.clock import Entropy
from duobus.cluster.scale_unit import ClusteredScaleUnit
from duobus.server import process
from duobus.server.cluster_server import ClusterServer
from prototypes.remote_fragment.front import FrontRouter, Fronts
from prototypes.remote_fragment.owner import FragmentService, FrontConnection

PORTS: Final = "DUOBUS_REMOTE_PORTS"
#: Sharded queues whose names begin like this are served by remote fragments; the others are proxied, as ever.
PREFIX: Final = "remote"
LOOK_S: Final = 0.1


class RemoteFragmentServer(ClusterServer):
    """See the module."""

    _looking: asyncio.Task[None] | None = None
    _listener: asyncio.Server | None = None

    async def _open_listeners(self, authorizer: Authorizer) -> None:
        await super()._open_listeners(authorizer)
        assert isinstance(self.unit, ClusteredScaleUnit)
        service = FragmentService()
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: FrontConnection(service), "127.0.0.1", 0)
        folder = Path(os.environ[PORTS])
        (folder / f"{self.port('amqp')}").write_text(str(self._listener.sockets[0].getsockname()[1]))

        def port_of(address: str) -> tuple[str, int]:
            host, _, port = address.rpartition(":")
            return host, int((folder / port).read_text())

        fronts = Fronts(self.unit, self.node, service, wants=lambda path: path.startswith(PREFIX), port_of=port_of)
        self.amqp.router_of = partial(FrontRouter, owners=self.node, fronts=fronts)
        self._looking = loop.create_task(self._look_on(fronts), name="remote fragments")

    async def _look_on(self, fronts: Fronts) -> None:
        while True:
            try:
                await fronts.look()
            except Exception as fault:  # noqa: BLE001 - a prototype: say so, and look again
                self.log.error("the look at remote fragments failed", error=repr(fault))
            await asyncio.sleep(LOOK_S)

    async def stop(self, *arguments: Any, **named: Any) -> None:
        """See Server."""
        if self._looking is not None:
            self._looking.cancel()
        if self._listener is not None:
            self._listener.close()
        await super().stop(*arguments, **named)


if __name__ == "__main__":
    process._server_of = lambda settings, clock: RemoteFragmentServer(settings, clock, Entropy())
    main()
