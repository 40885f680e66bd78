"""Metrics of listeners and pairs of relays through the OpenTelemetry API, where that is installed.

Only events change these metrics, as with the other pairs; docs/reference/pair-telemetry.md lists the metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from duobus.relay import events

try:
    from opentelemetry import metrics as otel
except ImportError:  # it is optional
    otel = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

SCOPE: Final = "duobus.relay"
#: Counter to its unit and its description; every counter has the attribute ``endpoint``.
COUNTERS: Final[dict[str, tuple[str, str]]] = {
    "duobus.relay.endpoint_failures": ("{failure}", "Failures of an endpoint that count as an outage."),
    "duobus.relay.reissued": ("{request}", "Requests and connections that were tried at the other endpoint."),
    "duobus.relay.swaps": ("{swap}", "Swaps of the roles, by the endpoint that was active before."),
    "duobus.relay.both_failed": ("{request}", "Requests and connections that failed at both endpoints."),
    "duobus.relay.registrations": ("{registration}", "Times a listener was registered."),
    "duobus.relay.disconnections": ("{disconnection}", "Times a listener was lost, or could not register."),
    "duobus.relay.renewal_failures": ("{failure}", "Times a listener got no new token."),
    "duobus.relay.duplicates": ("{request}", "Requests that came twice and were executed once."),
}
_COUNTED: Final[dict[type[events.Event], str]] = {
    events.EndpointFailed: "duobus.relay.endpoint_failures",
    events.RequestReissued: "duobus.relay.reissued",
    events.RelayRolesSwapped: "duobus.relay.swaps",
    events.BothFailed: "duobus.relay.both_failed",
    events.ListenerOnline: "duobus.relay.registrations",
    events.ListenerOffline: "duobus.relay.disconnections",
    events.TokenNotRenewed: "duobus.relay.renewal_failures",
    events.DuplicateAnswered: "duobus.relay.duplicates",
}


class RelayMetrics:
    """Turns events into metrics; give it to a ``Reporter``.

    Args:
        meter: Makes the instruments; by default a meter of the application's meter provider.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        meter = otel.get_meter(SCOPE) if meter is None else meter
        self._counters: dict[str, Any] = {
            name: meter.create_counter(name, unit, text) for name, (unit, text) in COUNTERS.items()
        }

    def __call__(self, event: events.Event) -> None:
        """Count an event."""
        name = _COUNTED.get(type(event))
        if name is not None:
            self._counters[name].add(1, {"endpoint": event.entity})


def metrics_of() -> Callable[[events.Event], None] | None:
    """Return the metrics; None where OpenTelemetry is not installed."""
    return None if otel is None else RelayMetrics()
