"""The list of a server's AMQP connections: who is connected, since when, and what each link is on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from duobus.gateway.waits import StepBudget

if TYPE_CHECKING:
    from duobus.amqp import Link, OpenReceived
    from duobus.gateway.amqp.links.link import Endpoint
    from duobus.gateway.amqp.peer import Peer
    from duobus.gateway.amqp.server import AmqpServer

#: Connections that one answer names, and links of each: both are bounded, since a client may have a thousand links.
CONNECTIONS_MAX: Final = 1_000
LINKS_MAX: Final = 50
#: Characters that are kept of what a client says of itself.
CLIENT_CHARS_MAX: Final = 100
#: Steps of one slice, of which a stretch of deliveries is one; and what telling a connection and a link counts for.
STEPS_AT_ONCE: Final = 1_000
STEPS_OF_CONNECTION: Final = 20
STEPS_OF_LINK: Final = 5


def client_of(opened: OpenReceived) -> tuple[str, str]:
    """Return a client's name for itself, and its product with the version, from what it opened the connection with."""
    about = {str(name): str(value) for name, value in opened.properties.items() if str(name) in ("product", "version")}
    product = " ".join(filter(None, (about.get("product", ""), about.get("version", ""))))
    return opened.container_id[:CLIENT_CHARS_MAX], product[:CLIENT_CHARS_MAX]


async def list_connections(server: AmqpServer, namespace: str) -> list[dict[str, object]]:
    """Return the connections to a namespace in the order in which they were made, ready for JSON."""
    budget = StepBudget(STEPS_AT_ONCE)
    peers = [peer for peer in server.peers if peer.namespace == namespace]
    found = []
    for peer in peers[:CONNECTIONS_MAX]:
        unsettled: dict[Endpoint, int] = {}
        for run in peer.unsettled_runs():
            for endpoint, number in run.unsettled():
                unsettled[endpoint] = unsettled.get(endpoint, 0) + number
            await budget.spend(1 if run.links is None else len(run.marks))
        if not peer.is_gone:
            found.append(_connection(peer, unsettled))
        await budget.spend(STEPS_OF_CONNECTION + STEPS_OF_LINK * min(peer.links, LINKS_MAX))
    return found


def find_connection(server: AmqpServer, namespace: str, name: str) -> Peer | None:
    """Return the connection to a namespace that has this name in the log, or None."""
    wanted = name.lower()
    peers = (peer for peer in server.peers if peer.namespace == namespace)
    return next((peer for peer in peers if peer.engine.settings.container_id.lower() == wanted), None)


def summary_of(peer: Peer) -> dict[str, object]:
    """Return who is at the other end of a connection."""
    return {"connection": peer.engine.settings.container_id, "from": peer.origin, "client": peer.client[0]}


def _connection(peer: Peer, unsettled: dict[Endpoint, int]) -> dict[str, object]:
    endpoints = peer.endpoints()
    clock = peer.server.clock
    age_ms = clock.monotonic_ms() - peer.since_ms
    return summary_of(peer) | {
        "product": peer.client[1],
        "seconds": age_ms // 1000,
        "openedMs": clock.now_ms() - age_ms,
        "rules": peer.grants.names(),
        "unsettled": sum(unsettled.values()),
        "linkCount": len(endpoints),
        "links": [_link(link, endpoint, unsettled.get(endpoint, 0)) for link, endpoint in endpoints[:LINKS_MAX]],
    }


def _link(link: Link, endpoint: Endpoint, unsettled: int) -> dict[str, object]:
    return {
        # By what the client does: it receives on what this side sends on.
        "role": "receiver" if link.is_sender else "sender",
        "address": endpoint.path,
        "credit": link.credit,
        "unsettled": unsettled,
    }
