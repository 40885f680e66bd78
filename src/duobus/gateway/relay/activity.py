"""What operators are told of relays: who listens, who waits, what is joined, and what was carried."""

from __future__ import annotations

from typing import Any

from duobus.broker.entities.relay import HybridConnection
from duobus.gateway.relay.control_channel import ControlChannel
from duobus.gateway.relay.hub import RelayHub


class RelayActivity:
    """Tells of the relays of one server."""

    def __init__(self, hub: RelayHub) -> None:
        self._hub = hub

    def numbers(self, relay: HybridConnection) -> dict[str, Any]:
        """The numbers of one relay at this server, as members of a JSON object."""
        use = self._hub.use_if_any(relay)
        totals = self._hub.totals_of(relay)
        return {
            "listeners": self._hub.listeners_of(relay),
            "joined": 0 if use is None else use.joined,
            "waiting": 0 if use is None else len(use.pending),
            "requests": {str(status): totals.statuses[status] for status in sorted(totals.statuses)},
            "messages": totals.messages,
            "bytes": totals.handed_on,
        }

    def listening(self, relay: HybridConnection) -> list[dict[str, Any]]:
        """The listeners of one relay at this server, the one that has come first at the beginning."""
        use = self._hub.use_if_any(relay)
        return [] if use is None else [_listener(channel) for channel in use.listeners.all()]


def _listener(channel: ControlChannel) -> dict[str, Any]:
    about, grant = channel.about, channel.grant
    remote = about.remote
    return {
        "trackingId": about.tracking_id,
        "id": about.id,
        "from": "" if remote is None else f"{remote.address}:{remote.port}",
        "sinceMs": about.since_ms,
        "untilMs": grant.expires_ms,
        "rule": grant.who,
        "unsentBytes": channel.end.unsent_bytes,
    }
