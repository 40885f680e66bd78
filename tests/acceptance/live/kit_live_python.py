"""The live tests in the source package of the SDK for Python."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kit_live import FAILED, HERE, KEY, PASSED, SKIPPED, SUFFIX, Broker, LiveServer, connection_string, environment
from kit_live import identity as identity_of

from kits.published import Island, copy_of_certifi

REQUIRED = "DUOBUS_REQUIRE_LIVE_PYTHON"
#: For messages, and for each of the two sets of tests that count all entities of a namespace.
MESSAGES, SYNC_ADMINISTRATION, ASYNC_ADMINISTRATION = "messages", "administration", "administration-async"
BROKER = Broker("127.0.0.1", (MESSAGES, SYNC_ADMINISTRATION, ASYNC_ADMINISTRATION))

#: Most of the time a test waits: for the end of a lock, or for messages that do not come.
AT_A_TIME = 6
#: More than the longest test takes: one sleeps for five minutes, twice.
TEST_LIMIT_S = 900


@dataclass
class PythonTests:
    """Runs them against one broker."""

    obtained: Path
    folder: Path
    island: Island
    server: LiveServer

    def __post_init__(self) -> None:
        (tests,) = (self.obtained / "source").glob("*/tests")
        self._tests = tests
        self._packages = self.folder / "packages"
        self._packages.mkdir()
        self._bundle = copy_of_certifi(self.obtained, self._packages, [self.server.authority])

    def run(
        self, namespace: str, chosen: Sequence[str], limit_s: float, *, form: str = "tls", at_a_time: int = 0
    ) -> dict[str, str]:
        """Run tests (paths, or ids) against a namespace, ``at_a_time`` if given; returns what became of each."""
        report = self.folder / f"{namespace}-{form}-{len(list(self.folder.glob('*.xml')))}.xml"
        output = report.with_suffix(".log")
        # Our own configuration of pytest is none of theirs, and makes errors of warnings.
        options = ["-c", os.devnull, "--rootdir", str(self._tests), "-p", "live_plugin", "-p", "no:cacheprovider"]
        options += ["-q", "--tb=short", "--show-capture=no", "-W", "ignore", "--timeout", str(TEST_LIMIT_S)]
        options += ["-o", "junit_family=xunit1", "--junitxml", str(report)]
        options += ["-n", str(at_a_time)] if at_a_time else ["-p", "no:xdist"]
        with output.open("wb") as written:
            subprocess.run(
                [*self.island.within(self._tests), sys.executable, "-m", "pytest", *options, *chosen],
                env=self._environment(namespace, form),
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            )
        assert report.exists(), output.read_text(errors="replace")[-3000:]
        return _results(report)

    def _environment(self, namespace: str, form: str) -> dict[str, str]:
        path = (self._packages, self.obtained / "packages", HERE / "stand_in")
        added = {
            "PYTHONPATH": ":".join(map(str, path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SERVICEBUS_ENDPOINT_SUFFIX": SUFFIX,
            "SERVICEBUS_RESOURCE_GROUP": "none",
            "SERVICEBUS_FULLY_QUALIFIED_NAMESPACE": namespace + SUFFIX,
            "SERVICEBUS_CONNECTION_STR": connection_string(namespace),
            "SERVICEBUS_SAS_POLICY": "RootManageSharedAccessKey",
            "SERVICEBUS_SAS_KEY": KEY,
            "LIVE_NAMESPACE": namespace,
            "LIVE_KEY": KEY,
            **identity_of(BROKER.address),
            **({"LIVE_EMULATOR": "1"} if form == "emulator" else {}),
        }
        return environment(self._bundle, **added)


def _results(report: Path) -> dict[str, str]:
    """What became of each test, by its id; of a test and its clearing up the worse."""
    results: dict[str, str] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        # The tests are wrapped, so that the report has the wrapper's file.
        module, _, kind = str(case.get("classname")).rpartition(".")
        name = f"{module.replace('.', '/')}.py::{kind}::{case.get('name')}"
        failed = any(case.find(tag) is not None for tag in ("failure", "error"))
        skipped = case.find("skipped") is not None
        outcome = FAILED if failed else SKIPPED if skipped else PASSED
        if results.get(name) != FAILED:
            results[name] = outcome
    return results
