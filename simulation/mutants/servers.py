"""Mistakes of servers that share a catalog, to be found: ``python -m simulation.campaign --world servers``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from duobus.cluster.leases import BEAT_MS, StoreLeases
from duobus.cluster.proxy import link
from duobus.errors import ServerBusy
from duobus.storage.catalog.leases import Exchange, MemoryLeases, NodeEntry
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

    def is_expired(_self: StoreLeases, _now_ms: int) -> list[int]:
        return []

    with (
        mock.patch.object(StoreLeases, "may_act", may_act),
        mock.patch.object(StoreLeases, "ends_ms", ends_ms),
        mock.patch.object(StoreLeases, "is_expired", is_expired),
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


@contextmanager
def paused_server_given_up() -> Iterator[None]:
    """Who does not answer at once counts as gone, though its lease lasts: two owners, once it goes on."""

    def has_session(self: ServersWorld, node_id: str) -> bool:
        server = self.hosts.get(node_id)
        return server is not None and server.is_well and server.node_id == node_id

    def rest_ms(self: StoreLeases, _database: str, now_ms: int) -> int:
        for node_id in self.nodes:
            if node_id != self.me.node_id:
                self.report_gone(node_id, now_ms)
        return BEAT_MS

    with (
        mock.patch.object(ServersWorld, "_has_session", has_session),
        mock.patch.object(StoreLeases, "rest_ms", rest_ms),
        mock.patch.object(StoreLeases, "owner_of", _owner_of),
    ):
        yield


@contextmanager
def former_time_not_told() -> Iterator[None]:
    """Who takes a store over goes on at its last commit, or at its own clock, and not at its former owner's time."""
    with mock.patch.object(MemoryLeases, "_note_time"):
        yield


@contextmanager
def lost_send_refused() -> Iterator[None]:
    """A client is told that a message was not taken which the lost owner of its entity, or shard, may have stored."""
    with mock.patch.object(link, "OutcomeUnknown", ServerBusy):
        yield


def _owner_of(self: StoreLeases, store_id: int) -> NodeEntry | None:
    lease = self._leases.get(store_id)
    return None if lease is None or lease.is_over else self.nodes.get(lease.node_id or "")


BUGS: Final[dict[str, Callable[[], Any]]] = {
    "stale-owner-writes": stale_owner_writes,
    "lease-judged-by-the-local-clock": lease_judged_by_the_local_clock,
    "epoch-not-checked": epoch_not_checked,
    "paused-server-given-up": paused_server_given_up,
    "former-time-not-told": former_time_not_told,
    "lost-send-refused": lost_send_refused,
    **CROSSING_BUGS,
}
