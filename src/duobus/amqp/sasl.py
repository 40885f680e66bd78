"""SASL as Service Bus uses it: one step, no challenges (part 5, section 5.3; AMQP 1.0 part 5, 5.3)."""

from __future__ import annotations

from typing import Final

from duobus.codec import DecodeError

MSSBCBS: Final = "MSSBCBS"
PLAIN: Final = "PLAIN"
ANONYMOUS: Final = "ANONYMOUS"
EXTERNAL: Final = "EXTERNAL"

#: What is offered, in this order (AMQP 1.0 part 5, 5.3).
MECHANISMS: Final[tuple[str, ...]] = (MSSBCBS, PLAIN, ANONYMOUS, EXTERNAL)

OUTCOME_OK: Final = 0
OUTCOME_AUTH: Final = 1


def parse_plain(response: bytes) -> tuple[str, str, str]:
    """Return (authorization id, user name, password) of a PLAIN response (RFC 4616).

    Service Bus takes the user name as the name of an authorization rule, the password as its key.

    Raises:
        DecodeError: It is not three texts parted by NUL.
    """
    parts = response.split(b"\x00")
    if len(parts) != 3:
        raise DecodeError(f"a PLAIN response has three parts, not {len(parts)}")
    try:
        return parts[0].decode(), parts[1].decode(), parts[2].decode()
    except UnicodeDecodeError as error:
        raise DecodeError("a PLAIN response is UTF-8") from error


def plain_response(name: str, password: str) -> bytes:
    """Return the PLAIN response for this user name and password."""
    return f"\x00{name}\x00{password}".encode()
