"""The console as a program: it listens, says where, and stops at a signal."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from aiohttp import web

from duobus.clock import Clock, Entropy
from duobus.console.application import CONSOLE, build_app
from duobus.console.settings import ConsoleSettings
from duobus.errors import ConfigurationError
from duobus.telemetry.logs import set_up_logs

#: How long requests that are under way are given at the stop, in seconds.
_SHUTDOWN_S: Final = 3.0
_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


class Started(NamedTuple):
    """What a console tells when browsers can reach it.

    Attributes:
        url: Address of the start page.
        host, port: Where it listens.
        code: The access code, which opens the namespaces whose keys the console has.
    """

    url: str
    host: str
    port: int
    code: str

    @property
    def sign_in_url(self) -> str:
        """Address that signs in: the code is behind the #, which browsers keep to themselves."""
        return f"{self.url}sign-in#code={self.code}"

    def as_json(self) -> str:
        """For programs."""
        return json.dumps({"url": self.url, "port": self.port, "code": self.code, "pid": os.getpid()})


async def run_console(
    settings: ConsoleSettings,
    announce: Callable[[Started], None],
    *,
    ready_file: Path | None = None,
    stdin_ends: bool = False,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> None:
    """Serve the console until SIGTERM or SIGINT.

    Args:
        settings: What the operator has chosen.
        announce: Called once browsers can connect.
        ready_file: Where address and access code are written then.
        stdin_ends: Stop at the end of standard input, too.
        clock: Time.
        entropy: Randomness.

    Raises:
        ConfigurationError: Nothing can listen there, or the file cannot be written.
        ArgumentInvalid: The connection string of the settings is none.
    """
    application = build_app(settings, clock=clock, entropy=entropy)
    runner = web.AppRunner(
        application, access_log=None, handle_signals=False, shutdown_timeout=_SHUTDOWN_S, handler_cancellation=True
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port)
        try:
            await site.start()
        except OSError as error:
            raise ConfigurationError(
                f"The console cannot listen on {settings.host} port {settings.port}: {error.strerror}. "
                "--port 0 takes a free one."
            ) from None
        started = _started(settings, runner.addresses[0][1], application[CONSOLE].access_code)
        if ready_file is not None:
            _write_ready_file(ready_file, started)
        _set_up_logs(clock or Clock())
        announce(started)
        await _until_told(stdin_ends)
    finally:
        await runner.cleanup()
        if ready_file is not None:
            _remove(ready_file)


def _set_up_logs(clock: Clock) -> None:
    set_up_logs("text", clock, sys.stderr)
    # The SDK logs what it raises as well, and its retries; the console tells people of the errors.
    sdk = logging.getLogger("azure")
    sdk.addHandler(logging.NullHandler())
    sdk.propagate = False


def _started(settings: ConsoleSettings, port: int, code: str) -> Started:
    host = _WILDCARDS.get(settings.host, f"[{settings.host}]" if ":" in settings.host else settings.host)
    url = settings.public_url or f"http://{host}:{port}"
    return Started(f"{url.rstrip('/')}/", settings.host, port, code)


def _write_ready_file(path: Path, started: Started) -> None:
    """Write the file whole, for its owner alone: the access code is in it."""
    draft = path.with_name(f".{path.name}.new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, 0o600)
            file.write(started.as_json() + "\n")
        draft.replace(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


class _Ending(asyncio.Protocol):
    """Hears the end of standard input."""

    def __init__(self, told: asyncio.Event) -> None:
        self._told = told

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end is closed."""
        self._told.set()


async def _until_told(stdin_ends: bool) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    if stdin_ends:
        transport, _ = await loop.connect_read_pipe(lambda: _Ending(told), sys.stdin)
    else:
        transport = None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    try:
        await told.wait()
    finally:
        if transport is not None:
            transport.close()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
