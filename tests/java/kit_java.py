"""Java programs against a real broker: how they are built, how they are run, which entities they get."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from kit_programs import Pool, ProgramBus, built, do_without, run_program, version_of

PROGRAMS = Path(__file__).parent / "programs"
#: Set where a missing JDK or Maven is to be a failure instead of a skip.
REQUIRED = "DUOBUS_REQUIRE_JAVA"
#: Downloads of the SDK and what it needs, 43 files, and the compilation.
BUILD_LIMIT_S = 400.0

POOL: Pool = {"plain": (6, {}), "session": (1, {"RequiresSession": True})}
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


class Java:
    """The programs, compiled, with the SDK beside them."""

    def __init__(self, folder: Path) -> None:
        self._path = f"{folder}{os.pathsep}{folder / 'lib'}/*"

    def run(self, program: str, **given: Any) -> dict[str, Any]:
        """Run a program within LIMIT_S and return what it told."""
        return run_program(program, ["java", "-cp", self._path, "Programs", program], given, {})[0]


def build() -> Path:
    """Return the folder of the programs; made once per version of them.

    Skips, or fails where REQUIRED is set, when there is no JDK or Maven, or the SDK cannot be had. What does not
    compile is a failure everywhere.
    """
    for tool in ("java", "javac", "mvn"):
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
    problem = _run(["javac", "-Xlint:all", "-cp", f"{library}/*", "-d", str(partial), str(PROGRAMS / "Programs.java")])
    assert not problem, f"javac failed: {problem}"
    partial.rename(folder)


def _run(command: list[str]) -> str:
    """Run a command; returns what went wrong, and nothing when nothing did."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no end within {BUILD_LIMIT_S:g} s"
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()[-2000:] or f"status {done.returncode}"
