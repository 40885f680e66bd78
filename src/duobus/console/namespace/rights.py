"""What a key may do in a namespace, found by asking the namespace.

Each question is a request that needs one right and can change nothing: the namespace refuses the request for want of
the right, or because the thing in the request does not exist. So the answer tells the right either way.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, NamedTuple

from duobus.console.namespace.failures import NamespaceError
from duobus.console.namespace.operations import HttpOperations

#: An entity that nobody has. Were there one, its messages would be safe all the same.
_NOWHERE: Final = "x-duobus-console/no-entity-has-this-name"
#: A lock token that no message has.
_NO_LOCK: Final = "00000000-0000-0000-0000-000000000000"
#: The content type of several messages; the body of the question is no list of messages, so that none can be sent.
_BATCH: Final = "application/vnd.microsoft.servicebus.json"
_NOT_A_BATCH: Final = b"?"

_REFUSED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})

SEND: Final = "send"
LISTEN: Final = "listen"
MANAGE: Final = "manage"


class Rights(NamedTuple):
    """What the key of a session may do."""

    send: bool
    listen: bool
    manage: bool

    def has(self, right: str | None) -> bool:
        """Whether the key has a right by its name; None is the right of everybody who is signed in."""
        return right is None or bool({SEND: self.send, LISTEN: self.listen, MANAGE: self.manage}[right])


async def find_rights(operations: HttpOperations, entity: str) -> Rights:
    """Ask a namespace what the key may do.

    Args:
        operations: The requests, with the key.
        entity: The only entity that the key is for; empty for the whole namespace.

    Raises:
        NamespaceError: The namespace does not answer, or does not take the key at all.
    """
    if entity:
        relayed = await operations.ask("GET", f"/$duobus/relays/{entity}")
        if relayed.status == HTTPStatus.OK and '"requiresClientAuthorization"' in relayed.text:
            # What is asked below would reach the service behind the relay. Who listens is told to managers alone.
            is_manager = '"listening"' in relayed.text
            return Rights(send=is_manager, listen=True, manage=is_manager)
    place = f"/{entity or _NOWHERE}"
    send = await operations.ask("POST", f"{place}/messages", data=_NOT_A_BATCH, content_type=_BATCH)
    listen = await operations.ask("DELETE", f"{place}/messages/0/{_NO_LOCK}")
    if entity:
        manage = await operations.ask("GET", place, query={"api-version": "2021-05"})
    else:
        manage = await operations.ask("GET", "/$Resources/queues", query={"api-version": "2021-05", "$top": "1"})
    found = Rights(*(answer.status not in _REFUSED for answer in (send, listen, manage)))
    if not any(found):
        await _demand_key(operations)
    # A rule with Manage has the other two rights as well.
    return Rights(True, True, True) if found.manage else found


async def _demand_key(operations: HttpOperations) -> None:
    """Tell why a key with no right at all was refused: it is wrong, or its rule has none."""
    await operations.operation_text("GET", "/$namespaceinfo")
    raise NamespaceError(HTTPStatus.FORBIDDEN, "This key is good, but its access rule has no right.")


async def is_duobus(operations: HttpOperations) -> bool:
    """Whether a namespace has what only duobus offers."""
    answer = await operations.ask("GET", "/$duobus/server")
    if answer.status == HTTPStatus.OK:
        return '"version"' in answer.text
    if answer.status not in _REFUSED:
        return False
    # Azure refuses every unknown path to such a key, too; only a duobus tells of its health.
    health = await operations.ask("GET", "/health", signed=False)
    return '"stores"' in health.text
