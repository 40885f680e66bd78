"""What one end of a connection offers and takes, with the limits of everything that a peer can make grow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duobus.amqp import sasl
from duobus.amqp.frames import MASK


class ConnectionSettings:
    """What a connection offers and takes.

    Attributes:
        container_id: Our name, not empty; the place for a connection id that can be traced.
        hostname: As initiator: the namespace wanted.
        max_frame_size: The largest frame we take, in bytes, 512 and up.
        channel_max: Highest channel, so one less than the number of sessions.
        idle_time_out_ms: Announced; a peer that is silent for twice as long is given up. 0 for never.
        handle_max: Highest handle, so one less than the number of links of a session.
        incoming_window: Transfer frames that a session takes before it must hear from us; replenished at half.
        outgoing_window: Announced only.
        links_max: Of the connection, over all sessions.
        partial_bytes_max: Bytes of unfinished deliveries on the connection; the link that passes it is detached.
        partial_room: Bytes of unfinished deliveries beside the largest one; what passes it is refused, nothing else.
        work_max: What one call of ``receive`` may cost in frames that are taken one at a time, see ``FrameReader``;
            what is left waits for the next call.
        sessions_max: Sessions at a time; may be less than the channels, and may be raised later, like links_max.
        require_sasl: As acceptor: refuse peers that do not start with SASL.
        mechanisms: As acceptor: what is offered, best first. As initiator: the first is used.
        sasl_response: As initiator: the initial response, see ``sasl.plain_response``.
        properties: Of our open.
    """

    __slots__ = (
        "channel_max",
        "container_id",
        "handle_max",
        "hostname",
        "idle_time_out_ms",
        "incoming_window",
        "links_max",
        "max_frame_size",
        "mechanisms",
        "outgoing_window",
        "partial_bytes_max",
        "partial_room",
        "properties",
        "require_sasl",
        "sasl_response",
        "sessions_max",
        "work_max",
    )

    def __init__(
        self,
        container_id: str,
        *,
        hostname: str | None = None,
        max_frame_size: int = 65536,
        channel_max: int = 255,
        idle_time_out_ms: int = 120_000,
        handle_max: int = 255,
        incoming_window: int = 5000,
        outgoing_window: int = 2**31 - 1,
        links_max: int = 4096,
        partial_bytes_max: int = 256 << 20,
        partial_room: int = 256 << 20,
        sessions_max: int = 65536,
        work_max: int = MASK,
        require_sasl: bool = True,
        mechanisms: tuple[str, ...] = sasl.MECHANISMS,
        sasl_response: bytes = b"",
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        self.container_id = container_id
        self.hostname = hostname
        self.max_frame_size = max_frame_size
        self.channel_max = channel_max
        self.idle_time_out_ms = idle_time_out_ms
        self.handle_max = handle_max
        self.incoming_window = incoming_window
        self.outgoing_window = outgoing_window
        self.links_max = links_max
        self.partial_bytes_max = partial_bytes_max
        self.partial_room = partial_room
        self.sessions_max = sessions_max
        self.work_max = work_max
        self.require_sasl = require_sasl
        self.mechanisms = mechanisms
        self.sasl_response = sasl_response
        self.properties = properties
