"""Java programs against a real broker: how they are built, how they are run, which entities they get."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cached_property
from pathlib import Path
from typing import Any

from kits.programs import LIMIT_S, Pool, ProgramBus, built, do_without, run_program, version_of

PROGRAMS = Path(__file__).parent / "programs"
#: Set where a missing JDK or Maven is to be a failure instead of a skip.
REQUIRED = "DUOBUS_REQUIRE_JAVA"
#: Downloads of the SDK and what it needs, 43 files, and the compilation.
BUILD_LIMIT_S = 400.0

#: Programs are too short for the optimizing compiler to pay: without it one takes less than half the processor time.
#: Nor do a collector with threads of its own, and a check of what a compiler of today has made.
JVM_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
#: A trust store without a password is read as one without certificates.
STORE_PASSWORD = "changeit"
STORE_LIMIT_S = 60.0

POOL: Pool = {"plain": (8, {}), "session": (1, {"RequiresSession": True})}
TOPIC = {
    "Name": "topic",
    "Properties": {},
    "Subscriptions": [
        {"Name": "all", "Properties": {}},
        {
            "Name": "even",
            "Properties": {},
            "Rules": [
                {"Name": "even", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "even = TRUE"}}}
            ],
        },
    ],
}


class JavaBus(ProgramBus):
    """A broker process, and what Java programs have to know of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, POOL, [TOPIC])
        self._folder = folder

    @cached_property
    def trust(self) -> Path:
        """A trust store with the broker's own authority, and nothing else."""
        store = self._folder / "trust.p12"
        command = ["keytool", "-importcert", "-keystore", str(store), "-storetype", "PKCS12", "-noprompt"]
        command += ["-storepass", STORE_PASSWORD, "-alias", "duobus", "-file", self.process.ca]
        subprocess.run(command, capture_output=True, timeout=STORE_LIMIT_S, check=True)
        return store

    def route(self, transport: str) -> dict[str, Any]:
        """What the SDK needs to take a transport: tcp, tls or websocket."""
        if transport == "tcp":
            return {"connection": self.process.connection_string}
        connection = self.process.connection_string_tls
        if transport == "tls":
            # The port of the connection string counts, as it does over plain TCP.
            return {"connection": connection, "trust": self.trust}
        return {
            # As with a broker behind another name: the SDK asks the endpoint for it, there and in its tokens.
            "connection": re.sub(r"Endpoint=sb://[^;]+", "Endpoint=sb://orders.example", connection),
            "endpoint": self.https,
            "websocket": True,
            "trust": self.trust,
        }

    @property
    def https(self) -> str:
        """The HTTP port, over TLS; java.net.URL knows no ``sb``."""
        return f"https://localhost:{self.process.ready['http_port']}"


class Java:
    """The programs, compiled, with the SDK beside them."""

    def __init__(self, folder: Path) -> None:
        self._path = f"{folder}{os.pathsep}{folder / 'lib'}/*"

    def run(self, program: str, trust: Path | None = None, limit_s: float = LIMIT_S, **given: Any) -> dict[str, Any]:
        """Run a program within ``limit_s`` and return what it told; ``trust``: instead of the JVM's own trust store."""
        options = list(JVM_OPTIONS)
        if trust is not None:
            options.append(f"-Djavax.net.ssl.trustStore={trust}")
            options.append(f"-Djavax.net.ssl.trustStorePassword={STORE_PASSWORD}")
        return run_program(program, ["java", *options, "-cp", self._path, "Programs", program], given, {}, limit_s)[0]

    def play(self, limit_s: float, **given: Any) -> dict[str, Any]:
        """Play all scenarios in one virtual machine; returns what each told, or its error.

        One that has not ended at the limit has an error that says so; the others keep their verdicts.
        """
        given["limit"] = limit_s
        command = ["java", *JVM_OPTIONS, "-cp", self._path, "Scenarios"]
        return run_program("Scenarios", command, given, {}, limit_s + LIMIT_S)[0]


def build() -> Path:
    """Return the folder of the programs; made once per version of them.

    Skips, or fails where REQUIRED is set, when there is no JDK or Maven, or the SDK cannot be had. What does not
    compile is a failure everywhere.
    """
    for tool in ("java", "javac", "keytool", "mvn"):
        if shutil.which(tool) is None:
            do_without(f"{tool} is not on PATH", REQUIRED)
    files = sorted(path for path in PROGRAMS.iterdir() if path.suffix in {".java", ".xml"})
    return built(f"java-{version_of(files)}", "java", _build_into)


def _build_into(folder: Path) -> None:
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    library = partial / "lib"
    fetch = ["mvn", "-q", "-B", "-f", str(PROGRAMS / "pom.xml"), "dependency:copy-dependencies"]
    problem = _run([*fetch, f"-DoutputDirectory={library}"])
    if problem or not library.is_dir():
        do_without(f"the Java SDK cannot be had: {problem}", REQUIRED)
    sources = [str(path) for path in sorted(PROGRAMS.glob("*.java"))]
    problem = _run(["javac", "-Xlint:all", "-cp", f"{library}/*", "-d", str(partial), *sources])
    assert not problem, f"javac failed: {problem}"
    partial.rename(folder)


def _run(command: list[str]) -> str:
    """Run a command; returns what went wrong, and nothing when nothing did."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no end within {BUILD_LIMIT_S:g} s"
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()[-2000:] or f"status {done.returncode}"
