"""The servers that share a namespace, as a page shows them."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from duobus.console.namespace.failures import NamespaceError

if TYPE_CHECKING:
    from duobus.console.namespace.client import NamespaceClient

#: A server of an earlier version has no such request, and one that was started anew without --join refuses.
_NOT_THERE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.BAD_REQUEST})
#: For a store that may be anywhere.
ANYWHERE: Final = "any"


async def read_cluster(namespace: NamespaceClient) -> dict[str, Any] | None:
    """Ask for servers and stores; None where one server is alone, or is too old to tell.

    Raises:
        NamespaceError: The server does not answer, or refuses the key.
    """
    # A lone server is not asked: it counts a refusal among the errors that clients get.
    if not await namespace.servers():
        return None
    try:
        found: dict[str, Any] = await namespace.operation("GET", "/$duobus/cluster")
    except NamespaceError as error:
        if error.status in _NOT_THERE:
            return None
        raise
    return found


def places_for(cluster: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where a store can be sent: values with texts, anywhere first, then servers, then labels."""
    servers = [(one["server"], f"server {one['server']}") for one in cluster["servers"]]
    labels = sorted({label for one in cluster["servers"] for label in one["labels"]})
    return [
        (ANYWHERE, "wherever the servers' weights put it"),
        *servers,
        *((label, f"a server with {label}") for label in labels),
    ]
