"""Servers of tests begin in a fork of a process that has imported duobus already.

Importing the package takes three times as long as the rest of a start, and the tests start hundreds of servers. Each
process of tests has one process that waits with everything imported; a server is a fork of that process, in a session
of its own as ever, with the command line, environment, folder and output that ``subprocess`` would give it. Only
``ServerProcess`` begins so, within tests; programs that tests run, such as campaigns, start the interpreter.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NoReturn, Self, cast

from duobus.testing.server import start_process

#: A command that can begin in a fork; whatever follows is given to the command line of duobus.
PREFIX: Final = (sys.executable, "-m", "duobus", "serve")
#: Imported before the first fork: the command, and what a running server imports.
MODULES: Final = (
    "duobus.cli.main",
    "duobus.cli.commands.serve",
    "duobus.server.process",
    "duobus.server.composition",
    "duobus.server.backups",
    "duobus.server.cluster_server",
    "duobus.gateway.certificates",
    "duobus.gateway.relay.server",
    "duobus.gateway.rest.server",
    "duobus.gateway.websocket",
    "duobus.storage.catalog.sqlite",
    "duobus.storage.catalog.postgres",
    "duobus.storage.memory",
    "duobus.storage.postgres.store",
    "duobus.storage.sqlite.store",
    "aiohttp.web",
    "concurrent.futures.thread",
    "encodings.ascii",
    "encodings.idna",
    "encodings.utf_8_sig",
)
#: A message between both processes, in bytes.
MESSAGE_MAX: Final = 1 << 20
#: Environment variables that are read by the interpreter at its start, by how they begin.
OF_THE_INTERPRETER: Final = ("PYTHON", "LD_")


def can_fork(command: Sequence[str]) -> bool:
    """Whether the system and the command allow a start in a fork."""
    return sys.platform == "linux" and tuple(command[: len(PREFIX)]) == PREFIX


def interpreter_environment() -> dict[str, str]:
    """Variables that a fork cannot take over."""
    return {name: value for name, value in os.environ.items() if name.startswith(OF_THE_INTERPRETER)}


class ForkedProcess:
    """What ``subprocess.Popen`` offers, for a fork of the waiting process."""

    def __init__(self, starter: PromptStarter, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._starter = starter
        self._lock = threading.Lock()
        # The process stays a zombie until its status is asked for, so its number is not given to another one.
        self._descriptor = os.pidfd_open(pid)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while the process runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; raises ``subprocess.TimeoutExpired``."""
        status = self._look(None if timeout is None else timeout)
        if status is None:
            raise subprocess.TimeoutExpired(list(PREFIX), cast(float, timeout))
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.poll() is None:
            self._starter.kills += 1
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._descriptor], [], [], timeout)[0]:
            with self._lock:
                # The status is there to be asked for once, and several threads may look.
                if self.returncode is None:
                    self.returncode = self._starter.status_of(self.pid)
        return self.returncode


def start_promptly(starters: list[PromptStarter], command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a server by the waiting process of ``starters``, which begins with the first command that it can start.

    A command that enters a network of its own is not such a command: its test is in that network itself, the waiting
    process would begin there, and end with the network before the tests behind it.
    """
    if not can_fork(command):
        return start_process(command, log)
    if not starters:
        starters.append(PromptStarter())
    return starters[0].start(command, log)


class PromptStarter:
    """The process that waits, and the way to it. One for all threads."""

    def __init__(self) -> None:
        #: Servers that were killed while they ran.
        self.kills = 0
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        self._environment = interpreter_environment()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()
        self._process.wait()

    def start(self, command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a server as ``duobus.testing.server.start_process`` does; ``can_fork`` has allowed the command."""
        if interpreter_environment() != self._environment:
            return start_process(command, log)
        request = {"arguments": list(command[3:]), "environment": dict(os.environ), "folder": str(Path.cwd())}
        pid = self._ask(request, [log.fileno()])
        return cast("subprocess.Popen[bytes]", ForkedProcess(self, pid))

    def status_of(self, pid: int) -> int:
        """The exit status of a fork that has ended."""
        return self._ask({"status": pid}, [])

    def _ask(self, request: dict[str, Any], descriptors: list[int]) -> int:
        with self._lock:
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
                answer = self._socket.recv(MESSAGE_MAX)
            except ConnectionError:
                answer = b""
        if not answer:
            status = self._process.wait(10)
            raise RuntimeError(f"the process that starts servers for tests has ended with status {status}")
        return int(answer)


# -- the process that waits -------------------------------------------------------------------------------------------


def serve_requests(channel: socket.socket) -> None:
    """Fork for each request; end when nobody asks any more."""
    while True:
        data, descriptors, _flags, _address = socket.recv_fds(channel, MESSAGE_MAX, 1)
        if not data:
            return
        request = json.loads(data)
        if "status" in request:
            _pid, status = os.waitpid(request["status"], 0)
            channel.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        begun, tells = os.pipe()
        pid = os.fork()
        if pid == 0:
            channel.close()
            os.close(begun)
            become_server(request, descriptors[0], tells)
        os.close(descriptors[0])
        os.close(tells)
        # As with subprocess, the process is in its own session when its number is known.
        os.read(begun, 1)
        os.close(begun)
        channel.send(str(pid).encode())


def become_server(request: dict[str, Any], output: int, tells: int) -> NoReturn:
    """Run the command of a request in this fork, as a process of its own."""
    status = 1
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.close(tells)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = ["duobus", *request["arguments"]]
        from duobus.cli.main import main

        main()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 -- whatever it is, the fork must not go on as its parent would
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def wait_for_requests() -> None:
    """The life of the process that waits; the number of its socket is its argument."""
    from importlib import import_module

    channel = socket.socket(fileno=int(sys.argv[1]))
    for name in MODULES:
        import_module(name)
    gc.collect()
    gc.freeze()
    serve_requests(channel)


if __name__ == "__main__":
    wait_for_requests()
