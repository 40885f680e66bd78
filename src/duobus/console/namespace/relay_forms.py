"""Relays of topology documents are made by requests of duobus's own, since the SDK knows no relays."""

from __future__ import annotations

from typing import Any

from duobus.model.topology.changes import CREATE, DELETE, Step


def relay_request(step: Step) -> tuple[str, str, dict[str, str], dict[str, Any] | None]:
    """The request that makes a step of a relay: method, path below ``/$duobus``, query and body."""
    path = f"relays/{step.names[0]}"
    if step.operation == DELETE:
        return "DELETE", path, {}, None
    names = [name for name in step.form if name != "name"] if step.operation == CREATE else list(step.changes)
    body = {name: step.form.get(name) for name in names}
    return "PUT", path, {"must": "new" if step.operation == CREATE else "there"}, body
