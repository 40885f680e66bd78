"""Node programs against a real broker: what is installed for them, how they are run, which queues they get."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

from kits.programs import CACHE, Pool, ProgramBus, do_without, run_program

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
#: Set where a missing Node is to be a failure instead of a skip.
REQUIRED = "DUOBUS_REQUIRE_JAVASCRIPT"

INSTALL_LIMIT_S = 240.0

#: Kinds of queues with the number of each that a run may use up.
POOL: Pool = {
    "plain": (50, {}),
    "impatient": (4, {"LockDuration": "PT5S"}),
    "large": (4, {"MaxMessageSizeInKilobytes": 2048}),
    "backing-off": (2, {"RedeliveryDelay": "PT1S", "DelayedAbandon": True, "MaxDeliveryCount": 10}),
    "sessions": (3, {"RequiresSession": True}),
    "parted-sessions": (2, {"RequiresSession": True, "EnablePartitioning": True}),
    "impatient-sessions": (2, {"RequiresSession": True, "LockDuration": "PT5S"}),
}


#: Each for one test.
TOPICS: list[dict[str, Any]] = [
    {
        "Name": "fanout",
        "Subscriptions": [
            {"Name": "all"},
            {
                "Name": "red",
                "Rules": [
                    {
                        "Name": "colour",
                        "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "colour = 'red'"}},
                    }
                ],
            },
        ],
    },
    {"Name": "ruled", "Subscriptions": [{"Name": "changing"}]},
]


class NodeBus(ProgramBus):
    """A broker process, and what Node programs have to know of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, POOL, TOPICS)

    @property
    def http_port(self) -> int:
        """The HTTP port, which takes TLS and WebSockets as well."""
        return int(self.process.ready["http_port"])

    def login(self, queue: str) -> dict[str, Any]:
        """What a plain client needs: port, rule and key with all rights, a queue."""
        return {"port": self.port, **self.credentials(), "queue": queue}

    def route(self, transport: str) -> dict[str, Any]:
        """What the SDK needs to take a transport: tcp, tls or websocket."""
        if transport == "tcp":
            return {"connection": self.process.connection_string}
        port = self.process.ready["tls_port"] if transport == "tls" else self.http_port
        return {
            "connection": self.process.connection_string_tls,
            "endpoint": f"sb://localhost:{port}",
            "websocket": transport == "websocket",
        }

    def offers_websockets(self) -> bool:
        """Whether the path of AMQP over WebSocket answers 101."""
        request = (
            "GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            "Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", self.http_port), timeout=60) as connection:
            connection.sendall(request.encode())
            return connection.recv(64).startswith(b"HTTP/1.1 101")


class Node:
    """The programs, beside the packages that they import.

    Args:
        folder: The installed packages' folder.
        ca: The authority that signed the broker's certificate.
    """

    def __init__(self, folder: Path, ca: str) -> None:
        self.folder = folder
        self._ca = ca

    def run(self, program: str, **given: Any) -> dict[str, Any]:
        """Run a program within LIMIT_S and return what it told."""
        return self.run_traced(program, **given)[0]

    def run_traced(self, program: str, debug: str = "", **given: Any) -> tuple[dict[str, Any], str]:
        """The same with the standard error, which has what ``debug`` asks for (DEBUG of the debug package)."""
        command = ["node", self.folder / "programs" / f"{program}.mjs"]
        return run_program(program, command, given, {"NODE_EXTRA_CA_CERTS": self._ca, "DEBUG": debug})


def node_in(folder: Path, packages: Path, bus: NodeBus) -> Node:
    """Node with the programs in a folder, beside the packages."""
    (folder / "node_modules").symlink_to(packages / "node_modules")
    shutil.copytree(PROGRAMS, folder / "programs")
    return Node(folder, bus.process.ca)


def install() -> Path:
    """Return a folder with the packages of package.json; made once per version of that file.

    Skips, or fails where REQUIRED is set, when there is no Node or the packages cannot be had.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        do_without("node and npm are not on PATH", REQUIRED)
    manifest = (HERE / "package.json").read_bytes()
    folder = CACHE / f"javascript-{hashlib.sha256(manifest).hexdigest()[:12]}"
    CACHE.mkdir(exist_ok=True)
    # Test processes start at the same time; the first installs, the others wait for it.
    with (CACHE / "javascript.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "node_modules").is_dir():
            _install_into(folder, manifest)
    return folder


def _install_into(folder: Path, manifest: bytes) -> None:
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    (partial / "package.json").write_bytes(manifest)
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
    try:
        done = subprocess.run(
            command, cwd=partial, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
        problem = "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1:]
    except subprocess.TimeoutExpired:
        problem = f"no end within {INSTALL_LIMIT_S:g} s"
    if problem:
        do_without(f"npm install failed: {problem}", REQUIRED)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
