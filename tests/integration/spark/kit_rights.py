"""Somebody who may do little."""

from __future__ import annotations

from typing import Any

from azure.servicebus.management import AccessRights, AuthorizationRule
from spark_bus import Bus

KEY = "bGltaXRlZC1rZXktbGltaXRlZC1rZXktbGltaXRlZC0="


def limited(bus: Bus, server: Any, *rights: AccessRights) -> tuple[str, Bus]:
    """A queue, and the bus as somebody sees it who has only these rights on it."""
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        key_name="limited",
        rights=list(rights),
        primary_key=KEY,
        secondary_key=KEY,
        claim_type="SharedAccessKey",
        claim_value="None",
    )
    queue = bus.queue(authorization_rules=[rule])
    endpoint = server.connection_string.split(";")[0]
    text = f"{endpoint};SharedAccessKeyName=limited;SharedAccessKey={KEY};UseDevelopmentEmulator=true;"
    management = bus.options["managementEndpoint"]
    return queue, Bus({"connectionString": text, "retryTotal": "0", "managementEndpoint": management})
