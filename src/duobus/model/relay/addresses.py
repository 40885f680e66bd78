"""Addresses of relays: ``/$hc/{path}?sb-hc-action=...`` taken apart and put together.

What a sender has written into its query and is not the relay's own goes on to the listener exactly as it was written:
nothing is decoded and encoded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote, unquote_plus

#: The first segment of the path of every WebSocket address of a relay.
PREFIX: Final = "$hc"

LISTEN: Final = "listen"
ACCEPT: Final = "accept"
CONNECT: Final = "connect"
REQUEST: Final = "request"
ACTIONS: Final = frozenset((LISTEN, ACCEPT, CONNECT, REQUEST))

#: Parameters of queries that are the relay's own; all names that begin so are kept from the listener.
OWN: Final = "sb-hc-"
#: A spelling of the same that documents of the service show.
OWN_MISSPELT: Final = "sbc-hc-"
ACTION: Final = "sb-hc-action"
ID: Final = "sb-hc-id"
TOKEN: Final = "sb-hc-token"
STATUS_CODE: Final = "sb-hc-statusCode"
STATUS_DESCRIPTION: Final = "sb-hc-statusDescription"

#: The longest id that a client may choose for its handshake, in characters; what is longer is cut.
ID_LENGTH_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class RelayTarget:
    """What the target of a request to a relay says.

    Attributes:
        segments: The path behind ``$hc``, decoded, one text for each segment; empty segments are left out.
        raw_path: The same as it was written, beginning with a slash.
        query: The query without the relay's own parameters, as it was written and without the question mark.
        action: One of ACTIONS in lower case; another text as it was written; empty where none is named.
        id: The id that the client has chosen; empty where there is none.
        token: The token of the query; None where there is none.
        status: The status with which a listener rejects a sender; None where it does not.
        description: The text beside it.
    """

    segments: tuple[str, ...]
    raw_path: str
    query: str
    action: str = ""
    id: str = ""
    token: str | None = None
    status: int | None = None
    description: str = ""

    @property
    def is_reject(self) -> bool:
        """Whether a listener says by this that it does not take the sender."""
        return self.status is not None


def parse_handshake(target: str) -> RelayTarget | None:
    """Return what the target of a WebSocket handshake says; None where its path does not begin with ``$hc``.

    Args:
        target: Path and query as they stand in the request.
    """
    path, _, query = target.partition("?")
    first, _, rest = path.lstrip("/").partition("/")
    if unquote(first).lower() != PREFIX:
        return None
    return _target("/" + rest, query)


def parse_request(target: str) -> RelayTarget:
    """Return what the target of an HTTP request says: its path has no ``$hc``."""
    path, _, query = target.partition("?")
    return _target(path, query)


def _target(raw_path: str, query: str) -> RelayTarget:
    own, others = split_query(query)
    status = own.get("statuscode", "")
    return RelayTarget(
        tuple(unquote(segment) for segment in raw_path.split("/") if segment),
        raw_path,
        others,
        own["action"].lower() if own.get("action", "").lower() in ACTIONS else own.get("action", ""),
        own.get("id", "")[:ID_LENGTH_MAX],
        own.get("token"),
        int(status) if len(status) == 3 and status.isascii() and status.isdigit() else None,
        own.get("statusdescription", ""),
    )


def split_query(query: str) -> tuple[dict[str, str], str]:
    """Return the relay's own parameters, by lower-case names without their prefix, and the rest of the query.

    The status of a reject comes without its prefix from some clients; it is taken for the relay's own where a whole
    query has it beside an action of accepting, and handed on everywhere else.
    """
    own: dict[str, str] = {}
    others: list[str] = []
    bare: dict[str, str] = {}
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        lower = unquote_plus(name).lower()
        prefix = next((text for text in (OWN, OWN_MISSPELT) if lower.startswith(text)), None)
        if prefix is not None:
            key = lower[len(prefix) :]
            # A plus sign is part of a token that was not encoded, and a blank in a description.
            own.setdefault(key, unquote_plus(value) if key == "statusdescription" else unquote(value))
            continue
        if lower in ("statuscode", "statusdescription"):
            bare.setdefault(lower, unquote_plus(value))
        others.append(part)
    if own.get("action", "").lower() == ACCEPT:
        own = {**bare, **own}
    return own, "&".join(others)


def common_path(target: Sequence[str], known: Iterable[Sequence[str]]) -> Sequence[str] | None:
    """The longest of the known paths whose segments begin the target, compared without regard to case."""
    lower = [segment.lower() for segment in target]
    found: Sequence[str] | None = None
    for path in known:
        if len(path) <= len(lower) and [segment.lower() for segment in path] == lower[: len(path)]:
            found = path if found is None or len(path) > len(found) else found
    return found


# -- putting together -----------------------------------------------------------------------------------------------


def encoded_path(path: str) -> str:
    """A path as it stands in an address: its slashes stay, everything unusual is escaped."""
    return quote(path.strip("/"), safe="/-._~!$&'()*+,;=:@%")


def address(base: str, path: str, action: str, *, id: str = "", token: str | None = None, query: str = "") -> str:
    """An address of a relay.

    Args:
        base: Scheme, host and port, such as ``wss://host:443``, without a slash at the end.
        path: What stands behind ``$hc/``, as it stands in an address.
        action: One of ACTIONS.
        id: The id of the handshake; left out where it is empty.
        token: The token of the query; the header is the other place for it.
        query: What goes to the other side, as it stands in an address.
    """
    parts = [f"{ACTION}={action}"]
    if id:
        parts.append(f"{ID}={quote(id, safe='')}")
    if token is not None:
        parts.append(f"{TOKEN}={quote(token, safe='')}")
    if query:
        parts.append(query)
    return f"{base}/{PREFIX}/{path.strip('/')}?{'&'.join(parts)}"


def rejected(accept_address: str, status: int, description: str) -> str:
    """The address that a listener opens to turn a sender away, made of the address of its ``accept`` message."""
    joint = "&" if "?" in accept_address else "?"
    text = quote(description, safe="")
    return f"{accept_address}{joint}{STATUS_CODE}={status}&{STATUS_DESCRIPTION}={text}"
