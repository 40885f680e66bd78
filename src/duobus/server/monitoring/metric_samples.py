"""Every number of the metrics page, read from where it is kept, when somebody asks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from duobus.broker import COMMIT_BOUNDS_S, ScaleUnit
from duobus.gateway.amqp.server import AmqpServer
from duobus.server.monitoring.key_skew import Where
from duobus.server.monitoring.whole_entities import whole_entities
from duobus.telemetry.metrics import Sample

if TYPE_CHECKING:
    from duobus.gateway.certificates import Certificates
    from duobus.gateway.relay.hub import RelayHub
    from duobus.gateway.rest.server import RestServer

#: Where Linux tells how many pages a process has, and how many of them are in memory.
_PAGES: Final = Path("/proc/self/statm")

_STATES = ("active", "dead-letter", "transfer-dead-letter", "deferred", "scheduled")


def samples(
    unit: ScaleUnit,
    amqp: AmqpServer,
    started_ms: int,
    skews: Mapping[Where, float],
    cluster: Iterable[tuple[str, float]] = (),
) -> Iterator[Sample]:
    """Yield every sample there is; ``cluster``: name and value of what a server among others counts.

    Whoever takes them may pause in between: what is created meanwhile is not told, and what is deleted is left out.
    """
    for where, skew in list(skews.items()):
        yield Sample("duobus_keys_skew", where, skew)
    yield Sample("duobus_start_time_seconds", (), started_ms / 1000)
    yield from _of_servers(amqp)
    yield Sample("duobus_messages_memory_bytes", (), unit.memory_room.held)
    yield Sample("duobus_messages_memory_limit_bytes", (), unit.memory_room.limit)
    for name, value in cluster:
        yield Sample(name, (), value)
    for store_id, broker in list(unit.brokers.items()):
        label = (str(store_id),)
        yield Sample("duobus_store_available", label, int(broker.state == "open"))
        yield Sample("duobus_store_failures", label, broker.failures)
        yield Sample("duobus_store_quarantined", label, len(broker.quarantined))
        yield Sample("duobus_store_commits", label, broker.commits)
        counts = accumulate(broker.commit_buckets)
        buckets = list(zip((*COMMIT_BOUNDS_S, inf), counts, strict=True))
        yield Sample("duobus_store_commit_seconds", label, broker.commit_seconds, buckets)
    for namespace in list(unit.namespaces.values()):
        for whole in whole_entities(namespace):
            # A dashboard adds up what several servers tell of one entity, so all of them give it the same name.
            where = (namespace.name, whole.path)
            numbers, size = whole.numbers()
            yield Sample("duobus_messages_bytes", where, size)
            for state, number in zip(_STATES, numbers, strict=True):
                yield Sample("duobus_messages", (*where, state), number)
            yield Sample("duobus_messages_locked", where, whole.locked())
            yield Sample("duobus_messages_to_forward", where, whole.to_forward())
            for part in whole.parts:
                for handle in part.fragments if part.top is part else ():
                    yield Sample("duobus_fragment_available", (*where, str(handle.number)), int(handle.online))


def _of_servers(amqp: AmqpServer) -> Iterator[Sample]:
    yield Sample("duobus_connections", (), len(amqp.peers))
    yield Sample("duobus_links", (), sum(peer.links for peer in amqp.peers))
    yield Sample("duobus_connections_opened", (), amqp.connections_opened)
    yield Sample("duobus_incoming_bytes", (), amqp.budget.used)
    yield Sample("duobus_incoming_limit_bytes", (), amqp.budget.limit)
    for condition, number in list(amqp.errors.items()):
        yield Sample("duobus_errors", (condition,), number)
    for (namespace, entity, kind), (messages, size, operations) in list(amqp.metering.totals.items()):
        yield Sample("duobus_metered_messages", (namespace, entity, kind), messages)
        yield Sample("duobus_metered_bytes", (namespace, entity, kind), size)
        yield Sample("duobus_operations", (namespace, entity, kind), operations)


def samples_of_process(rest: RestServer, certificates: Certificates | None) -> Iterator[Sample]:
    """Yield what there is to tell of the process itself, and of its HTTP side."""
    yield Sample("duobus_build_info", (running_version(),), 1)
    yield Sample("duobus_http_connections", (), rest.connections)
    memory = memory_in_use()
    if memory is not None:
        yield Sample("duobus_memory_bytes", (), memory)
    end_ms = None if certificates is None else certificates.end_ms
    if end_ms is not None:
        yield Sample("duobus_certificate_end_seconds", (), end_ms / 1000)


def samples_of_relays(hub: RelayHub) -> Iterator[Sample]:
    """Yield what there is to tell of relays."""
    for relay, use in hub.uses():
        where = (relay.namespace, relay.path)
        yield Sample("duobus_relay_listeners", where, len(use.listeners))
        yield Sample("duobus_relay_rendezvous", where, use.spliced_senders)
        yield Sample("duobus_relay_waiting", where, len(use.pending))
    for status, number in list(hub.totals.statuses.items()):
        yield Sample("duobus_relay_requests", (str(status),), number)
    for status, number in list(hub.refusals.items()):
        yield Sample("duobus_relay_refusals", (str(status),), number)
    yield Sample("duobus_relay_bytes", (), hub.totals.handed_on)


def running_version() -> str:
    """Return the version of duobus that runs; empty where the package was not installed but only put on the path."""
    try:
        return version("duobus")
    except PackageNotFoundError:
        return ""


def memory_in_use() -> int | None:
    """Return how much memory the process uses; None where the system does not tell."""
    try:
        return int(_PAGES.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
