"""Limits of the wire of relays (Azure: Hybrid Connections protocol; Azure: relay quotas)."""

from __future__ import annotations

from typing import Final

#: Listeners that one hybrid connection has at a time.
LISTENERS_MAX: Final = 25
#: The largest body that travels over the control channel; a larger one, or one of unknown size, takes a rendezvous.
CHANNEL_BODY_BYTES_MAX: Final = 64 << 10
#: All names and values of the headers of one request or response together, in bytes.
HEADERS_BYTES_MAX: Final = 32 << 10
#: One text message of the control channel: the headers, each of their bytes escaped, and the other members.
MESSAGE_BYTES_MAX: Final = 256 << 10
#: How long the one-time address of a rendezvous may be opened.
RENDEZVOUS_S: Final = 30.0
#: How long a response may take to begin, and then from one frame to the next.
RESPONSE_S: Final = 60.0
#: The longest reason that a close frame carries, in bytes of UTF-8 (RFC 6455, 5.5).
CLOSE_REASON_BYTES_MAX: Final = 123
#: The longest status description, in characters.
DESCRIPTION_LENGTH_MAX: Final = 512

#: Codes of close frames (RFC 6455, 7.4; Azure: Hybrid Connections protocol).
CLOSE_NORMAL: Final = 1000
CLOSE_GONE: Final = 1001
CLOSE_UNAUTHORIZED: Final = 1008
CLOSE_TOO_LARGE: Final = 1009
CLOSE_ERROR: Final = 1011
#: What a program sees when a connection ended without a close frame; this code is never sent.
CLOSE_ABNORMAL: Final = 1006
