"""The relays of a server as management sees them: listed, created, changed and deleted, and told in the audit log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from duobus.broker import ScaleUnit
from duobus.broker.entities.relay import HybridConnection
from duobus.errors import EntityAlreadyExists, EntityNotFound, ServiceBusError
from duobus.model.relay.description import RELAY, HybridConnectionDescription, relay_form, relay_of_form
from duobus.telemetry.audit_log import CREATE, DELETE, DONE, UPDATE, AuditTrail, Change, differences
from duobus.telemetry.logs import timestamp

if TYPE_CHECKING:
    from duobus.gateway.relay.control_channel import ControlChannel
    from duobus.gateway.relay.hub import RelayHub


class ServerRelays:
    """See ``Relays`` of the endpoint."""

    def __init__(self, unit: ScaleUnit, hub: RelayHub, audit: AuditTrail, now_ms: Callable[[], int]) -> None:
        self._unit = unit
        self._hub = hub
        self._audit = audit
        self._now_ms = now_ms

    def listed(self, namespace: str, *, with_rules: bool, with_keys: bool) -> list[dict[str, Any]]:
        """All of a namespace, by name; with the access rules of each, and their keys, where these are asked for."""
        relays = self._unit.namespace(namespace).relays
        return [self._form(relays[key], with_rules=with_rules, with_keys=with_keys) for key in sorted(relays)]

    def shown(self, namespace: str, path: str, *, with_rules: bool, with_keys: bool) -> dict[str, Any]:
        """One of them; with its access rules, perhaps their keys, and its listeners; raises EntityNotFound."""
        relay = self._unit.relays.find(namespace, path)
        found = self._form(relay, with_rules=with_rules, with_keys=with_keys)
        use = self._hub.use_if_any(relay)
        listeners = [] if use is None else use.listeners.all()
        return found | ({"listening": [_listener_form(channel) for channel in listeners]} if with_rules else {})

    def known(self, namespace: str, path: str) -> dict[str, Any] | None:
        """One of them, with the times of its changes in ms; None when there is none of this name."""
        relay = self._unit.namespace(namespace).relays.get(path.lower())
        if relay is None:
            return None
        times = {"createdAtMs": relay.description.created_at_ms, "updatedAtMs": relay.description.updated_at_ms}
        return self._form(relay) | times

    def _form(self, relay: HybridConnection, *, with_rules: bool = True, with_keys: bool = False) -> dict[str, Any]:
        about = relay.description
        found = relay_form(about, with_keys=with_keys)
        if not with_rules:
            found.pop("authorizationRules", None)
        times = {"createdAt": timestamp(about.created_at_ms), "updatedAt": timestamp(about.updated_at_ms)}
        return found | self._numbers(relay) | times

    def _numbers(self, relay: HybridConnection) -> dict[str, Any]:
        """What goes on at a relay at this server, and what it has carried since the server began."""
        use = self._hub.use_if_any(relay)
        totals = self._hub.totals_of(relay)
        return {
            "listeners": self._hub.listeners_of(relay),
            "joined": 0 if use is None else use.spliced_senders,
            "waiting": 0 if use is None else len(use.pending),
            "requests": {str(status): totals.statuses[status] for status in sorted(totals.statuses)},
            "messages": totals.messages,
            "bytes": totals.handed_on,
        }

    def put(
        self, namespace: str, path: str, form: Mapping[str, Any], *, must_be: str, who: str, origin: str
    ) -> tuple[dict[str, Any], bool]:
        """Create or change one; see Relays."""
        relays = self._unit.relays
        kept = self._unit.namespace(namespace).relays.get(path.lower())
        if must_be == "new" and kept is not None:
            raise EntityAlreadyExists(f"The entity '{path}' exists already. Choose another name.")
        if must_be == "there" and kept is None:
            raise EntityNotFound(f"There is no relay '{path}' in the namespace '{namespace}'. Create it first.")
        wanted = relay_of_form(path, dict(form), None if kept is None else kept.description)
        change = self._change(CREATE if kept is None else UPDATE, namespace, path, who, origin)
        made = self._told(change, lambda: relays.put(namespace, wanted), None if kept is None else kept.description)
        return self._form(made), kept is None

    def delete(self, namespace: str, path: str, *, who: str, origin: str) -> None:
        """Delete one."""
        self._unit.relays.find(namespace, path)

        def delete() -> None:
            self._unit.relays.delete(namespace, path)

        self._told(self._change(DELETE, namespace, path, who, origin), delete, None)

    def _change(self, operation: str, namespace: str, path: str, who: str, origin: str) -> Change:
        return Change(operation, RELAY, namespace, path, who=who, origin=origin, interface="http")

    def _told(self, change: Change, work: Callable[[], Any], before: HybridConnectionDescription | None) -> Any:
        self._audit.begin(change, self._now_ms())
        outcome = DONE
        changes: Mapping[str, Any] | None = None
        try:
            made = work()
            if isinstance(made, HybridConnection) and before is not None:
                changes = differences(before, made.description)
            return made
        except ServiceBusError as error:
            outcome = str(error)
            raise
        finally:
            self._audit.end(change, self._now_ms(), outcome, changes)


def _listener_form(channel: ControlChannel) -> dict[str, Any]:
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
