"""What the operations below ``/$duobus`` consist of, beside those of ``endpoint.py``: each an endpoint of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.operations.audit_endpoint import AuditEndpoint, AuditReader
from duobus.gateway.rest.operations.entity_endpoint import EntityEndpoint, Inspection
from duobus.gateway.rest.operations.event_endpoint import EventEndpoint, EventFeed
from duobus.gateway.rest.operations.history_endpoint import History, HistoryEndpoint
from duobus.gateway.rest.operations.metering_endpoint import MeteringEndpoint, MeteringReader
from duobus.gateway.rest.operations.relay_endpoint import RelayEndpoint, RelayManagement
from duobus.gateway.rest.operations.rule_endpoint import RuleEndpoint, RuleTrials
from duobus.gateway.rest.request_bodies import BodyBudget
from duobus.gateway.rest.request_target import Target


class OperationEndpoint(Protocol):
    """Answers some of the requests."""

    async def answer(
        self, request: web.Request, target: Target, namespace: NamespaceRules
    ) -> web.StreamResponse | None:
        """Answer one request; None when the request asks for something else.

        Raises:
            ServiceBusError: The request is refused; the caller says so.
        """


class Operations(NamedTuple):
    """What a server offers; None for what it does not have."""

    inspection: Inspection | None = None
    trials: RuleTrials | None = None
    audit: AuditReader | None = None
    history: History | None = None
    events: EventFeed | None = None
    metering: MeteringReader | None = None
    relays: RelayManagement | None = None


def endpoints_of(offered: Operations, guard: Guard, room: BodyBudget) -> Iterator[OperationEndpoint]:
    """Yield an endpoint for everything that is offered."""
    if offered.inspection is not None:
        yield EntityEndpoint(offered.inspection, guard)
    if offered.trials is not None:
        yield RuleEndpoint(offered.trials, guard, room)
    if offered.audit is not None:
        yield AuditEndpoint(offered.audit, guard, room)
    if offered.history is not None:
        yield HistoryEndpoint(offered.history, guard)
    if offered.events is not None:
        yield EventEndpoint(offered.events, guard)
    if offered.metering is not None:
        yield MeteringEndpoint(offered.metering, guard)
    if offered.relays is not None:
        yield RelayEndpoint(offered.relays, guard, room)
