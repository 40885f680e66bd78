"""Limits of relays: of the wire (Azure: Hybrid Connections protocol; Azure: relay quotas), and of our relay."""

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

# -- of the relay that duobus is --

#: Relay connections of one namespace at a time: control channels, joined senders, HTTP requests (Azure: relay quotas).
CONNECTIONS_MAX: Final = 5_000
#: Senders of one hybrid connection that wait for its listeners at a time.
PENDING_MAX: Final = 1_000
#: Handshakes of listeners of one path from one address, in a second; more are answered late, and with 503.
LISTENS_PER_S: Final = 5
#: How late.
TARPIT_S: Final = 2.0
#: Handshakes that are answered late at a time; beyond, they are refused at once.
TARPIT_MAX: Final = 500
#: Paths and addresses whose rates are known.
RATES_MAX: Final = 4_096
#: From one ping to the next, in seconds.
PING_S: Final = 45.0
#: Pings in a row that are not answered: then the listener is dropped.
MISSED_PINGS_MAX: Final = 2
#: Requests in a row without an answer within their time: then the connection of a listener is cut.
MISSED_ANSWERS_MAX: Final = 2
#: How often tokens, pings and rights are looked at, in seconds.
SWEEP_S: Final = 1.0
#: What a listener may leave unread of its control channel, in bytes: one that leaves more is cut.
CHANNEL_UNREAD_BYTES_MAX: Final = 4 << 20
#: What of a body waits for the side that is slower, in bytes.
BODY_AHEAD_BYTES: Final = 128 << 10
#: How long a peer may take to answer a close frame, in seconds.
CLOSE_S: Final = 2.0
