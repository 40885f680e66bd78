"""What the tests of docs/reference/http-coverage.md share: a broker of their own, and a message over plain HTTP."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from azure.servicebus.management import AccessRights, AuthorizationRule
from kit_admin import RULE, Admin

from duobus.auth import sign_token
from duobus.testing.server import ServerProcess

KEY = "SAS_KEY_VALUE"
FOR_EVER = datetime.timedelta.max

RULES = [
    AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN],
        key_name="ops",
        primary_key="P" * 43 + "=",
        secondary_key="S&<" * 14 + "S=",
    )
]
#: Every property that can be set and does not exclude another: extremes, and what clients are known to lose.
COMMON: dict[str, Any] = {
    "default_message_time_to_live": FOR_EVER,
    "enable_batched_operations": False,
    "user_metadata": "a & b <c> ü",
    "status": "Active",
}
QUEUE: dict[str, Any] = COMMON | {
    "auto_delete_on_idle": datetime.timedelta(minutes=5),
    "dead_lettering_on_message_expiration": True,
    "duplicate_detection_history_time_window": datetime.timedelta(days=7),
    "enable_partitioning": True,
    "lock_duration": datetime.timedelta(seconds=13.5),
    "max_delivery_count": 2_147_483_647,
    "max_size_in_megabytes": 5120,
    "requires_duplicate_detection": True,
    "max_message_size_in_kilobytes": 102_400,
    "authorization_rules": RULES,
}
FORWARDING: dict[str, Any] = COMMON | {"auto_delete_on_idle": FOR_EVER, "authorization_rules": RULES}
TOPIC: dict[str, Any] = COMMON | {
    "auto_delete_on_idle": FOR_EVER,
    "duplicate_detection_history_time_window": datetime.timedelta(seconds=20),
    "max_size_in_megabytes": 2048,
    "requires_duplicate_detection": True,
    "support_ordering": True,
    "authorization_rules": RULES,
}
SUBSCRIPTION: dict[str, Any] = COMMON | {
    "auto_delete_on_idle": datetime.timedelta(minutes=7),
    "dead_lettering_on_filter_evaluation_exceptions": False,
    "dead_lettering_on_message_expiration": True,
    "lock_duration": datetime.timedelta(minutes=5),
    "max_delivery_count": 1,
    "requires_session": True,
}


class OwnBus:
    """A broker process with what ``Admin`` asks of one."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process

    @property
    def connection_string(self) -> str:
        return self.process.connection_string


@contextmanager
def own_admin(flavour: str, folder: Path, *options: str, config: dict[str, Any] | None = None) -> Iterator[Admin]:
    """Administration clients of a broker that nobody else uses."""
    arguments = ("--emulator", "--tls-self-signed", "--ephemeral", *options)
    with ServerProcess(folder, config=config, arguments=arguments) as process:
        yield Admin(flavour, OwnBus(process))  # type: ignore[arg-type]


def signature(admin: Admin, path: str = "", expires_in_s: int = 60, **changes: str) -> str:
    """A token for a path of the broker."""
    port = admin.bus.process.ready["http_port"]
    rule, key = changes.get("rule", RULE), changes.get("key", KEY)
    return sign_token(f"https://localhost:{port}/{path}", rule, key, int(time.time()) + expires_in_s)


def ask(
    admin: Admin, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, list[tuple[str, str]], bytes]:
    """One request of the runtime API; headers keep the case of the wire."""
    connection = HTTPConnection("localhost", int(admin.bus.process.ready["http_port"]), timeout=60)
    try:
        connection.request(method, target, body, {"Authorization": signature(admin), **(headers or {})})
        reply = connection.getresponse()
        return reply.status, reply.getheaders(), reply.read()
    finally:
        connection.close()


def sub_code(error: BaseException) -> int:
    """The SubCode in an error of the SDK; 0 when there is none."""
    found = re.search(r"SubCode=(\d+)\.", str(error))
    return int(found[1]) if found else 0
