"""A server of four messaging stores, with entities that lose one of the four when a test says so."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusClient

from duobus.cli.remote import Remote, operate
from duobus.ha.outage_scope import slot_of
from duobus.model.access_rules import sign_token
from duobus.testing.server import ServerProcess, queues_config

#: The store that goes away.
SICK: Final = 2
SUBSCRIPTION: Final = "all"
#: How long a store may take to be back, in seconds.
BACK_S: Final = 60.0
_PAUSE_S: Final = 0.02
#: In the year 2096.
_TOKEN_ENDS_S: Final = 4_000_000_000
_OPTIONS: Final = ("--emulator", "--allow-drills", "--stores", "4", "--store-patience", "1")


def heal(connection_string: str) -> None:
    """Let the store be back; on return all of it is there again."""
    remote = Remote(connection_string, None, None)
    operate(remote, "POST", f"stores/{SICK}/heal")
    for _ in range(int(BACK_S / _PAUSE_S)):
        if all(row["state"] == "open" for row in operate(remote, "GET", "stores")):
            return
        time.sleep(_PAUSE_S)
    raise TimeoutError


class FourStores:
    """The server, and what lies where. Each topic has one subscription, which takes everything.

    Attributes:
        server: It is running.
    """

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self._remote = Remote(server.connection_string, None, None)
        self._number = count()

    def create(self, *, is_topic: bool = False, enable_partitioning: bool = False, **properties: Any) -> str:
        """Make a queue or topic and return its name: a partitioned one lies in all stores, another in the sick one."""
        while True:
            name = f"{'topic' if is_topic else 'queue'}-{next(self._number)}"
            with self._remote.administration(name) as administration:
                if is_topic:
                    administration.create_topic(name, enable_partitioning=enable_partitioning, **properties)
                    administration.create_subscription(name, SUBSCRIPTION)
                else:
                    administration.create_queue(name, enable_partitioning=enable_partitioning, **properties)
            if enable_partitioning or self._homes(name) == {0: SICK}:
                return name

    def keys(self, entity: str, *, lost: bool) -> list[str]:
        """A key of each fragment that lies in the sick store, or of each one that does not."""
        homes = self._homes(entity)
        found: dict[int, str] = {}
        for key in map(str, count()):
            found.setdefault(slot_of(key, len(homes)), key)
            if len(found) == len(homes):
                return [found[slot] for slot in homes if (homes[slot] == SICK) is lost]
        raise AssertionError

    @contextmanager
    def away(self, how: str) -> Iterator[None]:
        """The store is away for as long as the context lasts; ``how``: ``fail`` or ``stall``."""
        operate(self._remote, "POST", f"stores/{SICK}/{how}")
        try:
            yield
        finally:
            heal(self.server.connection_string)

    def post(self, entity: str, texts: list[str], **properties: str) -> tuple[int, str]:
        """Send over HTTP, several texts as one batch; return the status and the text of the answer.

        Args:
            entity: Where to.
            texts: Bodies.
            **properties: ``BrokerProperties`` of each message.
        """
        url = f"{self._remote.url}/{entity}"
        name, key = self._remote.access_key()
        headers = {"Authorization": sign_token(url, name, key, _TOKEN_ENDS_S)}
        if len(texts) == 1:
            body, headers["BrokerProperties"] = texts[0], json.dumps(properties)
        else:
            body = json.dumps([{"Body": text, "BrokerProperties": properties} for text in texts])
            headers["Content-Type"] = "application/vnd.microsoft.servicebus.json"
        request = urllib.request.Request(f"{url}/messages", body.encode(), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=BACK_S) as answer:
                return int(answer.status), str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def texts(self, entity: str) -> list[str]:
        """Bodies of all that an entity holds."""
        found: list[str] = []
        with ServiceBusClient.from_connection_string(self.server.connection_string) as client:
            if entity.startswith("topic"):
                receiver = client.get_subscription_receiver(entity, SUBSCRIPTION)
            else:
                receiver = client.get_queue_receiver(entity)
            with receiver:
                first = 1
                while messages := receiver.peek_messages(250, sequence_number=first):
                    found += map(str, messages)
                    first = (messages[-1].sequence_number or 0) + 1
        return found

    def _homes(self, entity: str) -> dict[int, int]:
        rows = operate(self._remote, "GET", "fragments", {"entity": entity})
        return {row["fragment"]: row["store"] for row in rows}


@contextmanager
def four_stores(folder: Path) -> Iterator[FourStores]:
    """The server, running."""
    with ServerProcess(folder, config=queues_config({}), arguments=_OPTIONS) as server:
        yield FourStores(server)
        # The clients that tests left open are not waited for.
        server.kill()
