"""The list of a server's AMQP connections: who is connected, since when, and what each link is on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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


def client_of(opened: OpenReceived) -> tuple[str, str]:
    """Return a client's name for itself, and its product with the version, from what it opened the connection with."""
    about = {str(name): str(value) for name, value in opened.properties.items() if str(name) in ("product", "version")}
    product = " ".join(filter(None, (about.get("product", ""), about.get("version", ""))))
    return opened.container_id[:CLIENT_CHARS_MAX], product[:CLIENT_CHARS_MAX]


def list_connections(server: AmqpServer, namespace: str) -> list[dict[str, object]]:
    """Return the connections to a namespace in the order in which they were made, ready for JSON."""
    now_ms = server.clock.monotonic_ms()
    peers = [peer for peer in server.peers if peer.namespace == namespace]
    return [_connection(peer, now_ms) for peer in peers[:CONNECTIONS_MAX]]


def _connection(peer: Peer, now_ms: int) -> dict[str, object]:
    endpoints = peer.endpoints()
    return {
        "connection": peer.engine.settings.container_id,
        "from": peer.origin,
        "client": peer.client[0],
        "product": peer.client[1],
        "seconds": (now_ms - peer.since_ms) // 1000,
        "rules": peer.grants.names(),
        "linkCount": len(endpoints),
        "links": [_link(link, endpoint) for link, endpoint in endpoints[:LINKS_MAX]],
    }


def _link(link: Link, endpoint: Endpoint) -> dict[str, object]:
    return {
        # By what the client does: it receives on what this side sends on.
        "role": "receiver" if link.is_sender else "sender",
        "address": endpoint.path,
        "credit": link.credit,
    }
