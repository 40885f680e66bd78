"""Limits of this relay; those of the wire are in ``duobus.model.relay.limits``."""

from __future__ import annotations

from typing import Final

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
