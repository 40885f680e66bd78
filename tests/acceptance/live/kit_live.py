"""Upstream's own live tests against brokers of ours: where they run, what they are told, what is made of their results.

The tests come from the packages on the registries, at run time and unchanged. They run in a network of their own with a
hosts file of its own, in which brokers have the ports 443 and 5671 under names of the cloud's domain, so that what
clients take for granted holds. Each client has a list of expected failures with their reasons; a test in the list that
passes has to be taken out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duobus.clock import Clock, Entropy
from duobus.gateway.tls import SelfSigned
from duobus.testing.server import ServerProcess
from kits.programs import do_without
from kits.published import Island, cleaned_environment

HERE = Path(__file__).parent
SUFFIX = ".servicebus.windows.net"

TENANT, CLIENT, SECRET = "adfs", "live-tests", "a secret of live tests"
ROOT, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"

#: What the reason begins with where it depends on the speed of the machine whether a test passes.
UNSTEADY = "unsteady"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def is_asked_for(variable: str) -> bool:
    """Whether the whole of a client's tests is to run: the target of make sets the variable."""
    return bool(os.environ.get(variable))


@dataclass
class Broker:
    """What is to be served: a namespace a name, under an address of the loopback."""

    address: str
    namespaces: Sequence[str]
    tier: str = "standard"
    queues: Sequence[Mapping[str, Any]] = ()
    topics: Sequence[Mapping[str, Any]] = ()
    #: Address of the broker whose token endpoint this one trusts beside its own; it has to be started first.
    trusted: str = ""

    def configuration(self) -> dict[str, Any]:
        """In the emulator's format, with rules of less rights beside the one that has all."""
        rights = {"listens": ["Listen"], "sends": ["Send"], "manages-not": ["Listen", "Send"]}
        rules = [{"KeyName": name, "PrimaryKey": KEY, "Rights": allowed} for name, allowed in rights.items()]
        rules.append({"KeyName": ROOT, "PrimaryKey": KEY, "Rights": ["Listen", "Send", "Manage"]})
        namespaces = [
            {
                "Name": name,
                "HostNames": [name + SUFFIX],
                "AuthorizationRules": rules,
                "Queues": list(self.queues),
                "Topics": list(self.topics),
            }
            for name in self.namespaces
        ]
        return {"UserConfig": {"Namespaces": namespaces}}


class LiveServer(ServerProcess):
    """A broker in the island, with the ports that clients take when none is named."""

    def __init__(self, island: Island, folder: Path, broker: Broker) -> None:
        folder.mkdir(exist_ok=True)
        tokens = folder / "tokens.json"
        client = {"ClientId": CLIENT, "ClientSecret": SECRET, "Roles": ["Owner"]}
        known: dict[str, Any] = {"Endpoint": {"Tenant": TENANT, "Clients": [client]}}
        if broker.trusted:
            at = f"http://{broker.trusted}:5300/{TENANT}"
            known["Issuers"] = [{"Issuer": f"{at}/v2.0", "Keys": f"{at}/discovery/v2.0/keys"}]
        tokens.write_text(json.dumps(known))
        tokens.chmod(0o600)
        ports = ("--port", "5672", "--tls-port", "5671", "--http-port", "5300", "--https-port", "443")
        # One authority of its own for each, as no server has to trust another.
        names = [name + SUFFIX for name in broker.namespaces]
        files = SelfSigned(folder / "tls", Clock(), Entropy()).ensure(names)
        #: The certificate of whoever signed the broker's.
        self.authority = files.authority
        certificate = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key))
        options = ("--host", broker.address, *certificate, "--tier", broker.tier, "--bearer-tokens", str(tokens))
        super().__init__(folder, config=broker.configuration(), arguments=(*options, *ports))
        self._prefix = island.prefix

    def _command(self, ready_file: Path) -> list[str]:
        return [*self._prefix, *super()._command(ready_file)]


def made_island(brokers: Iterable[Broker], folder: Path, required: str) -> Island:
    """A network in which the names of the brokers' namespaces lead to them; skips where none can be made."""
    hosts = {name + SUFFIX: broker.address for broker in brokers for name in broker.namespaces}
    island = Island(hosts, folder)
    if not island.is_up:
        island.close()
        do_without("no network with a hosts file of its own can be made here (unshare)", required)
    return island


def identity(address: str) -> dict[str, str]:
    """What tells programs that this machine has an identity, and who gives out its tokens (as Azure App Service)."""
    return {
        "IDENTITY_ENDPOINT": f"http://{address}:5300/{TENANT}/identity/token",
        "IDENTITY_HEADER": f"{CLIENT}:{SECRET}",
    }


def connection_string(namespace: str, rule: str = ROOT) -> str:
    """For a rule of a namespace, over TLS and the usual ports."""
    return f"Endpoint=sb://{namespace}{SUFFIX}/;SharedAccessKeyName={rule};SharedAccessKey={KEY}"


def environment(authorities: Path, **added: str) -> dict[str, str]:
    """That of programs in the island: they trust ``authorities``, and no proxy is in between."""
    return {**cleaned_environment(), "SSL_CERT_FILE": str(authorities), **added}


def expected_failures(client: str, form: str) -> dict[str, str]:
    """The failures that a client's list expects of a form of run, each with its reason."""
    listed: dict[str, dict[str, str]] = json.loads((HERE / f"{client}.json").read_text())
    return listed[form]


def disagreements(results: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """Say where results (test to ``PASSED``, ``FAILED``, ``SKIPPED``) and a list of expected failures do not agree.

    A test in the list that skips itself does so for what the broker lacks; one whose reason begins with ``UNSTEADY``
    may pass as well. Tests in the list that were not run are none of its business: a short run has few of them.
    """
    unexpected = [name for name in results if results[name] == FAILED and name not in expected]
    steady = [name for name in expected if not expected[name].startswith(UNSTEADY)]
    passed = [name for name in steady if results.get(name) == PASSED]
    return [
        *(f"{name} failed, and the list does not expect it" for name in unexpected),
        *(f"{name} is in the list of expected failures and passed: take it out ({expected[name]})" for name in passed),
    ]


def told(results: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """A line that says how a run went."""
    count = {outcome: sum(one == outcome for one in results.values()) for outcome in (PASSED, FAILED, SKIPPED)}
    known = sum(results.get(name) == FAILED for name in expected)
    return (
        f"{count[PASSED]} of {len(results)} passed, {count[FAILED]} failed ({known} of them expected), "
        f"{count[SKIPPED]} skipped themselves"
    )
