"""What ``make dist`` builds: the same bytes each time, nothing but the packages, and it installs where nothing else is.

Without DUOBUS_REQUIRE_DIST the wheel is installed twice, alone and with one extra; ``make dist`` tries both files with
each extra.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from kits.programs import do_without
from tools import dist

ROOT = Path(__file__).resolve().parents[3]
REQUIRED = "DUOBUS_REQUIRE_DIST"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

#: Extra to what it brings to a program that imports it.
EXTRAS = {
    "": "import duobus.cli.main, duobus.server.process, duobus_demo.command",
    "arrow": "from duobus.arrow import Claim, read_queue",
    "delta": "import deltalake, pyarrow",
    "iceberg": "import pyarrow, pyiceberg.catalog.sql",
    "ha": "import duobus.ha.aio, duobus.ha.sync",
    "postgres": "import duobus.storage.postgres.store, duobus.server.cluster_server",
    "telemetry": "import opentelemetry.metrics, opentelemetry.trace",
    "console": "from duobus.console import application, settings; application.build_app(settings.ConsoleSettings())",
    "spark": "import pyspark_duobus, duobus.spark, pyspark, pandas",
    "spark-connect": "import pyspark_duobus, duobus.spark, grpc, pyspark.sql.connect.session",
}
#: What only people need who work on duobus in a clone.
FOR_DEVELOPERS = {"dev", "fuzz", "mutants"}
#: Tried without `make dist`, which tries both files with every extra.
SHORT_FORM = [("wheel", "")]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("dist")]


class Bare:
    """An environment into which the wheel was installed; nothing of the clone helps it."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._programs = python.parent
        self._folder = folder
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}

    def run(self, program: str, *arguments: str) -> str:
        """What a program prints; it has to do its work."""
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(command, cwd=self._folder, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def server(self, ready: Path) -> Iterator[None]:
        """The broker, until it is told to stop."""
        options = ["--data", "bus", "--emulator", "--port", "0", "--http-port", "0", "--ready-file", str(ready)]
        command = [str(self._programs / "duobus"), "serve", *options]
        with subprocess.Popen(command, cwd=self._folder, env=self.environment, stderr=subprocess.DEVNULL) as process:
            try:
                limit = time.monotonic() + 60
                while not ready.exists():
                    assert process.poll() is None
                    assert time.monotonic() < limit
                    time.sleep(0.05)
                yield
            finally:
                process.terminate()
            assert process.wait(60) == 0


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Source archive and wheel of the commit that is checked out."""
    if subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True).returncode:
        do_without("this is no clone of the repository", REQUIRED)
    try:
        dist.tools()
    except subprocess.CalledProcessError as error:
        do_without(f"the tools cannot be had: {error}", REQUIRED)
    archive, wheel = dist.build(tmp_path_factory.mktemp("dist"))
    return archive, wheel


def test_the_same_commit_gives_the_same_bytes_whoever_builds(
    built: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(dist.commit_time()))
    before = os.umask(0o077)
    try:
        again = dist.build(tmp_path)
    finally:
        os.umask(before)
    assert [path.name for path in again] == [path.name for path in built]
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in built]


def test_twine_finds_no_fault(built: tuple[Path, Path]) -> None:
    dist.check(list(built))


def test_the_wheel_holds_exactly_the_files_of_the_three_packages(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        files = {name for name in wheel.namelist() if not name.endswith("/")}
    packages = {name for name in files if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in packages} == {"duobus", "duobus_demo", "pyspark_duobus"}
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-tree", "-r", "--name-only", "HEAD:src"], capture_output=True, text=True, check=True
    )
    assert packages == set(listed.stdout.split())
    (information,) = {name.split("/")[0] for name in files - packages}
    assert information == f"duobus-{PROJECT['version']}.dist-info"


def test_the_wheel_says_what_the_project_says(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        information = f"duobus-{PROJECT['version']}.dist-info"
        about = Parser().parsestr(wheel.read(f"{information}/METADATA").decode())
        points = wheel.read(f"{information}/entry_points.txt").decode()
    assert (about["Name"], about["Requires-Python"]) == ("duobus", PROJECT["requires-python"])
    assert set(about.get_all("Provides-Extra") or ()) == set(PROJECT["optional-dependencies"])
    assert about.get_payload().startswith("# duobus")
    assert "duobus = duobus.cli.main:main" in points
    assert "duobus = duobus.testing.plugin" in points


def test_the_source_archive_builds_by_itself_and_has_no_other_top_folder(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = archive.getnames()
    assert {name.split("/")[0] for name in names} == {f"duobus-{PROJECT['version']}"}
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.py"} <= {name.split("/", 1)[-1] for name in names}


def test_every_extra_of_the_project_is_tried() -> None:
    assert set(PROJECT["optional-dependencies"]) == set(EXTRAS) - {""} | FOR_DEVELOPERS


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("kind", ["archive", "wheel"])
def test_each_file_installs_into_a_bare_environment(
    built: tuple[Path, Path], tmp_path: Path, kind: str, extra: str
) -> None:
    if (kind, extra) not in SHORT_FORM and not os.environ.get(REQUIRED):
        pytest.skip(f"make dist tries the {kind} with the extra {extra!r}")
    python = tmp_path / "venv" / "bin" / "python"
    # A pip in there would be installed and compiled first; the one of the tests sees nothing but that environment.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    file = built[("archive", "wheel").index(kind)]
    what = f"duobus[{extra}] @ {file.as_uri()}" if extra else str(file)
    done = subprocess.run(
        [*pip, "install", "--quiet", "--no-input", "--no-compile", what], capture_output=True, text=True
    )
    if done.returncode:
        do_without(f"pip cannot install it: {done.stderr.strip().splitlines()[-1:]}", REQUIRED)
    bare = Bare(python, tmp_path)
    checked = subprocess.run([*pip, "check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    bare.run("python", "-c", EXTRAS[extra])
    assert bare.run("duobus", "--version") == f"duobus {PROJECT['version']}\n"
    ready = tmp_path / "ready.json"
    with bare.server(ready):
        if extra == "ha":
            text = f"import json; print(json.load(open({str(ready)!r}))['connection_string'])"
            bare.environment["DUOBUS_CONNECTION_STRING"] = bare.run("python", "-c", text).strip()
            bare.run("duobus", "queue", "create", "orders")
            bare.run("duobus", "message", "send", "orders", "two chairs")
            assert "two chairs" in bare.run("duobus", "message", "receive", "orders")
