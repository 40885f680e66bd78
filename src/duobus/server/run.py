"""Start, ready, drain, stop; signals."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys

from duobus.clock import Clock, Entropy
from duobus.errors import ConfigurationError
from duobus.server.build import Server
from duobus.server.config import ReadyFile, Settings, ready_members
from duobus.server.metering import MeteringWriter
from duobus.stores.turns import take_turns
from duobus.telemetry.logs import Log, set_up_logs
from duobus.twin import compiled_rooms

#: Millions of live messages must be invisible to the collector; cycles are made by connections only.
GC_THRESHOLD = 50_000


def serve(settings: Settings) -> int:
    """Run a server until SIGTERM or SIGINT; returns the exit status.

    Raises:
        ConfigurationError: The operator has to change something; nothing was served.
    """
    set_up_logs(settings.log_format, Clock(), sys.stderr)
    _raise_open_files()
    take_turns()
    return asyncio.run(_serve(settings))


def _raise_open_files() -> None:
    """Allow as many open files as the system lets us have: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        # Some systems promise more than they give; what there was stays.
        Log("server").warning("open files not raised", limit=soft, wanted=hard, error=str(error))


async def _serve(settings: Settings) -> int:
    log = Log("server")
    clock = Clock()
    for warning in settings.warnings:
        log.warning(warning)
    server = _server_of(settings, clock)
    metering = MeteringWriter(server.metering, settings.data, clock)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stopping, log)
    loop.add_signal_handler(signal.SIGHUP, server.reload_certificates)
    ready = ReadyFile(settings.ready_file) if settings.ready_file is not None else None
    try:
        await server.start()
        _announce(server, ready, log)
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 50, 100)
        # The data folder is ours now, and so are the journals in it.
        metering.begin()
        meter = loop.create_task(metering.run(), name="metering")
        await stopping.wait()
        log.info("stopping")
        meter.cancel()
    finally:
        if ready is not None:
            ready.remove()
        await server.stop()
    await metering.close()
    log.info("stopped")
    return 0


def _server_of(settings: Settings, clock: Clock) -> Server:
    if settings.join is None:
        return Server(settings, clock, Entropy())
    # Here and not above: it needs the driver of PostgreSQL, which most servers go without.
    try:
        from duobus.server.joined import JoinedServer
    except ImportError as error:
        raise ConfigurationError(
            f"--join needs more than is installed ({error}): pip install 'duobus[postgres]'"
        ) from error
    return JoinedServer(settings, clock, Entropy())


def _on_signal(stopping: asyncio.Event, log: Log) -> None:
    if stopping.is_set():
        # A second signal stops at once; what was acknowledged is on disk all the same.
        log.warning("stopped at once")
        os._exit(1)
    stopping.set()


def _announce(server: Server, ready: ReadyFile | None, log: Log) -> None:
    settings = server.settings
    rule = server.default.rules[0]
    amqp_port = server.port("amqp")
    assert amqp_port is not None
    members = ready_members(
        settings,
        amqp_port=amqp_port,
        tls_port=server.port("tls"),
        http_port=server.port("http"),
        https_port=server.port("https"),
        rule_name=rule.name,
        key=rule.primary_key,
        ca=server.authority,
    )
    if ready is not None:
        ready.write(members)
    ports = {name: listener.port for name, listener in server.listeners.items()}
    log.info("ready", namespace=server.default.name, compiled=",".join(compiled_rooms()) or "no", **ports)
    if server.new_key:
        # Shown once, here and nowhere else (design 5).
        sys.stdout.write(f"Connection string (shown once): {members['connection_string']}\n")
        sys.stdout.flush()
