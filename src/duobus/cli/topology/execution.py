"""Making the steps of a change of topology: through the SDK, and those of relays, which the SDK does not know, not."""

from __future__ import annotations

from typing import Any

from duobus.cli.remote import Remote, operate
from duobus.console.namespace.relay_forms import relay_request
from duobus.console.namespace.sdk_forms import sdk_properties, sdk_rule
from duobus.model.relay.description import RELAY
from duobus.model.topology.changes import CONFLICT, CREATE, DELETE, FORWARDS, Step


def make(step: Step, client: Any, remote: Remote) -> None:
    """Make a step; a conflict is none that can be made."""
    if step.operation == CONFLICT:
        return
    if step.kind == RELAY:
        operate(remote, *relay_request(step))
    elif step.operation == DELETE:
        getattr(client, f"delete_{step.kind}")(*step.names)
    elif step.kind == "rule":
        _put_rule(step, client)
    elif step.operation == CREATE:
        form = {name: value for name, value in step.form.items() if name not in FORWARDS}
        getattr(client, f"create_{step.kind}")(*step.names, **sdk_properties(step.kind, form))
    else:
        entity = getattr(client, f"get_{step.kind}")(*step.names)
        form = {name: step.form.get(name) for name in step.changes}
        for name, value in sdk_properties(step.kind, form).items():
            setattr(entity, name, value)
        getattr(client, f"update_{step.kind}")(*step.names[:-1], entity)


def _put_rule(step: Step, client: Any) -> None:
    parts = sdk_rule(step.form)
    if step.operation == CREATE:
        client.create_rule(*step.names, **parts)
        return
    # Taken away and made again in one request: the SDK's update cannot take an action off.
    rule = client.get_rule(*step.names)
    rule.filter, rule.action = parts["filter"], parts.get("action")
    client.update_rule(*step.names[:-1], rule)
