"""The tests in the Go module of the SDK, its administration's too."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kit_live import (
    FAILED,
    PASSED,
    SKIPPED,
    SUFFIX,
    Broker,
    LiveServer,
    connection_string,
    environment,
    identity,
)

from kits.programs import built, do_without
from kits.published import Island

REQUIRED = "DUOBUS_REQUIRE_LIVE_GO"
MODULE, VERSION = "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus", "v1.11.0"
BUILD_LIMIT_S = 900.0

MESSAGES, ADMINISTRATION = "messages", "administration"
#: What upstream's own template makes beside the namespaces.
_QUEUES = (
    {"Name": "testQueue", "Properties": {}},
    {"Name": "testQueueWithSessions", "Properties": {"RequiresSession": True}},
)
#: A test wants nobody to listen at 127.0.0.1.
STANDARD = Broker("127.0.0.2", (MESSAGES, ADMINISTRATION), "standard", _QUEUES)
PREMIUM = Broker(
    "127.0.0.3", (f"{MESSAGES}-premium", f"{ADMINISTRATION}-premium"), "premium", _QUEUES, trusted=STANDARD.address
)

#: The packages of the module whose tests meet a broker, with their namespaces.
PACKAGES = {".": MESSAGES, "admin": ADMINISTRATION, "internal": MESSAGES}

_DONE = re.compile(r"^--- (PASS|FAIL|SKIP): (\w+)", re.MULTILINE)
_BEGUN = re.compile(r"^=== RUN +(\w+)$", re.MULTILINE)
_OUTCOMES = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}


def obtained() -> Path:
    """A folder with the module's sources and, in ``tests``, what its tests were compiled to; made once."""
    if shutil.which("go") is None:
        do_without("go is not on PATH", REQUIRED)
    return built(f"live-go-{VERSION}", "live-go", _obtain_into)


def _obtain_into(folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    # Apart from every module around it.
    empty = partial / "empty"
    empty.mkdir(parents=True)
    module = json.loads(_go("mod", "download", "-json", f"{MODULE}@{VERSION}", within=empty))
    shutil.copytree(module["Dir"], partial / "module", copy_function=shutil.copyfile)
    # The cache of modules is read-only, and so are the copies of its folders, which could not be removed again.
    for path in (partial / "module", *(partial / "module").rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    (partial / "tests").mkdir()
    packages = [f"./{name}" for name in PACKAGES]
    _go("test", "-c", "-o", f"{partial / 'tests'}{os.sep}", *packages, within=partial / "module")
    partial.rename(folder)


def _go(*command: str, within: Path) -> str:
    flags = f"{os.environ.get('GOFLAGS', '')} -mod=mod -buildvcs=false".strip()
    try:
        done = subprocess.run(
            ["go", *command],
            cwd=within,
            capture_output=True,
            text=True,
            timeout=BUILD_LIMIT_S,
            env={**os.environ, "GOFLAGS": flags, "GOWORK": "off"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        do_without(f"go {command[0]} has no end within {BUILD_LIMIT_S:g} s", REQUIRED)
    if done.returncode:
        do_without(f"go {command[0]} failed: {done.stderr.strip()[-1500:]}", REQUIRED)
    return done.stdout


@dataclass
class GoTests:
    """Runs them against two brokers."""

    obtained: Path
    folder: Path
    island: Island
    standard: LiveServer
    premium: LiveServer

    def __post_init__(self) -> None:
        self._authorities = self.folder / "authorities.pem"
        self._authorities.write_text(self.standard.authority.read_text() + self.premium.authority.read_text())

    def run(self, package: str, limit_s: float, chosen: tuple[str, ...] = ()) -> dict[str, str]:
        """Run the tests of a package, or those chosen of it; returns what became of each."""
        wanted = [name for name in self._listed(package) if not chosen or name in chosen]
        results: dict[str, str] = {}
        # A panic ends the whole program: what it has not come to runs again without what ended it.
        while missing := [name for name in wanted if name not in results]:
            printed = self._run(package, ["-test.v", "-test.run", f"^({'|'.join(missing)})$"], limit_s)
            told = {name: _OUTCOMES[outcome] for outcome, name in _DONE.findall(printed)}
            ended_it = {name: FAILED for name in _BEGUN.findall(printed) if name not in told}
            results.update(told or ended_it or dict.fromkeys(missing, FAILED))
            results.update(ended_it)
        prefix = "" if package == "." else f"{package}/"
        return {prefix + name: results[name] for name in wanted}

    def _listed(self, package: str) -> list[str]:
        printed = self._run(package, ["-test.list", "^Test"], 60.0)
        return [line for line in printed.splitlines() if re.fullmatch(r"Test\w+", line)]

    def _run(self, package: str, options: list[str], limit_s: float) -> str:
        binary = self.obtained / "tests" / f"{'azservicebus' if package == '.' else package}.test"
        done = subprocess.run(
            [*self.island.within(self.obtained / "module" / package), str(binary), *options],
            env=self._environment(PACKAGES[package]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
        with (self.folder / f"{binary.stem}.log").open("a") as log:
            log.write(done.stdout)
        return done.stdout

    def _environment(self, namespace: str) -> dict[str, str]:
        premium = f"{namespace}-premium"
        added = {
            "AZURE_RECORD_MODE": "live",
            "AZURE_TOKEN_CREDENTIALS": "ManagedIdentityCredential",
            "SERVICEBUS_ENDPOINT": namespace + SUFFIX,
            "SERVICEBUS_ENDPOINT_PREMIUM": premium + SUFFIX,
            "SERVICEBUS_CONNECTION_STRING": connection_string(namespace),
            "SERVICEBUS_CONNECTION_STRING_PREMIUM": connection_string(premium),
            "SERVICEBUS_CONNECTION_STRING_NO_MANAGE": connection_string(namespace, "manages-not"),
            "SERVICEBUS_CONNECTION_STRING_SEND_ONLY": connection_string(namespace, "sends"),
            "SERVICEBUS_CONNECTION_STRING_LISTEN_ONLY": connection_string(namespace, "listens"),
            **identity(STANDARD.address),
        }
        return environment(self._authorities, **added)
