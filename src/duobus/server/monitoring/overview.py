"""What is going on in a server, for those who look at it over HTTP: the server, its entities and its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from duobus.broker import ScaleUnit
from duobus.clock import BrokerTime, Clock
from duobus.errors import EntityNotFound
from duobus.gateway.amqp.connection_list import find_connection, list_connections, summary_of
from duobus.gateway.amqp.server import AmqpServer
from duobus.model.metering import RECEIVE, SEND, SETTLE
from duobus.server.monitoring.metric_samples import memory_in_use, running_version
from duobus.server.monitoring.whole_entities import WholeEntity, whole_entities
from duobus.telemetry.audit_log import DELETE, DONE, AuditTrail, Change

#: Entities that one answer names.
ENTITIES_MAX: Final = 20_000
#: Entities that are read in one turn of the loop, some 1.5 ms, and the pause after that.
_AT_ONCE: Final = 100
_REST_S: Final = 0.001
_NOTHING: Final = (0, 0, 0)


if TYPE_CHECKING:
    from duobus.gateway.tls import CertificateText


class ServerOverview:
    """Reads every number where it is kept, when somebody asks.

    Args:
        unit: The entities.
        amqp: The connections, and what was metered.
        clock: Time.
        started_ms: Wall clock time of the server's start.
        time: Broker time.
        audit: Is told of connections that are closed.
        servers: The addresses of those that share the catalog, this server's own first; empty for a lone server.
        certificate: What the server's certificate says of itself; None without TLS.
    """

    def __init__(
        self,
        unit: ScaleUnit,
        amqp: AmqpServer,
        clock: Clock,
        started_ms: int,
        time: BrokerTime | None = None,
        audit: AuditTrail | None = None,
        servers: Callable[[], Sequence[str]] = tuple,
        certificate: Callable[[], CertificateText | None] = lambda: None,
    ) -> None:
        self._unit = unit
        self._amqp = amqp
        self._clock = clock
        self._started_ms = started_ms
        self._time = time
        self._audit = audit or AuditTrail()
        self._servers = servers
        self._certificate = certificate
        self._began_ms = clock.monotonic_ms()

    def server(self) -> dict[str, object]:
        """Return what holds of the server as a whole."""
        amqp = self._amqp
        servers = list(self._servers())
        # Whoever asks one of several has to know that the others are not in the answer.
        shared = {"servers": servers} if servers else {}
        return {
            "version": running_version(),
            "startedMs": self._started_ms,
            # Rates are of this time, which no change of the clock bends.
            "uptimeMs": self._clock.monotonic_ms() - self._began_ms,
            "nowMs": self._clock.now_ms(),
            "clockAheadMs": None if self._time is None else self._time.ahead_ms,
            "memoryBytes": memory_in_use(),
            "connections": len(amqp.peers),
            "connectionsOpened": amqp.connections_opened,
            "links": sum(peer.links for peer in amqp.peers),
            "incomingBytes": amqp.budget.used,
            "incomingLimitBytes": amqp.budget.limit,
            "errors": dict(amqp.errors),
            **shared,
            "certificate": _certificate_form(self._certificate()),
        }

    async def entities(self, namespace: str, prefix: str) -> list[dict[str, object]]:
        """Return the entities of a namespace whose paths begin with ``prefix``, whatever the letters' case.

        They are read a hundred at a time, and others have their turns in between. Of an entity over several stores the
        numbers are those of its shards in stores of this server.
        """
        found: list[dict[str, object]] = []
        for whole in islice(whole_entities(self._unit.namespace(namespace), prefix.lower()), ENTITIES_MAX):
            if found and not len(found) % _AT_ONCE:
                await asyncio.sleep(_REST_S)
            found.append(self._entity(whole))
        return found

    async def connections(self, namespace: str) -> list[dict[str, object]]:
        """Return the AMQP connections to a namespace."""
        return await list_connections(self._amqp, namespace)

    def disconnect(self, namespace: str, connection: str, *, who: str, origin: str) -> dict[str, object]:
        """Close a connection as an operator asks for, which the audit log tells, and return whose it was.

        Raises:
            EntityNotFound: There is no such connection to the namespace.
            ServerBusy: The audit log cannot be written, and the connection stays.
        """
        peer = find_connection(self._amqp, namespace, connection)
        if peer is None:
            raise EntityNotFound(
                f"There is no connection {connection[:100]!r} to this namespace (any more). GET /$duobus/connections "
                "lists them."
            )
        found = summary_of(peer)
        path = str(found["connection"])
        change = Change(DELETE, "connection", namespace, path, who=who, origin=origin, interface="http")
        self._audit.begin(change, self._clock.now_ms())
        peer.end_for_operator()
        told = {"from": [found["from"], None], "client": [found["client"], None]}
        self._audit.end(change, self._clock.now_ms(), DONE, told)
        return found

    def _entity(self, whole: WholeEntity) -> dict[str, object]:
        entity = whole.about
        (active, dead, transfer_dead, deferred, scheduled), size = whole.numbers()
        sent, received, settled = (
            self._amqp.metering.totals.get((entity.namespace, whole.path, kind), _NOTHING)
            for kind in (SEND, RECEIVE, SETTLE)
        )
        return {
            "entity": whole.path,
            "kind": entity.kind,
            "available": all(handle.online for part in whole.parts for handle in part.fragments),
            # Of a subscription its own: its topic may be disabled besides.
            "status": getattr(entity, "about", entity.description).status,
            "active": active,
            "deadLetter": dead,
            "transferDeadLetter": transfer_dead,
            "deferred": deferred,
            "scheduled": scheduled,
            "locked": whole.locked(),
            "toForward": whole.to_forward(),
            "bytes": size,
            "sent": sent[0],
            "received": received[0],
            "settled": settled[0],
            "sentBytes": sent[1],
            "receivedBytes": received[1],
        }


def _certificate_form(found: CertificateText | None) -> dict[str, object] | None:
    if found is None:
        return None
    return {
        "subject": found.subject,
        "issuer": found.issuer,
        "names": found.names,
        "beginMs": found.begin_ms,
        "endMs": found.end_ms,
    }
