"""HAProxy in front of several servers: one name for all of them, as docs/how-to/one-name.md has it."""

from __future__ import annotations

import csv
import io
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from duobus.testing.ports import HeldPort

#: Only ends a hang.
START_S: Final = 30.0
_CONFIG: Final = """
global
    stats socket {stats} level admin
    noreuseport

defaults
    mode tcp
    timeout connect 2s
    timeout client 5m
    timeout server 5m
    timeout check 2s
"""
_SECTION: Final = """
listen {name}
    bind 127.0.0.1:{port}
    balance leastconn
    option redispatch
    retries 2
    option httpchk GET /health/ready
    default-server inter 200ms fall 2 rise 1 on-marked-down shutdown-sessions
{servers}
"""


class HAProxy:
    """A process that passes connections on.

    Attributes:
        ports: Name of a section to the port that clients use.
    """

    def __init__(self, folder: Path, sections: Mapping[str, Sequence[tuple[int, int]]]) -> None:
        self._held = {name: HeldPort() for name in sections}
        self.ports = {name: held.number for name, held in self._held.items()}
        self._stats = folder / "stats"
        text = _CONFIG.format(stats=self._stats)
        for name, targets in sections.items():
            servers = "".join(
                f"    server bus{number} 127.0.0.1:{port} check port {http_port}\n"
                for number, (port, http_port) in enumerate(targets)
            )
            text += _SECTION.format(name=name, port=self.ports[name], servers=servers)
        (folder / "haproxy.cfg").write_text(text)
        with (folder / "log").open("ab") as log:
            command = ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self._log = folder / "log"

    def rows(self, section: str) -> dict[str, dict[str, str]]:
        """What HAProxy tells of each server of a section, among others ``status`` and ``stot``, all its connections."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self._stats))
            client.sendall(b"show stat\n")
            told = b"".join(iter(lambda: client.recv(65_536), b"")).decode()
        found = csv.DictReader(io.StringIO(told.lstrip("# ")))
        return {row["svname"]: row for row in found if row["pxname"] == section and row["svname"].startswith("bus")}

    def await_status(self, section: str, status: str, *servers: str) -> None:
        """Wait until servers, all unless they are named, have a status: ``UP`` or ``DOWN``."""
        end = time.monotonic() + START_S
        while True:
            assert self.process.poll() is None, self._log.read_text()
            rows: dict[str, dict[str, str]] = {}
            with suppress(OSError):
                rows = self.rows(section)
            if rows and all(rows[name]["status"].startswith(status) for name in servers or rows):
                return
            assert time.monotonic() < end, (rows, self._log.read_text())
            time.sleep(0.05)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


@contextmanager
def running_haproxy(folder: Path, sections: Mapping[str, Sequence[tuple[int, int]]]) -> Iterator[HAProxy]:
    """HAProxy, gone afterwards; the test is skipped and counted where it is not installed.

    Args:
        folder: For its configuration and its log.
        sections: Name to the (port, HTTP port for the question whether it is ready) of each server.
    """
    if shutil.which("haproxy") is None:
        pytest.skip("there is no haproxy: apt-get install haproxy")
    found = HAProxy(folder, sections)
    try:
        for name in sections:
            found.await_status(name, "UP")
        yield found
    finally:
        found.close()
