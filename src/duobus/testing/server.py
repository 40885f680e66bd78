"""A ``duobus serve`` process of its own: start, freeze, kill, start again on the same data folder.

Used by the demonstration, the kill loop and the SDK tests. The process is in a session of its own, so that Ctrl-C on
the terminal reaches its parent only, which then stops it.
"""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from duobus.clock import Clock
from duobus.testing.ports import HeldPort


class DemoFailed(Exception):
    """The demonstration could not be finished. The text says what was missing, and what the user can do about it."""


#: Bound on a start, recovery of a full data folder on a busy machine included.
START_TIMEOUT_S = 30.0

#: ``duobus serve`` drains in bounded time after SIGTERM; after this it is killed.
STOP_TIMEOUT_S = 15.0

#: Options of ``duobus serve`` unless others are given.
DEFAULT_OPTIONS = ("--emulator", "--tls-self-signed")

_POLL_S = 0.01
_LOG_TAIL_LINES = 40


class ServerProcess:
    """One broker process after the other on one data folder, always on the same ports.

    Args:
        folder: Where data, log, ready file and, if one is made, the configuration are kept; made if missing.
        config: Path of a configuration file, or its contents, which are then written into ``folder``.
        data: The data folder, if it is to be another than ``folder``/data.
        arguments: Further options of ``duobus serve``.
        clock: Time, for the limits.
    """

    def __init__(
        self,
        folder: Path,
        *,
        config: Mapping[str, Any] | Path | None = None,
        data: Path | None = None,
        arguments: Sequence[str] = DEFAULT_OPTIONS,
        clock: Clock | None = None,
    ) -> None:
        self._folder = folder
        self._config = config
        self._data = data or folder / "data"
        self._arguments = tuple(arguments)
        self._clock = clock or Clock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: dict[str, Any] = {}
        self._ports = {option: HeldPort() for option in ("--port", "--tls-port", "--http-port")}
        self._started_at_ms = 0

    @property
    def ready(self) -> dict[str, Any]:
        """The members of the ready file of the latest start; empty before the first start."""
        return self._ready

    @property
    def connection_string(self) -> str:
        """Connection string for plain TCP, with ``UseDevelopmentEmulator=true``."""
        return str(self._ready["connection_string"])

    @property
    def connection_string_tls(self) -> str:
        """Connection string for TLS; use it with ``tls_endpoint`` and ``ca``."""
        return str(self._ready["connection_string_tls"])

    @property
    def tls_endpoint(self) -> str:
        """The value for the SDK's ``custom_endpoint_address``: the SDK ignores the port of the namespace over TLS."""
        return f"sb://localhost:{self._ready['tls_port']}"

    @property
    def websocket_endpoint(self) -> str:
        """The value for the SDK's ``custom_endpoint_address`` with WebSocket; use it with ``ca``, as with TLS."""
        return f"sb://localhost:{self._ready['http_port']}"

    @property
    def ca(self) -> str:
        """Path of the authority that signed the broker's certificate."""
        return str(self._ready["ca"])

    @property
    def log_path(self) -> Path:
        """The file with the standard output and error of the processes, of all starts."""
        return self._folder / "server.log"

    @property
    def is_running(self) -> bool:
        """Whether there is a process now."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the latest start; raises DemoFailed before the first."""
        if self._process is None:
            raise DemoFailed("The broker was never started.")
        return self._process.pid

    @property
    def started_at_ms(self) -> int:
        """Monotonic time at which the latest process was made."""
        return self._started_at_ms

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start a process and wait until clients can connect.

        Raises:
            DemoFailed: The process ended, or was not ready in time; the text holds the end of its log.
        """
        if self.is_running:
            raise DemoFailed("The broker is running already.")
        self._folder.mkdir(parents=True, exist_ok=True)
        # A killed process leaves its ready file behind; it must not be taken for the new one's.
        ready_file = self._folder / "ready.json"
        ready_file.unlink(missing_ok=True)
        self._started_at_ms = self._clock.monotonic_ms()
        with self.log_path.open("ab") as log:
            self._process = start_process(self._command(ready_file), log)
        try:
            self._ready = self._wait_until_ready(ready_file, timeout_s)
        except BaseException:
            # Ctrl-C included: nobody else knows of this process yet.
            self.kill()
            raise

    def restart(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Kill the process, if one is running, and start again on the same data folder and ports."""
        self.kill()
        self.start(timeout_s)

    def freeze(self) -> None:
        """Stop the process where it is (SIGSTOP); its connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL and return when the process is gone; do nothing when there is no process."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()

    def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Send SIGTERM, wait, return the status; kill a process that does not stop in time and raise DemoFailed."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DemoFailed(f"The broker did not stop within {timeout_s:g} s of SIGTERM.\n{self.log_tail()}") from None

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        """Return the end of the log, for an error text; empty when there is none."""
        try:
            text = self.log_path.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        let_go()
        # Whatever happened, no process is left behind; a slow stop is worth an error only when there is none yet.
        try:
            self.terminate()
        except DemoFailed:
            if value is None:
                raise
        finally:
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        if not self.is_running or self._process is None:
            raise DemoFailed(f"The broker is not running.\n{self.log_tail()}")
        self._process.send_signal(number)

    def _command(self, ready_file: Path) -> list[str]:
        command = [sys.executable, "-m", "duobus", "serve", "--data", str(self._data), "--ready-file", str(ready_file)]
        config = self._config_path()
        if config is not None:
            command += ["--config", str(config)]
        # The same at every start, so that clients that retry find the broker.
        for option, port in self._ports.items():
            command += [option, str(port.number)]
        if self._ready.get("https_port"):
            command += ["--https-port", str(self._ready["https_port"])]
        return [*command, *self._arguments]

    def _config_path(self) -> Path | None:
        if self._config is None or isinstance(self._config, Path):
            return self._config
        path = self._folder / "Config.json"
        path.write_text(json.dumps(self._config, indent=2))
        return path

    def _wait_until_ready(self, ready_file: Path, timeout_s: float) -> dict[str, Any]:
        assert self._process is not None
        pause = threading.Event()
        deadline_ms = self._started_at_ms + int(timeout_s * 1000)
        while not ready_file.exists():
            if self._process.poll() is not None:
                raise DemoFailed(
                    f"The broker ended at its start with status {self._process.returncode}.\n{self.log_tail()}"
                )
            if self._clock.monotonic_ms() > deadline_ms:
                raise DemoFailed(f"The broker was not ready within {timeout_s:g} s.\n{self.log_tail()}")
            pause.wait(_POLL_S)
        members: dict[str, Any] = json.loads(ready_file.read_text())
        return members


def start_process(command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, with both outputs in ``log``."""
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )


def let_go() -> None:
    """Close what clients in this process have left open, so that a server does not wait for them when it stops.

    The SDK leaves connections to the collector that nobody has closed; a server that stops gives its clients five
    seconds to close theirs, too (AMQP 1.0 part 2, 2.4).
    """
    gc.collect()


def queues_config(queues: Mapping[str, Mapping[str, Any]], namespace: str = "sbemulatorns") -> dict[str, Any]:
    """Return the contents of a configuration file with these queues (name to properties)."""
    entries = [{"Name": name, "Properties": dict(properties)} for name, properties in queues.items()]
    return {"UserConfig": {"Namespaces": [{"Name": namespace, "Queues": entries}], "Logging": {"Type": "File"}}}
