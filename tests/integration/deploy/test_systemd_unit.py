"""The unit of one server: systemd finds nothing wrong with it, it is hardened, and a server can live within it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from duobus.cli.commands.serve import command
from duobus.cli.main import main
from duobus.cli.settings_file import keys_of
from duobus.server import process as run
from duobus.server.composition import PEERS_CLOSE_S
from duobus.server.settings import Settings

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "deploy" / "systemd" / "duobus.service"
SETTINGS = ROOT / "deploy" / "systemd" / "duobus.toml"
LOGROTATE = ROOT / "deploy" / "logrotate" / "duobus"

#: Of ``systemd-analyze security``, in tenths: 15 is 1.5 of 10, where less is better.
EXPOSURE_MAX = 15

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace here")


def values(name: str, unit: str | None = None) -> list[str]:
    """All values of a setting of the unit, in order."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text() if unit is None else unit, re.MULTILINE)


def installed(folder: Path, text: str) -> Path:
    """A unit whose program is one that is there."""
    path = folder / "duobus.service"
    path.write_text(text.replace("/opt/duobus/bin/duobus", "/bin/true"))
    return path


def analyzed(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *map(str, words)], capture_output=True, text=True, timeout=60, check=False
    )


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_unit_and_something_with_one_that_is_wrong(tmp_path: Path) -> None:
    done = analyzed("verify", installed(tmp_path, UNIT.read_text()))
    assert done.returncode == 0, done.stderr
    assert "duobus.service" not in done.stderr
    wrong = UNIT.read_text().replace("Type=notify", "Type=notified")
    assert "duobus.service" in analyzed("verify", installed(tmp_path, wrong)).stderr


@needs_systemd
def test_the_unit_exposes_little_and_without_one_of_its_walls_too_much(tmp_path: Path) -> None:
    def exposure(text: str) -> subprocess.CompletedProcess[str]:
        return analyzed("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", installed(tmp_path, text))

    done = exposure(UNIT.read_text())
    assert done.returncode == 0, done.stdout
    for wall in ("PrivateDevices=yes", "CapabilityBoundingSet=", "RestrictNamespaces=yes"):
        assert exposure(UNIT.read_text().replace(f"\n{wall}\n", "\n")).returncode != 0, wall


def test_the_command_of_the_unit_is_one_that_serve_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Settings] = []
    monkeypatch.setattr(run, "serve", lambda settings: started.append(settings) or 0)
    (line,) = values("ExecStart")
    program, *words = shlex.split(
        line.replace("/etc/duobus/duobus.toml", str(SETTINGS)).replace("${STATE_DIRECTORY}", str(tmp_path / "bus"))
    )
    assert program == "/opt/duobus/bin/duobus"
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert (started[0].data, started[0].host) == (tmp_path / "bus", "127.0.0.1")


def test_every_key_of_the_example_is_an_option_even_where_it_is_commented_out() -> None:
    keys = re.findall(r"^(?:# )?([a-z-]+) = ", SETTINGS.read_text(), re.MULTILINE)
    assert len(keys) > 4
    assert set(keys) <= set(keys_of(command))


def test_a_stop_is_given_longer_than_the_delay_of_the_example_and_the_close_of_its_clients() -> None:
    (limit,), (delay,) = values("TimeoutStopSec"), re.findall(r"^drain-delay = (\d+)$", SETTINGS.read_text(), re.M)
    assert int(limit) >= int(delay) + PEERS_CLOSE_S + 30


def test_logrotate_has_the_file_of_the_settings_opened_anew() -> None:
    (path,) = re.findall(r'^# log-file = "(.*)"$', SETTINGS.read_text(), re.MULTILINE)
    text = LOGROTATE.read_text()
    assert f"{path} {{" in text
    assert values("LogsDirectory") == [Path(path).parent.name]
    assert "--signal=HUP duobus.service" in text
    # It would lose what is written between the copy and the cut.
    assert not re.search(r"^\s*copytruncate", text, re.MULTILINE)


def system_calls(sets: str) -> Iterator[str]:
    """The names of system calls in a filter of systemd."""
    for word in sets.split():
        if not word.startswith("@"):
            yield word
            continue
        listed = analyzed("syscall-filter", word).stdout.splitlines()[1:]
        inner = " ".join(line.strip() for line in listed if line.strip() and not line.strip().startswith("#"))
        yield from system_calls(inner)


def allowed_calls(filters: list[str]) -> set[str]:
    """What several filters leave, as systemd reads them: one that begins with ~ takes away."""
    found: set[str] = set()
    for one in filters:
        if one.startswith("~"):
            found -= set(system_calls(one[1:]))
        else:
            found |= set(system_calls(one))
    return found


def traced(folder: Path) -> str:
    """System calls of a server from its start over a reload to its stop."""
    trace, ready = folder / "trace", folder / "ready.json"
    words = ["--data", folder / "bus", "--port", 0, "--tls-port", 0, "--http-port", 0, "--tls-self-signed"]
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            ["strace", "-f", "-qq", "-s", "64", "-o", trace, sys.executable, "-m", "duobus", "serve"]
            + [str(word) for word in [*words, "--ready-file", ready, "--log-file", folder / "log"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    deadline = time.monotonic() + 60
    while not ready.exists():
        if process.poll() is not None:
            pytest.skip(f"strace is not permitted here: {(folder / 'stderr').read_text()}")
        assert time.monotonic() < deadline
        time.sleep(0.05)
    broker = int(re.findall(r'"pid": (\d+)', ready.read_text())[0])
    os.kill(broker, signal.SIGHUP)
    os.kill(broker, signal.SIGTERM)
    assert process.wait(60) == 0
    return trace.read_text()


@needs_systemd
@needs_strace
def test_a_server_does_nothing_that_the_unit_forbids(tmp_path: Path) -> None:
    trace = traced(tmp_path)
    called = set(re.findall(r"^\d+ +([a-z]\w*)\(", trace, re.MULTILINE))
    assert {"openat", "fdatasync", "accept4", "listen"} & called
    if os.geteuid() == 0:
        # SQLite gives its files the owner of the database, when root runs it.
        called.discard("fchown")
    allowed = allowed_calls(values("SystemCallFilter"))
    assert sorted(called - allowed) == []
    # The filter is one: what the unit takes away is not among what it leaves.
    assert not {"chroot", "mount", "setuid", "sched_setaffinity", "reboot"} & allowed
    families = set(re.findall(r"socket(?:pair)?\((AF_\w+)", trace))
    assert families <= set(" ".join(values("RestrictAddressFamilies")).split())
    assert values("MemoryDenyWriteExecute") == ["yes"]
    assert "PROT_WRITE|PROT_EXEC" not in trace
    # What is read of /proc beyond processes would be hidden by ProcSubset=pid.
    assert '"/proc/sys/kernel/random/boot_id"' in trace
    assert values("ProcSubset") == []
