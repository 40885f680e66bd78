"""Headers on their way through a relay: which belong to one connection only, and which are the relay's own.

Headers are pairs of a name and a value in the order of arrival, or a mapping of names to values; names are compared
without regard to case (RFC 9110, 5.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

#: The header in which a sender or a listener shows its token.
TOKEN_HEADER: Final = "ServiceBusAuthorization"
#: The general header for credentials: of the relay when nothing else shows a token, else of the application.
AUTHORIZATION: Final = "Authorization"
#: The header by which a request is known to be about the relay itself (Azure: relay management).
MANAGEMENT_HEADER: Final = "X-PROCESS-AT"
#: The header that the .NET client adds.
USER_AGENT_HEADER: Final = "Relay-User-Agent"
VIA: Final = "Via"

#: The header, in lower case, by which servers of one catalog know what one of them has passed on.
_PROXIED_BY: Final = "x-duobus-passed-by"
#: Headers of one connection, which a relay does not hand on; those that begin with PROXY are more of them.
HOP_BY_HOP: Final = frozenset(
    (
        *("connection", "content-length", "host", "te", "trailer", "transfer-encoding", "upgrade", "close"),
        *("keep-alive", _PROXIED_BY),
    )
)
PROXY: Final = "proxy-"

#: Headers of a WebSocket handshake that are never handed on: a relay negotiates no extension.
NOT_OF_HANDSHAKE: Final = frozenset((TOKEN_HEADER.lower(), "sec-websocket-extensions", _PROXIED_BY))

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: Characters that no value may hold: the whole of C0 but the tab, and DEL (RFC 9110, 5.5).
_NOT_OF_VALUE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

#: The header, in lower case, of which each value stands on a line of its own: values hold commas (RFC 6265, 3).
COOKIES: Final = "set-cookie"
#: The comma between two cookies: a name and a sign of equality follow, as they never do within a date.
_NEXT_COOKIE: Final = re.compile(r",[ \t]*(?=[!#$%&'*+.^_`|~0-9A-Za-z-]+=)")


def is_hop_by_hop(name: str) -> bool:
    """Whether a header belongs to one connection and is not handed on."""
    lower = name.lower()
    return lower in HOP_BY_HOP or lower.startswith(PROXY)


def end_to_end(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers that a relay hands on: none of one connection, and none that the header Connection names."""
    found = list(headers)
    named = {part.strip().lower() for name, value in found if name.lower() == "connection" for part in value.split(",")}
    return [(name, value) for name, value in found if not is_hop_by_hop(name) and name.lower() not in named]


def combined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers as the members of a JSON object: those of one name become one, their values joined with commas."""
    spelling: dict[str, str] = {}
    found: dict[str, str] = {}
    for name, value in headers:
        first = spelling.setdefault(name.lower(), name)
        if first in found:
            # RFC 6265, 5.4: the pairs of cookies are separated by semicolons.
            separator = "; " if first.lower() == "cookie" else ", "
            found[first] += separator + value
        else:
            found[first] = value
    return found


def separated_cookies(value: str) -> list[str]:
    """The cookies of several Set-Cookie headers that became one, because a JSON object has each name once."""
    return [cookie.strip() for cookie in _NEXT_COOKIE.split(value)]


def with_cookies_apart(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers with each cookie in a Set-Cookie of its own, as user agents need."""
    found: list[tuple[str, str]] = []
    for name, value in headers:
        is_cookie = name.lower() == COOKIES
        found.extend((name, part) for part in (separated_cookies(value) if is_cookie else (value,)))
    return found


def without(headers: Iterable[tuple[str, str]], *names: str) -> list[tuple[str, str]]:
    """The headers but those of these names."""
    dropped = {name.lower() for name in names}
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def value_of(headers: Mapping[str, str], name: str) -> str | None:
    """The value of a header, whatever the case of its name; None where there is none."""
    lower = name.lower()
    return next((value for key, value in headers.items() if key.lower() == lower), None)


def via_appended(headers: Iterable[tuple[str, str]], host: str, version: str = "1.1") -> list[tuple[str, str]]:
    """The headers with one Via, to whose end this relay is added (RFC 9110, 7.6.3)."""
    found = list(headers)
    hops = [value for name, value in found if name.lower() == "via"]
    return [*without(found, VIA), (VIA, ", ".join([*hops, f"{version} {host}"]))]


def has_via(headers: Mapping[str, str], host: str) -> bool:
    """Whether a response has come through the relay of this host: then it is an answer of the application.

    A relay names itself last. ``host`` is a name, with or without a port, as in the address of the relay.
    """
    value = value_of(headers, VIA)
    if value is None:
        return False
    wanted = host.lower()
    for hop in value.split(","):
        words = hop.split()
        if len(words) > 1 and (words[1].lower() == wanted or without_port(words[1].lower()) == without_port(wanted)):
            return True
    return False


def without_port(host: str) -> str:
    """The host without its port; the brackets of an IPv6 address stay."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and (":" not in name or name.endswith("]")) else host


def is_name(text: str) -> bool:
    """Whether a text may be the name of a header (RFC 9110, 5.1)."""
    return _NAME.fullmatch(text) is not None


def is_value(text: str) -> bool:
    """Whether a text may be the value of a header: it has no character that would end the line or the head."""
    return _NOT_OF_VALUE.search(text) is None


def size_of(headers: Iterable[tuple[str, str]]) -> int:
    """What names and values take, in bytes of UTF-8."""
    return sum(len(name.encode()) + len(value.encode("utf-8", "surrogatepass")) for name, value in headers)


def description_of(text: str, longest: int) -> str:
    """A status description as one line that any head can carry: printable, and not longer than ``longest``."""
    line = "".join(character if " " <= character <= "~" else " " for character in text)
    return " ".join(line.split())[:longest]
