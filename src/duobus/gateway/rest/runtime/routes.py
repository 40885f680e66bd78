"""Which requests are for messages, and what they ask for (Azure: Service Bus REST API)."""

from __future__ import annotations

from typing import Final, NamedTuple

from duobus.gateway.rest.request_target import MethodUnknown, Target

SEND: Final = "send"
PEEK_LOCK: Final = "peek-lock"
RECEIVE: Final = "receive-and-delete"
COMPLETE: Final = "complete"
UNLOCK: Final = "unlock"
RENEW: Final = "renew"

_MESSAGES: Final = "messages"
_HEAD: Final = {"POST": PEEK_LOCK, "DELETE": RECEIVE}
_LOCKED: Final = {"DELETE": COMPLETE, "PUT": UNLOCK, "POST": RENEW}


class Call(NamedTuple):
    """One runtime request.

    Attributes:
        kind: One of the kinds above.
        entity: Path of the entity, with its subscription and sub-queue, in the client's spelling.
        message: Sequence number or message id, of calls about a locked message.
        token: Its lock token.
    """

    kind: str
    entity: str
    message: str = ""
    token: str = ""


def call_of(method: str, target: Target) -> Call | None:
    """Return what a request asks for; None when it is not about messages.

    Raises:
        MethodUnknown: It is, but no operation has this method and address.
    """
    index = _messages_at(target.lower)
    if index is None:
        return None
    entity, rest = "/".join(target.segments[:index]), target.segments[index + 1 :]
    if not rest:
        kinds = {"POST": SEND}
    elif len(rest) == 1:
        kinds = _HEAD if rest[0].lower() == "head" else {}
    else:
        kinds = _LOCKED
    kind = kinds.get(method)
    if kind is None:
        raise MethodUnknown(
            f"{method} means nothing for this address. POST to .../messages to send, POST or DELETE .../messages/head "
            "to receive; DELETE, PUT or POST .../messages/<id>/<lock token> to complete, unlock or renew."
        )
    if kinds is not _LOCKED:
        return Call(kind, entity)
    # A message id may hold slashes.
    return Call(kind, entity, "/".join(rest[:-1]), rest[-1])


def is_about_messages(target: Target) -> bool:
    """Whether a request is for messages, whether there is such a call or not."""
    return _messages_at(target.lower) is not None


def _messages_at(lower: tuple[str, ...]) -> int | None:
    """Where the keyword stands. As the first segment, and as the name of a subscription, it is a name."""
    for index in range(1, len(lower)):
        if lower[index] == _MESSAGES and not (index > 1 and lower[index - 1] == "subscriptions"):
            return index
    return None
