"""Start, ready, drain, stop; signals."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import Final, TextIO

from duobus.clock import Clock, Entropy
from duobus.compiled import compiled_rooms
from duobus.errors import ConfigurationError
from duobus.server.access.connection_strings import Banner, tell
from duobus.server.composition import Server
from duobus.server.console_process import ConsoleProcess, console_options, demand_console
from duobus.server.monitoring.metering_writer import MeteringWriter
from duobus.server.service_manager import ServiceManager
from duobus.server.settings import ReadyFile, Settings
from duobus.server.turn_selector import new_event_loop
from duobus.storage.writers import set_switch_interval
from duobus.telemetry.bounded_log import BoundedLog, tell_faults
from duobus.telemetry.logs import Log, LogFile, is_journal, set_up_logs

#: Of the collector, by generation. It stops all threads for a microsecond or so for each object that it looks at, some
#: 70 of which belong to an entity. So it looks at young objects only, 50,000 at once at the most: a server that had
#: been told to create 10,000 entities stopped for most of a second, when it looked at all that were created since the
#: start. What is old is collected next to never: what a connection leaves is freed without the collector.
GC_THRESHOLDS: Final = (5_000, 10, 5_000)


def serve(settings: Settings) -> int:
    """Run a server until SIGTERM or SIGINT; returns the exit status.

    Raises:
        ConfigurationError: The operator has to change something; nothing was served.
    """
    log_file = _open_logs(settings)
    _raise_open_files()
    set_switch_interval()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_serve(settings, log_file))


def _open_logs(settings: Settings) -> LogFile | None:
    """Send the logs to their file, if there is one, or to standard error, which may be the journal."""
    if settings.log_file is None:
        has_priorities = is_journal(sys.stderr, os.environ)
        set_up_logs(settings.log_format, Clock(), sys.stderr, has_priorities=has_priorities)
        return None
    try:
        log_file = LogFile(settings.log_file)
    except OSError as error:
        raise ConfigurationError(
            f"--log-file {settings.log_file} cannot be opened: {error.strerror}. Give a file that the server may write."
        ) from error
    set_up_logs(settings.log_format, Clock(), log_file)
    return log_file


def _raise_open_files() -> None:
    """Allow as many open files as the system lets us have: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        # Some systems promise more than they give; what there was stays.
        Log("server").warning("open files not raised", limit=soft, wanted=hard, error=str(error))


async def _serve(settings: Settings, log_file: LogFile | None) -> int:
    log = Log("server")
    clock = Clock()
    for warning in settings.warnings:
        log.warning(warning)
    if settings.console_port is not None:
        demand_console()
    stop = _Stop(settings.drain_delay_s, log)
    server = _server_of(settings, clock, stop.asked)
    metering = MeteringWriter(server.metering, settings.data, clock)
    loop = asyncio.get_running_loop()
    tell_faults(loop, BoundedLog(log, clock.monotonic_ms))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.on_signal)
    manager = ServiceManager(os.environ, clock, log)
    # What ignores SIGHUP was started to outlive its terminal, by nohup for example.
    ignores_hangups = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    terminal = sys.stderr if log_file is None and not ignores_hangups and sys.stderr.isatty() else None
    hangup = _Hangup(server, manager, stop, log_file, terminal)
    loop.add_signal_handler(signal.SIGHUP, hangup.on_signal)
    feeder: asyncio.Task[None] | None = None
    console: asyncio.Task[None] | None = None
    ready = ReadyFile(settings.ready_file) if settings.ready_file is not None else None
    try:
        if not await _has_started(server, stop, clock, log):
            return 0
        _announce(server, ready, log)
        console = _start_console(server, clock)
        manager.ready(_status(server))
        feeder = loop.create_task(manager.feed(), name="watchdog")
        # Without a look for garbage, which would hold up the first clients by 30 ms and find next to nothing.
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        # The data folder is ours now, and so are the journals in it.
        metering.begin()
        meter = loop.create_task(metering.run(), name="metering")
        await stop.asked.wait()
        server.is_draining = True
        manager.stopping("Serving until --drain-delay is over" if settings.drain_delay_s else "Stopping")
        await stop.delay()
        if settings.drain_delay_s:
            manager.status("Stopping")
        log.info("stopping")
        meter.cancel()
    finally:
        if ready is not None:
            ready.remove()
        if console is not None:
            console.cancel()
            await asyncio.gather(console, return_exceptions=True)
        await server.stop()
        if feeder is not None:
            feeder.cancel()
    await metering.close()
    log.info("stopped")
    return 0


async def _has_started(server: Server, stop: _Stop, clock: Clock, log: Log) -> bool:
    """Start a server; False when it is told to stop while it waits for the database of its catalog."""
    settings = server.settings
    if settings.join is not None:
        # Here and not above: it needs the driver of PostgreSQL, which most servers go without.
        from duobus.server.catalog_wait import await_catalog

        where = (settings.host.strip("[]"), settings.http_port)
        if not await await_catalog(settings.join, settings.join_wait_s, stop.asked, clock, where, log):
            return False
    try:
        await server.start()
    except ConfigurationError:
        if stop.asked.is_set():
            # The database went while the catalog was prepared, and was waited for again.
            return False
        raise
    return True


def _start_console(server: Server, clock: Clock) -> asyncio.Task[None] | None:
    """Start the console beside the server, if there is to be one."""
    members = server.ready_members()
    if server.settings.console_port is None or members is None or members["admin_url"] is None:
        return None
    process = ConsoleProcess(console_options(server.settings, members), clock, Log("console"))
    assert server.rest is not None
    server.rest.console_url = lambda: process.url
    return asyncio.get_running_loop().create_task(process.run(), name="console")


def _server_of(settings: Settings, clock: Clock, stop_asked: asyncio.Event) -> Server:
    if settings.join is None:
        return Server(settings, clock, Entropy())
    # Here and not above: it needs the driver of PostgreSQL, which most servers go without.
    try:
        from duobus.server.cluster_server import ClusterServer
    except ImportError as error:
        raise ConfigurationError(
            f"--join needs more than is installed ({error}): pip install 'duobus[postgres]'"
        ) from error
    server = ClusterServer(settings, clock, Entropy())
    server.stop_asked = stop_asked
    return server


class _Stop:
    """What signals ask for: the end, then that it comes sooner.

    Args:
        delay_s: How long the server goes on when it is told to stop.
        log: Where it is told.

    Attributes:
        asked: The server is told to stop.
    """

    def __init__(self, delay_s: float, log: Log) -> None:
        self.asked = asyncio.Event()
        self._delay_s = delay_s
        self._log = log
        self._is_over = asyncio.Event()
        if not delay_s:
            self._is_over.set()

    def on_signal(self) -> None:
        """SIGTERM or SIGINT has come."""
        if not self.asked.is_set():
            self.asked.set()
        elif not self._is_over.is_set():
            self._log.info("delay ended by a second signal")
            self._is_over.set()
        else:
            # Another signal stops at once; what was acknowledged is on disk all the same.
            self._log.warning("stopped at once")
            os._exit(1)

    async def delay(self) -> None:
        """Return when the delay is over: a balancer has had the time to take the server out."""
        if self._is_over.is_set():
            return
        self._log.info("draining", seconds=self._delay_s, reason="/health/ready says 503; everything is served")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_over.wait(), self._delay_s)
        self._is_over.set()


class _Hangup:
    """What SIGHUP asks for: files are read again; or the terminal is gone, and the server with it.

    Args:
        server: Whose certificates and tokens.
        manager: Hears that it happens.
        stop: Asked when the terminal is gone.
        log_file: Opened again, or None.
        terminal: The terminal that the logs go to, whose end is that of the server; or None.
    """

    def __init__(
        self,
        server: Server,
        manager: ServiceManager,
        stop: _Stop,
        log_file: LogFile | None,
        terminal: TextIO | None,
    ) -> None:
        self._server = server
        self._manager = manager
        self._stop = stop
        self._log_file = log_file
        self._terminal = terminal

    def on_signal(self) -> None:
        """SIGHUP has come."""
        if self._terminal is not None and not self._terminal.isatty():
            # It may come twice, from the system and from the shell; only the first one is a signal to stop.
            if not self._stop.asked.is_set():
                self._stop.on_signal()
            return
        is_serving = self._server.is_ready and not self._stop.asked.is_set()
        if is_serving:
            self._manager.reloading()
        if self._log_file is not None:
            try:
                self._log_file.reopen()
            except OSError as error:
                Log("server").error("log file not opened again, the old one stays in use", reason=str(error))
        self._server.reload_certificates()
        if is_serving:
            self._manager.ready(_status(self._server))


def _status(server: Server) -> str:
    """A line for people, as ``systemctl status`` shows it."""
    ports = ", ".join(f"{name} {listener.port}" for name, listener in server.listeners.items())
    return f"Serving on {server.settings.host}: {ports}"


def _announce(server: Server, ready: ReadyFile | None, log: Log) -> None:
    settings = server.settings
    members = server.ready_members()
    assert members is not None
    if ready is not None:
        ready.write(members)
    ports = {name: listener.port for name, listener in server.listeners.items()}
    log.info("ready", namespace=server.default.name, compiled=",".join(compiled_rooms()) or "no", **ports)
    # JSON is for programs, which read lines of JSON and nothing else.
    banner = None
    if sys.stdout.isatty() and settings.log_format == "text":
        banner = Banner(members, settings.data, sys.stdout)
        banner.open()
    if server.new_key or settings.emulator:
        # A new one here and nowhere else.
        tell(
            str(members["connection_string"]),
            is_public=settings.emulator,
            log_format=settings.log_format,
            data=settings.data,
            output=sys.stdout,
            errors=sys.stderr,
        )
    elif banner is not None:
        banner.tell_of_earlier()
    if banner is not None:
        banner.close()
