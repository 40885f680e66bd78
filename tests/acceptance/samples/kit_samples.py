"""The sample programs that the SDK publishes: got from the registry at run time, run as they are, committed never.

They name no port and no certificate, so they get a network of their own (a namespace of Linux with nothing but a
loopback), in which the broker has the usual ports, and a folder of packages whose list of authorities has the broker's.
Their identity (``DefaultAzureCredential``) is the one of a machine, or that of the environment; the broker's token
endpoint gives out both. Its tenant is called adfs, which spares libraries the question at Microsoft whether it exists.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from duobus.testing.server import ServerProcess
from kits.published import Island, cleaned_environment, copy_of_certifi
from kits.warm_python import Kind, WarmPython

#: Set where samples that cannot be had are to be a failure instead of a skip.
REQUIRED = "DUOBUS_REQUIRE_SAMPLES"

TENANT, CLIENT, SECRET = "adfs", "samples", "a secret of the samples"
SUBSCRIPTION, SESSION_SUBSCRIPTION = "subscription", "sessions"
KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"

#: What the samples import; fifty processes would need a second each for it.
MODULES = (
    "aiohttp",
    "azure.identity.aio",
    "azure.servicebus.aio.management",
    "azure.servicebus.management",
)
#: Instead of the machine's identity.
OF_THE_ENVIRONMENT = {
    "AZURE_AUTHORITY_HOST": "https://localhost",
    "AZURE_TENANT_ID": TENANT,
    "AZURE_CLIENT_ID": CLIENT,
    "AZURE_CLIENT_SECRET": SECRET,
}


class IslandServer(ServerProcess):
    """A broker in there, with the ports that clients take when none is named."""

    def __init__(self, island: Island, folder: Path, places: Iterable[int]) -> None:
        folder.mkdir(exist_ok=True)
        tokens = folder / "tokens.json"
        client = {"ClientId": CLIENT, "ClientSecret": SECRET, "Roles": ["Owner"]}
        tokens.write_text(json.dumps({"Endpoint": {"Tenant": TENANT, "Clients": [client]}}))
        ports = ("--port", "5672", "--tls-port", "5671", "--http-port", "5300", "--https-port", "443")
        options = ("--emulator", "--tls-self-signed", "--bearer-tokens", str(tokens), *ports)
        super().__init__(folder, config=_configuration(places), arguments=options)
        self._prefix = island.prefix

    def _command(self, ready_file: Path) -> list[str]:
        return [*self._prefix, *super()._command(ready_file)]


def _configuration(places: Iterable[int]) -> dict[str, Any]:
    """A queue, one with sessions, and a topic for each sample, so that none takes the messages of another."""
    subscriptions = [{"Name": SUBSCRIPTION}, {"Name": SESSION_SUBSCRIPTION, "Properties": {"RequiresSession": True}}]
    queues: list[dict[str, Any]] = []
    topics: list[dict[str, Any]] = []
    for place in places:
        queues += [{"Name": f"queue{place}"}, {"Name": f"sessions{place}", "Properties": {"RequiresSession": True}}]
        topics.append({"Name": f"topic{place}", "Subscriptions": subscriptions})
    return {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": queues, "Topics": topics}]}}


class Samples(WarmPython):
    """Runs samples against one broker."""

    def __init__(self, obtained: Path, folder: Path, island: Island, server: ServerProcess) -> None:
        self.folder = obtained / "samples"
        self._work = folder
        self._packages = folder / "packages"
        self._packages.mkdir()
        bundle = copy_of_certifi(obtained, self._packages, [Path(server.ca)])
        self._environment = {
            **cleaned_environment(),
            "PYTHONPATH": f"{self._packages}{os.pathsep}{obtained / 'packages'}",
            "SERVICEBUS_FULLY_QUALIFIED_NAMESPACE": "localhost",
            "SERVICEBUS_CONNECTION_STR": f"Endpoint=sb://localhost;SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}",
            "SERVICEBUS_SESSION_ID": "a session",
            "SERVICEBUS_SAS_POLICY": KEY_NAME,
            "SERVICEBUS_SAS_KEY": KEY,
            "IDENTITY_ENDPOINT": f"http://localhost:5300/{TENANT}/identity/token",
            "IDENTITY_HEADER": f"{CLIENT}:{SECRET}",
            # For what takes its authorities from OpenSSL: asyncio.
            "SSL_CERT_FILE": str(bundle),
        }
        self._feeder = folder / "feeder.py"
        self._feeder.write_text(_FEEDER)
        # The forks are in the network of the process that waits.
        super().__init__(folder, Kind(MODULES, environment=self._environment, prefix=island.prefix))

    def entities(self, place: int, *, has_sessions: bool) -> dict[str, str]:
        """The variables that name the entities of one sample."""
        return {
            "SERVICEBUS_QUEUE_NAME": f"queue{place}",
            "SERVICEBUS_SESSION_QUEUE_NAME": f"sessions{place}",
            "SERVICEBUS_TOPIC_NAME": f"topic{place}",
            "SERVICEBUS_SUBSCRIPTION_NAME": SESSION_SUBSCRIPTION if has_sessions else SUBSCRIPTION,
        }

    def run(self, program: Path, limit_s: float, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run one to its end."""
        return subprocess.run(
            self._command(program),
            cwd=self._work,
            env={**self._environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def run_until(self, program: Path, wanted: str, limit_s: float, environment: Mapping[str, str]) -> str:
        """Run one that has no end until it has printed something, then end it; returns what it has printed."""
        process = subprocess.Popen(
            self._command(program),
            cwd=self._work,
            env={**self._environment, **environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        watchdog = threading.Timer(limit_s, process.kill)
        watchdog.start()
        lines = []
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if wanted in line:
                    break
        finally:
            watchdog.cancel()
            process.kill()
            process.communicate()
        return "".join(lines)

    @contextmanager
    def feeding(self, environment: Mapping[str, str]) -> Iterator[None]:
        """Meanwhile messages come to the queue: three a second."""
        process = subprocess.Popen(
            [self.program, self._feeder],
            env={**self._environment, **environment},
            stdin=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def _command(self, program: Path) -> list[str]:
        return [str(self.program), str(self.folder / program)]


_FEEDER = """
import os, time
from azure.servicebus import ServiceBusClient, ServiceBusMessage
with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STR"]) as client:
    with client.get_queue_sender(os.environ["SERVICEBUS_QUEUE_NAME"]) as sender:
        while True:
            sender.send_messages(ServiceBusMessage("of the feeder"))
            time.sleep(0.3)
"""
