"""The console beside a server: a process of its own, which is started again when it dies and ends with the server.

The console can neither slow the server down nor take it along: it has a lower priority, shares no memory, and asks the
server by the requests that every client may make. It is told where the server is, and no key unless that is public.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Final, NamedTuple

from duobus.clock import Clock
from duobus.errors import ConfigurationError
from duobus.server.settings import Settings
from duobus.telemetry.logs import Log

#: Pauses before the console is started again, in seconds: twice the last one, from the first to the longest.
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
#: A console that ran for so long had started well; the next pause is the first one.
_STEADY_MS: Final = 60_000
#: How long a console that is told to end is waited for, in seconds.
_END_S: Final = 5.0
#: How much lower the priority of the console is.
_NICENESS: Final = 10
#: Longest line of the console that is read.
_LINE_BYTES: Final = 65_536
_COMMAND: Final = (sys.executable, "-m", "duobus", "console", "--json", "--stdin-ends")


class ConsoleOptions(NamedTuple):
    """What a console is started with.

    Attributes:
        arguments: Of the command ``duobus console``.
        connection_string: Where the server is; in the environment, where other users do not see it.
    """

    arguments: tuple[str, ...]
    connection_string: str


def demand_console() -> None:
    """Refuse ``--console`` where the console's packages are not installed.

    Raises:
        ConfigurationError: They are not.
    """
    # The package around the SDK first: whoever asks for a part of a package that is missing gets an error, not None.
    if not all(find_spec(name) for name in ("jinja2", "azure", "azure.servicebus")):
        raise ConfigurationError("--console needs more than is installed: pip install 'duobus[console]'")


def console_options(settings: Settings, members: Mapping[str, object]) -> ConsoleOptions:
    """How the console of a server is started.

    Args:
        settings: Of the server.
        members: Of the server's ready file.
    """
    arguments = ["--port", str(settings.console_port), "--endpoint", str(members["admin_url"])]
    if settings.console_host is not None:
        arguments += ["--host", settings.console_host]
    if settings.console_url is not None:
        arguments += ["--public-url", settings.console_url]
    place = str(members["connection_string"])
    if not settings.emulator:
        parts = place.split(";")
        place = ";".join(part for part in parts if not part.startswith("SharedAccessKey"))
    return ConsoleOptions(tuple(arguments), place)


class ConsoleProcess:
    """Keeps a console running.

    Args:
        options: How it is started.
        clock: Tells how long it ran.
        log: Where its starts and ends are told.
        command: What starts it.
        pause: Waits between two starts.

    Attributes:
        url: Address of the console; None while none runs.
    """

    def __init__(
        self,
        options: ConsoleOptions,
        clock: Clock,
        log: Log,
        *,
        command: Sequence[str] = _COMMAND,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.url: str | None = None
        self._options = options
        self._clock = clock
        self._log = log
        self._command = tuple(command)
        self._pause = pause

    async def run(self) -> None:
        """Start the console, again and again, until cancelled; then end it."""
        pause_s = FIRST_PAUSE_S
        while True:
            begun_ms = self._clock.monotonic_ms()
            reason = await self._run_once()
            if self._clock.monotonic_ms() - begun_ms >= _STEADY_MS:
                pause_s = FIRST_PAUSE_S
            self._log.warning("console ended", reason=reason, again_in_seconds=pause_s)
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _run_once(self) -> str:
        """Run one process to its end; return why it ended."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DUOBUS_")}
        environment["DUOBUS_CONNECTION_STRING"] = self._options.connection_string
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *self._options.arguments,
                env=environment,
                # Nothing is ever written there: the console ends when this server is gone and the pipe with it.
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                limit=_LINE_BYTES,
                start_new_session=True,
            )
        except OSError as error:
            return f"not started: {error.strerror}"
        try:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
            return await self._watch(process)
        finally:
            self.url = None
            await _end(process)

    async def _watch(self, process: Process) -> str:
        assert process.stdout is not None
        assert process.stderr is not None
        last: list[str] = []
        reader = asyncio.ensure_future(self._relay(process.stderr, last))
        try:
            line = await process.stdout.readline()
            if line:
                told = json.loads(line)
                self.url = str(told["url"])
                # With a key that is public, the code that opens the console is no secret either.
                is_public = "SharedAccessKey=" in self._options.connection_string
                self._log.info("console ready", url=f"{self.url}sign-in#code={told['code']}" if is_public else self.url)
            status = await process.wait()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(reader), 1.0)
            return f"exit status {status}" + (f": {last[-1]}" if last else "")
        except (ValueError, KeyError, TypeError):
            return "it did not say where it is"
        finally:
            reader.cancel()

    async def _relay(self, stream: asyncio.StreamReader, last: list[str]) -> None:
        """Put what the console says into the log of the server."""
        with suppress(ValueError):
            while line := await stream.readline():
                last[:] = [line.decode(errors="replace").rstrip()]
                self._log.info("console", said=last[0])


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(process.wait())), _END_S)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
