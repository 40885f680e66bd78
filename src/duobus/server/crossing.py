"""Forwarding between the servers of one catalog: the parts of it, put together."""

from __future__ import annotations

from collections.abc import Iterable

from duobus.clock import Clock
from duobus.cluster.forwarding.connections import AmqpFerry
from duobus.cluster.forwarding.endpoint import CrossingDesk
from duobus.cluster.node import ClusterNode
from duobus.cluster.scale_unit import OwningUnit
from duobus.gateway.amqp.server import AmqpDoor
from duobus.model.descriptions import AccessRule


def open_crossing(door: AmqpDoor, unit: OwningUnit, node: ClusterNode, clock: Clock) -> None:
    """From now on messages are forwarded to entities of other servers, and taken in from these."""

    def rules(namespace: str) -> Iterable[AccessRule]:
        rows = unit.directory.contents.namespaces
        return next((row.rules for row in rows if row.name.lower() == namespace.lower()), ())

    unit.courier.connect(node, AmqpFerry(node.node_id, node.context, clock, rules))
    door.crossing = CrossingDesk(unit.intake, rules)
