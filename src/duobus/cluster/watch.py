"""Connections to the other servers that carry nothing, so that the end of a process is seen at once (decision 0067).

A process that ends has its connections closed by its system, and its port refuses new ones. A machine that is silent, a
process that stands still, and a network that is cut do neither: there the lease decides. That nobody can connect is a
report and no judgement; whether the server is gone is decided by the tables of leases, where its sessions are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from duobus.storage.catalog.leases import NodeEntry

#: Pause before another try where a connection could not be made, and how long one may take to be made, in seconds.
AGAIN_S: Final = 0.5
CONNECT_S: Final = 2.0


class _Silence(asyncio.Protocol):
    """A connection on which nothing is said; ``ended`` is set when it ends."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        del exc
        self.ended.set()


class ServerWatch:
    """Watches the other servers.

    Args:
        own_id: Of this server.
        gone: Called with the id of a server whose process takes no connections any more, though it did.
        back: Called with the id of a server that takes connections.
    """

    def __init__(self, own_id: str, gone: Callable[[str], None], back: Callable[[str], None]) -> None:
        self._own_id = own_id
        self._gone = gone
        self._back = back
        self._watched: dict[str, asyncio.Task[None]] = {}

    def see(self, nodes: Mapping[str, NodeEntry]) -> None:
        """Watch these servers, and no others."""
        for node_id in self._watched.keys() - nodes.keys():
            self._watched.pop(node_id).cancel()
        for node_id, node in nodes.items():
            if node_id != self._own_id and node_id not in self._watched:
                task = asyncio.get_running_loop().create_task(self._watch(node_id, node.address), name="server-watch")
                self._watched[node_id] = task

    async def stop(self) -> None:
        """Watch nobody any more."""
        tasks, self._watched = list(self._watched.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, node_id: str, address: str) -> None:
        host, _, port = address.rpartition(":")
        place, is_known = (host.strip("[]"), int(port or 0)), False
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):
                    transport, silence = await asyncio.get_running_loop().create_connection(_Silence, *place)
            except ConnectionRefusedError:
                if is_known:
                    self._gone(node_id)
                await asyncio.sleep(AGAIN_S)
                continue
            except (OSError, TimeoutError):
                await asyncio.sleep(AGAIN_S)
                continue
            self._back(node_id)
            place, is_known = _peer_of(transport) or place, True
            try:
                await silence.ended.wait()
            finally:
                with suppress(OSError):
                    transport.abort()


def _peer_of(transport: Any) -> tuple[str, int] | None:
    """The address that answered: of several of one name only that one tells of the process."""
    peer = transport.get_extra_info("peername")
    return (peer[0], peer[1]) if isinstance(peer, tuple) else None
