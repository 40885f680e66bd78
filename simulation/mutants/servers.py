"""Mistakes of servers that share a catalog, to be found: ``python -m simulation.campaign --world servers``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from duobus.cluster.leases import StoreLeases
from duobus.storage.catalog.leases import Exchange, MemoryLeases
from simulation.mutants.server_forwarding import CROSSING_BUGS
from simulation.scenarios.servers import ServersWorld
from simulation.world.database import SharedDisk


@contextmanager
def stale_owner_writes() -> Iterator[None]:
    """A server that was stopped or cut off goes on as if its leases had not ended."""

    def ends_ms(self: StoreLeases, store_id: int) -> int:
        return 0 if self.term(store_id) is None else 1 << 62

    def may_act(self: StoreLeases, store_id: int, _now_ms: int) -> bool:
        return self.term(store_id) is not None

    def lapsed(_self: StoreLeases, _now_ms: int) -> list[int]:
        return []

    with (
        mock.patch.object(StoreLeases, "may_act", may_act),
        mock.patch.object(StoreLeases, "ends_ms", ends_ms),
        mock.patch.object(StoreLeases, "lapsed", lapsed),
    ):
        yield


@contextmanager
def lease_judged_by_the_local_clock() -> Iterator[None]:
    """Whether another's lease is over is judged by the wall clock of whoever wants it."""
    made: list[ServersWorld] = []
    init = ServersWorld.__init__

    def note(self: ServersWorld, *arguments: Any) -> None:
        init(self, *arguments)
        made.append(self)

    def now_for(self: MemoryLeases, told: Exchange) -> int:
        server = made[-1].hosts.get(told.me.node_id)
        return self._now_ms() if server is None else server.clock.now_ms()

    with mock.patch.object(ServersWorld, "__init__", note), mock.patch.object(MemoryLeases, "now_for", now_for):
        yield


@contextmanager
def epoch_not_checked() -> Iterator[None]:
    """The database takes whatever commit reaches it."""
    with mock.patch.object(SharedDisk, "is_fenced", new=False):
        yield


BUGS: Final[dict[str, Callable[[], Any]]] = {
    "stale-owner-writes": stale_owner_writes,
    "lease-judged-by-the-local-clock": lease_judged_by_the_local_clock,
    "epoch-not-checked": epoch_not_checked,
    **CROSSING_BUGS,
}
