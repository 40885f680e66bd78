"""The unit and the compose file of several servers: their command lines are ones that ``duobus serve`` takes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.clock import Clock, Entropy
from duobus.gateway.tls import SelfSigned
from duobus.server import process as run
from duobus.server.settings import Settings

FOLDER = Path(__file__).parents[3] / "examples" / "cluster"
UNIT = FOLDER / "duobus.service"
COMPOSE = FOLDER / "compose.yaml"


def _settings(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What the server would run with."""
    found: list[Settings] = []

    def serve(settings: Settings) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr(run, "serve", serve)
    assert words[:1] == ["serve"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return found[0]


def test_the_command_of_the_unit_is_one_that_serve_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = SelfSigned(tmp_path / "tls", Clock(), Entropy()).ensure(())
    (tmp_path / "Config.json").write_text('{"UserConfig": {"Namespaces": []}}')
    (line,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    for name, path in {
        "/etc/duobus/server.pem": files.certificate,
        "/etc/duobus/server.key": files.key,
        "/etc/duobus/ca.pem": files.authority,
        "/etc/duobus/Config.json": tmp_path / "Config.json",
        "/var/lib/duobus": tmp_path / "data",
        "${DUOBUS_CATALOG}": "postgresql://duobus@db.example/duobus?sslmode=verify-full",
        "${DUOBUS_ADVERTISE}": "bus1.example",
    }.items():
        assert name in line
        line = line.replace(name, str(path))
    program, *words = shlex.split(line)
    assert program == "/opt/duobus/bin/duobus"
    settings = _settings(words, monkeypatch)
    assert settings.join is not None
    assert settings.advertise == "bus1.example"
    assert settings.cluster_ca == files.authority


def test_the_unit_gives_a_drain_the_time_that_it_may_take() -> None:
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert int(seconds) >= 30


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "duobus.service"
    # The program is not installed here.
    unit.write_text(UNIT.read_text().replace("/opt/duobus/bin/duobus", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "duobus.service" not in done.stderr


def test_the_commands_of_the_compose_file_are_ones_that_serve_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = [
        json.loads(found) for found in re.findall(r"^    command: (\[.*\])$", COMPOSE.read_text(), re.MULTILINE)
    ]
    names = []
    for shell, option, text in commands:
        assert (shell, option) == ("sh", "-c")
        program, *words = shlex.split(text.rpartition("exec ")[2].replace("/var/lib/duobus", str(tmp_path / "data")))
        assert program == "duobus"
        names.append(_settings(words, monkeypatch).advertise)
    # What they say of themselves is what the network of compose calls them.
    assert names == re.findall(r"^  (server-\d):$", COMPOSE.read_text(), re.MULTILINE)
    assert len(names) == 3


def test_the_compose_file_lets_nobody_in_from_elsewhere() -> None:
    ports = re.findall(r'^      - "([^"]*):\d+:\d+"$', COMPOSE.read_text(), re.MULTILINE)
    assert set(ports) == {"127.0.0.1"}


def test_the_compose_file_is_yaml() -> None:
    yaml = pytest.importorskip("yaml", reason="there is no YAML reader here")
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    assert set(services) == {"database", "server-1", "server-2", "server-3"}
