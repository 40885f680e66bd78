"""The broker under test: one ``duobus serve`` process with many queues, handed out one per test."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from duobus.testing.server import ServerProcess

NAMESPACE = "sbemulatorns"
SEND_ONLY, LISTEN_ONLY = "sends", "listens"
KEY = "a key of the tests"

#: Kinds of queues with the number of each that a run may use up.
POOL: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (160, {}),
    "partitioned": (100, {"EnablePartitioning": True}),
    "impatient": (20, {"LockDuration": "PT5S"}),
    "large": (3, {"MaxMessageSizeInKilobytes": 2048}),
    "twice": (3, {"MaxDeliveryCount": 2}),
    "watchful": (12, {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT1M"}),
    "watchful-partitioned": (4, {"RequiresDuplicateDetection": True, "EnablePartitioning": True}),
    "backing-off": (4, {"RedeliveryDelay": "PT1S", "DelayedAbandon": True, "MaxDeliveryCount": 10}),
    "sessions": (120, {"RequiresSession": True}),
    "parted-sessions": (80, {"RequiresSession": True, "EnablePartitioning": True}),
    "impatient-sessions": (10, {"RequiresSession": True, "LockDuration": "PT5S"}),
}

#: So many of each kind are enough for a broker of one test or of one module, which then starts in a tenth of the time.
FEW = 8

#: Chains of queues, each forwarding to the next (``way-N`` to ``way-mid-N`` to ``way-out-N``, whose dead letters go to
#: ``way-graves-N``), and as many circles.
WAYS = 9


def ways() -> list[dict[str, Any]]:
    """The queues of all chains, in an order in which none exists before what forwards to it."""
    found: list[dict[str, Any]] = []
    for index in range(WAYS):
        parted = {"EnablePartitioning": True}
        found += [
            {"Name": f"way-{index}", "Properties": {"ForwardTo": f"way-mid-{index}"}},
            {"Name": f"way-mid-{index}", "Properties": {"ForwardTo": f"way-out-{index}", **parted}},
            {"Name": f"way-out-{index}", "Properties": {"ForwardDeadLetteredMessagesTo": f"way-graves-{index}"}},
            {"Name": f"way-graves-{index}", "Properties": parted},
            {"Name": f"circle-{index}", "Properties": {"ForwardTo": f"circle-{index}"}},
        ]
    return found


def configuration(most: int | None = None) -> dict[str, Any]:
    """The emulator's format, with two rules of one right each.

    Args:
        most: Queues of one kind, and no chains; as many as ``POOL`` says, and chains, without it.
    """
    queues = [{"Name": "queue.1", "Properties": {"LockDuration": "PT1M", "MaxDeliveryCount": 3}}]
    for kind, (number, properties) in POOL.items():
        there = number if most is None else min(number, most)
        queues += [{"Name": f"{kind}-{index}", "Properties": properties} for index in range(there)]
    if most is None:
        queues += ways()
    rules = [
        {"KeyName": name, "PrimaryKey": KEY, "Rights": [right]}
        for name, right in ((SEND_ONLY, "Send"), (LISTEN_ONLY, "Listen"))
    ]
    topics = [{"Name": "topic.1", "Properties": {}, "Subscriptions": [{"Name": "subscription.1", "Properties": {}}]}]
    namespace = {"Name": NAMESPACE, "Queues": queues, "Topics": topics, "AuthorizationRules": rules}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}


class Bus:
    """A broker process and what tests ask of it.

    Args:
        folder: For its data and log.
        arguments: Options of ``duobus serve`` beside those of every test.
        most: As with ``configuration``.
    """

    def __init__(self, folder: Path, arguments: Sequence[str] = (), most: int | None = FEW) -> None:
        quota = ("--quota", "partitioned-entities=1000")
        options = ("--emulator", "--tls-self-signed", "--log-format", "json", *quota, *arguments)
        self.process = ServerProcess(folder, config=configuration(most), arguments=options)
        self._most = most
        self._used = dict.fromkeys(POOL, 0)
        self._ways = 0

    @property
    def port(self) -> int:
        """The plain AMQP port."""
        return int(self.process.ready["amqp_port"])

    @property
    def tls_port(self) -> int:
        """The TLS port."""
        return int(self.process.ready["tls_port"])

    @property
    def connection_string(self) -> str:
        """For plain TCP, with all rights."""
        return self.process.connection_string

    def connection_string_of(self, rule: str, key: str = KEY) -> str:
        """For plain TCP, with the rights of a rule."""
        return (
            f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName={rule};SharedAccessKey={key};"
            "UseDevelopmentEmulator=true;"
        )

    def queue(self, kind: str = "plain") -> str:
        """Name of a queue that no other test has touched."""
        index = self._used[kind]
        number = POOL[kind][0] if self._most is None else min(POOL[kind][0], self._most)
        assert index < number, f"the pool has no more {kind} queues"
        self._used[kind] += 1
        return f"{kind}-{index}"

    def way(self) -> int:
        """Number of a chain that no other test has touched; see ``ways``."""
        self._ways += 1
        assert self._ways <= (WAYS if self._most is None else 0), "there are no more chains"
        return self._ways - 1

    def log_lines(self) -> list[dict[str, Any]]:
        """Every structured line of the log so far."""
        lines = self.process.log_path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def get(self, path: str) -> tuple[int, str]:
        """GET on the HTTP port."""
        connection = HTTPConnection("127.0.0.1", int(self.process.ready["http_port"]), timeout=60)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metric(self, name: str, *labels: str) -> float:
        """The value of a sample whose line holds all of ``labels``; 0 when there is none."""
        _, page = self.get("/metrics")
        for line in page.splitlines():
            if line.startswith(name) and all(f'"{label}"' in line for label in labels):
                return float(line.rsplit(" ", 1)[1])
        return 0.0


def until(what: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait for something that another process does, in bounded time."""
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.01)


def unique() -> str:
    """A text that no other test has."""
    return uuid.uuid4().hex
