"""The live tests in the crate azservicebus."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit_live import FAILED, KEY, PASSED, ROOT, SUFFIX, Broker, LiveServer, connection_string, environment

from kits.programs import built, do_without
from kits.published import Island

REQUIRED = "DUOBUS_REQUIRE_LIVE_RUST"
CRATE, VERSION = "azservicebus", "0.25.1"
#: The whole of a TLS library is compiled.
BUILD_LIMIT_S = 1800.0

NAMESPACE = "messages"
_WITH_SESSIONS = {"RequiresSession": True}
BROKER = Broker(
    "127.0.0.1",
    (NAMESPACE,),
    "standard",
    queues=({"Name": "queue", "Properties": {}}, {"Name": "sessions", "Properties": _WITH_SESSIONS}),
    topics=(
        {"Name": "topic", "Subscriptions": [{"Name": "all"}]},
        {"Name": "topic-of-sessions", "Subscriptions": [{"Name": "all", "Properties": _WITH_SESSIONS}]},
        {"Name": "topic-of-rules", "Subscriptions": [{"Name": "all"}]},
    ),
)
#: Those of the crate that end by themselves; one more sends for two hours.
PROGRAMS = ("client_live_tests", "queue_live_tests", "topic_live_tests")

#: Most programs run their tests by hand and print what became of each; libtest prints its own.
_BY_HAND = re.compile(r"test (\w+?)(?: \.\.\. )?(Ok\(\(\)\)|Err\()")
_BY_LIBTEST = re.compile(r"^test (\w+) \.\.\. (ok|FAILED)$", re.MULTILINE)


def obtained() -> Path:
    """A folder with the crate and, in ``tests``, what its tests were compiled to; made once."""
    if shutil.which("cargo") is None:
        do_without("cargo is not on PATH", REQUIRED)
    return built(f"live-rust-{VERSION}", "live-rust", _obtain_into)


def _obtain_into(folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    # What was compiled before an end without success is of use for the next attempt.
    shutil.rmtree(partial / "crate", ignore_errors=True)
    asking = partial / "asking"
    (asking / "src").mkdir(parents=True, exist_ok=True)
    (asking / "src" / "lib.rs").write_text("")
    package = '[package]\nname = "asking"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n[dependencies]\n'
    (asking / "Cargo.toml").write_text(f'{package}{CRATE} = "={VERSION}"\n')
    told = json.loads(_cargo("metadata", "--format-version", "1", within=asking))
    (crate,) = (one for one in told["packages"] if one["name"] == CRATE)
    shutil.copytree(Path(crate["manifest_path"]).parent, partial / "crate")
    with (partial / "crate" / "Cargo.toml").open("a") as manifest:
        # Apart from every workspace around it.
        manifest.write("\n[workspace]\n")
    names = [option for name in PROGRAMS for option in ("--test", name)]
    options = ["--locked", "--features", "test_e2e", "--no-run", "--message-format", "json"]
    printed = _cargo("test", *options, *names, within=partial / "crate", target=partial / "target")
    (partial / "tests").mkdir(exist_ok=True)
    for line in printed.splitlines():
        message: dict[str, Any] = json.loads(line)
        if message.get("executable") and message["target"]["name"] in PROGRAMS:
            shutil.copy(message["executable"], partial / "tests" / message["target"]["name"])
    shutil.rmtree(partial / "target")
    partial.rename(folder)


def _cargo(*command: str, within: Path, target: Path | None = None) -> str:
    try:
        done = subprocess.run(
            ["cargo", *command],
            cwd=within,
            capture_output=True,
            text=True,
            timeout=BUILD_LIMIT_S,
            env={**os.environ, "CARGO_TARGET_DIR": str(target or within / "target")},
            check=False,
        )
    except subprocess.TimeoutExpired:
        do_without(f"cargo {command[0]} has no end within {BUILD_LIMIT_S:g} s", REQUIRED)
    if done.returncode:
        do_without(f"cargo {command[0]} failed: {done.stderr.strip()[-1500:]}", REQUIRED)
    return done.stdout


@dataclass
class RustTests:
    """Runs them against one broker."""

    obtained: Path
    folder: Path
    island: Island
    server: LiveServer

    def run(self, program: str, limit_s: float) -> dict[str, str]:
        """Run one of PROGRAMS; returns what became of each of its tests. One that said nothing has failed."""
        source = (self.obtained / "crate" / "tests" / f"{program}.rs").read_text()
        by_hand = re.findall(r'print!\("test (\w+)"\)', source)
        wanted = by_hand or re.findall(r"#\[tokio::test\]\s+async fn (\w+)", source)
        done = subprocess.run(
            [
                *self.island.within(self.obtained / "crate"),
                str(self.obtained / "tests" / program),
                "--test-threads=1",
                "--nocapture",
            ],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
        (self.folder / f"{program}.log").write_text(done.stdout)
        if by_hand:
            passed = {name for name, outcome in _BY_HAND.findall(done.stdout) if outcome == "Ok(())"}
        else:
            passed = {name for name, outcome in _BY_LIBTEST.findall(done.stdout) if outcome == "ok"}
        return {f"{program}/{name}": PASSED if name in passed else FAILED for name in wanted}

    def _environment(self) -> dict[str, str]:
        added = {
            "SERVICE_BUS_CONNECTION_STRING": connection_string(NAMESPACE),
            "SERVICE_BUS_NAMESPACE": NAMESPACE + SUFFIX,
            "SERVICE_BUS_SAS_KEY_NAME": ROOT,
            "SERVICE_BUS_SAS_KEY": KEY,
            "SERVICE_BUS_QUEUE": "queue",
            "SERVICE_BUS_SESSION_QUEUE": "sessions",
            "SERVICE_BUS_TOPIC": "topic",
            "SERVICE_BUS_SUBSCRIPTION": "all",
            "SERVICE_BUS_SESSION_TOPIC": "topic-of-sessions",
            "SERVICE_BUS_SESSION_SUBSCRIPTION": "all",
            "SERVICE_BUS_RULE_FILTER_TEST_TOPIC": "topic-of-rules",
            "SERVICE_BUS_RULE_FILTER_TEST_SUBSCRIPTION": "all",
        }
        return environment(self.server.authority, **added)
