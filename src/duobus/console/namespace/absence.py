"""Messages that cannot be read at the moment, because a messaging store is away that holds a part of their entity.

A broker passes over what is away as long as it finds some message behind the place where a look begins. When there is
none, the broker answers with an error. For a list this error is the end, and the page says which parts are missing.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from duobus.console.namespace.failures import NamespaceError

if TYPE_CHECKING:
    from duobus.console.namespace.client import NamespaceClient

#: How a duobus says that a store is away, in an error whose status Azure has for other things, too.
_SAID: Final = "StoreUnavailable"


def tells_of_absence(error: NamespaceError) -> bool:
    """Whether an error means that a part of the entity is in a store that is away."""
    return error.status == HTTPStatus.SERVICE_UNAVAILABLE and _SAID in error.text


async def missing_of(namespace: NamespaceClient, path: str, met: NamespaceError | None) -> dict[str, Any] | None:
    """The parts of an entity that are away, for a page and for JSON; None while everything is there.

    Args:
        namespace: Whose entity it is.
        path: Of a queue, or of the topic of a subscription.
        met: The error that a look at the messages ended with; None when the look came to the end.

    Returns:
        ``fragments``, each with its number and that of its store, as far as the key may ask; and ``text``, the
        sentence of the namespace where a look met one.
    """
    text = "" if met is None else met.text
    if not namespace.is_duobus or namespace.entity or not namespace.rights.manage:
        # Of the parts only a key with Manage is told; of their absence everybody, by the look itself.
        return None if met is None else {"fragments": [], "text": text}
    try:
        rows = await namespace.operation("GET", "/$duobus/fragments", query={"entity": path})
    except NamespaceError:
        # The entity is at another server of the same namespace, or is not there.
        rows = []
    fragments = [{"fragment": row["fragment"], "store": row["store"]} for row in rows if not row["available"]]
    return {"fragments": fragments, "text": text} if fragments or met is not None else None
