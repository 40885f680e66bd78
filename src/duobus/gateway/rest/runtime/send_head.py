"""The head of a plain send, read at once where the general HTTP server would make a request object of it.

Nothing is refused here. What is not of the one form below, character for character, is None, and the general server
reads it by all the rules of HTTP: so both can never disagree about where a request ends (RFC 9112, section 11).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from duobus.errors import ServiceBusError
from duobus.gateway.rest.request_target import HOST, Target, parse_target
from duobus.gateway.rest.runtime.routes import SEND, call_of
from duobus.model.address import Address, parse_address

#: Longest head of a plain send, in bytes, and its most headers; longer ones are the general server's.
HEAD_BYTES_MAX: Final = 8_192
HEAD_LINES_MAX: Final = 64
#: Longest body of one, in bytes.
BODY_BYTES_MAX: Final = 65_536
#: A sender's heads differ in little but the length of the body: so many that came last are kept, taken apart, unless
#: they are longer. What a head's token is allowed is not kept.
KEPT_HEADS: Final = 1024
KEPT_LENGTH_MAX: Final = 1024

#: No ``$``: what is the server's own, and sub-queues, are not plain addresses.
_START: Final = rb"POST (/[A-Za-z0-9._~%/-]{1,1024}/messages(?:\?[A-Za-z0-9._~%=&:+,-]{0,1024})?) HTTP/1\.1\r\n"
_HEAD: Final = re.compile(_START + rb"((?:[A-Za-z0-9!#$%&'*+.^_`|~-]+:[\t -~]*\r\n)+)\r\n")
_LENGTH: Final = re.compile(rb"[0-9]{1,8}")

_HOST: Final = b"host"
_AUTHORIZATION: Final = b"authorization"
_CONTENT_TYPE: Final = b"content-type"
_CONTENT_LENGTH: Final = b"content-length"
_BROKER_PROPERTIES: Final = b"brokerproperties"
_CONNECTION: Final = b"connection"
_KEEP_ALIVE: Final = b"keep-alive"
#: No properties of a message.
_OWN: Final = frozenset(
    {
        *(_HOST, _AUTHORIZATION, _CONTENT_TYPE, _CONTENT_LENGTH, _BROKER_PROPERTIES, _CONNECTION),
        *(b"accept", b"accept-encoding", b"user-agent"),
    }
)
#: Make a request more than a plain one.
_METADATA: Final = frozenset(
    (b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer", b"http2-settings", b"proxy-connection")
)


class Head:
    """What the head of a plain send says.

    Attributes:
        path: The path of its target as it came, for the log.
        target: Its target.
        address: The address in that of what it is sent to.
        host: Text of the header Host.
        authorization: The token.
        length: Bytes of the body.
        content_type: Text of the header, or None.
        broker_properties: Text of the header, or None.
        others: Name and value of headers that may be properties of the message.
    """

    __slots__ = (
        "address",
        "authorization",
        "broker_properties",
        "content_type",
        "host",
        "length",
        "others",
        "path",
        "target",
    )

    def __init__(
        self, text: str, target: Target, address: Address, fields: dict[bytes, bytes], others: list[tuple[bytes, bytes]]
    ) -> None:
        self.path = text.partition("?")[0]
        self.target = target
        self.address = address
        self.host = fields[_HOST].decode()
        self.authorization = fields[_AUTHORIZATION].decode()
        self.length = int(fields[_CONTENT_LENGTH])
        content_type, properties = fields.get(_CONTENT_TYPE), fields.get(_BROKER_PROPERTIES)
        self.content_type = None if content_type is None else content_type.decode()
        self.broker_properties = None if properties is None else properties.decode()
        self.others = tuple(others)


def read_head(data: bytes) -> Head | None:
    """Return what a head with its empty line says; None unless it is that of a plain send."""
    return _kept_head(data) if len(data) <= KEPT_LENGTH_MAX else _read_head(data)


def _read_head(data: bytes) -> Head | None:
    match = _HEAD.fullmatch(data) if len(data) <= HEAD_BYTES_MAX else None
    if match is None:
        return None
    others: list[tuple[bytes, bytes]] = []
    # The last is what stands behind the last line end: nothing.
    fields = _read_lines(match[2].split(b"\r\n")[:-1], others)
    if fields is None or not _is_ordinary(fields):
        return None
    text = match[1].decode()
    try:
        target = parse_target(text)
        call = call_of("POST", target)
        address = None if call is None or call.kind != SEND else parse_address(call.entity)
    except ServiceBusError:
        # Whoever refuses it says why.
        return None
    return None if address is None else Head(text, target, address, fields, others)


_kept_head: Final = lru_cache(KEPT_HEADS)(_read_head)


def _is_ordinary(fields: dict[bytes, bytes]) -> bool:
    """Whether the fields that count are there, and as they should be."""
    if not fields.get(_AUTHORIZATION) or not HOST.fullmatch(fields.get(_HOST, b"").decode()):
        return False
    if fields.get(_CONNECTION, _KEEP_ALIVE).lower() != _KEEP_ALIVE:
        return False
    length = fields.get(_CONTENT_LENGTH, b"")
    return _LENGTH.fullmatch(length) is not None and int(length) <= BODY_BYTES_MAX


def _read_lines(lines: list[bytes], others: list[tuple[bytes, bytes]]) -> dict[bytes, bytes] | None:
    """All fields by their lower-case names; what may be a property of the message goes to ``others``, too.

    None when one comes twice: which of the two counts, and whether that may be, the general server knows.
    """
    if len(lines) > HEAD_LINES_MAX:
        return None
    fields: dict[bytes, bytes] = {}
    for line in lines:
        name, _, text = line.partition(b":")
        lower, value = name.lower(), text.strip(b" \t")
        if lower in fields or lower in _METADATA:
            return None
        fields[lower] = value
        if lower not in _OWN:
            others.append((name, value))
    return fields
