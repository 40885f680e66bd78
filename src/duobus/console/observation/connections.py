"""Who is connected: searching the connections of a namespace, and the sums over their links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from duobus.console.formats import as_datetime

#: Where clients of the SDK put their tokens.
_TOKENS: Final = frozenset({"", "$cbs"})


def matching(connections: Iterable[Mapping[str, Any]], words: str) -> list[Mapping[str, Any]]:
    """The connections in which every word occurs: in names, addresses of clients, products, rules or entities."""
    wanted = words.lower().split()
    return [one for one in connections if all(word in _text_of(one) for word in wanted)]


def _text_of(connection: Mapping[str, Any]) -> str:
    parts = [str(connection.get(name, "")) for name in ("connection", "from", "client", "product")]
    parts += map(str, connection.get("rules", ()))
    for link in connection.get("links", ()):
        parts += (str(link["address"]), str(link["role"]))
    return "\n".join(parts).lower()


def summary_of(connection: Mapping[str, Any]) -> dict[str, Any]:
    """One line of a list of connections.

    Credit is that of receivers: what clients have asked for. That of senders is what the server allows them. Links for
    tokens are on every connection of an SDK, and are no use of an entity.
    """
    links = [link for link in connection.get("links", ()) if str(link["address"]).lower() not in _TOKENS]
    receivers = [link for link in links if link["role"] == "receiver"]
    return {
        **{name: connection.get(name) for name in ("connection", "from", "client", "product", "seconds", "rules")},
        # Older servers do not tell these.
        "opened_ms": connection.get("openedMs"),
        "unsettled": connection.get("unsettled"),
        "links": connection.get("linkCount", len(links)),
        "receivers": len(receivers),
        "senders": len(links) - len(receivers),
        "credit": sum(link["credit"] for link in receivers),
        "addresses": sorted({str(link["address"]) for link in links}),
    }


def received_from(connection: Mapping[str, Any]) -> list[str]:
    """The entities from which a connection receives, each once and without its sub-queue; for a look at their locks."""
    found: dict[str, str] = {}
    for link in connection.get("links", ()):
        address = str(link["address"])
        if link["role"] == "receiver" and address and not address.startswith("$"):
            entity = entity_of(address)
            found.setdefault(entity.lower(), entity)
    return list(found.values())


def entity_of(address: str) -> str:
    """The entity of a link's address, without ``/$DeadLetterQueue`` and the like behind it."""
    segments = address.split("/")
    while len(segments) > 1 and segments[-1].startswith("$"):
        segments.pop()
    return "/".join(segments)


def with_end(lock: Mapping[str, Any]) -> dict[str, Any]:
    """A lock with its end as the countdown of the page reads it; None where the server does not tell the end."""
    end = as_datetime(lock["untilMs"])
    return {**lock, "until": None if end is None else end.isoformat()}
