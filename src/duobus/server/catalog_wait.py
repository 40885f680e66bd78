"""The start of a server whose catalog's database is not up yet: it waits, within a bound, and says so to who asks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from duobus.errors import ConfigurationError
from duobus.storage.postgres.address import PostgresAddress
from duobus.telemetry.logs import Log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from duobus.clock import Clock

#: Pause between two tries, in seconds.
_PAUSE_S: Final = 0.5
#: Longest head of a request that is read, and how long its client may take for it.
_HEAD_BYTES_MAX: Final = 16_384
_HEAD_S: Final = 5.0
#: Clients that are answered at the same time.
_CLIENTS_MAX: Final = 64
#: What waiting does not mend, in the words of PostgreSQL and libpq; in another language they are waited for, too.
_LASTING: Final = (
    "password authentication failed",
    "no pg_hba.conf entry",
    "no password supplied",
    "does not exist",
    "permission denied",
    "invalid",
    "certificate",
    "does not support SSL",
)


def is_lasting(reason: str) -> bool:
    """Whether waiting does not mend what a database said of a connection, such as a wrong password."""
    return any(words in reason for words in _LASTING)


async def await_catalog(
    place: PostgresAddress, wait_s: float, is_over: asyncio.Event, clock: Clock, address: tuple[str, int], log: Log
) -> bool:
    """Return True when the database of a shared catalog takes connections; False when the server is told to stop first.

    Meanwhile every request on the HTTP port gets 503 with the reason, so that supervisors and balancers see a server
    that starts.

    Args:
        place: Where the catalog is.
        wait_s: How long it may take.
        is_over: Set when the server is told to stop.
        clock: Time.
        address: Host and port for HTTP; port 0: nobody knows it, so nothing is answered.
        log: Is told once that the server waits.

    Raises:
        ConfigurationError: The time is over, or waiting does not mend what is wrong.
    """
    end_ms = clock.monotonic_ms() + int(wait_s * 1000)
    reason = await _tried(place)
    if reason is None:
        return True
    log.warning("waiting for the catalog's database", seconds=wait_s, reason=reason)
    async with _told(address, lambda: reason or ""):
        while reason is not None:
            if is_lasting(reason) or clock.monotonic_ms() >= end_ms:
                raise ConfigurationError(
                    f"The catalog cannot be opened: {reason}\n--join-wait says how long a start waits for the database"
                    f" ({wait_s:g} seconds)."
                )
            with suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), _PAUSE_S)
            if is_over.is_set():
                return False
            reason = await _tried(place)
    return True


async def _tried(place: PostgresAddress) -> str | None:
    """Why the database does not take a connection, or None."""
    import psycopg

    conninfo, beside = place.conninfo()

    def connect() -> None:
        psycopg.connect(conninfo, autocommit=True, application_name="duobus-start", **beside).close()  # type: ignore[arg-type]

    try:
        await asyncio.get_running_loop().run_in_executor(None, connect)
    except (psycopg.Error, OSError) as error:
        return str(error).strip() or repr(error)
    return None


@asynccontextmanager
async def _told(address: tuple[str, int], reason: Callable[[], str]) -> AsyncIterator[None]:
    """Answer on the HTTP port meanwhile, if that can be had."""
    clients: set[asyncio.StreamWriter] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.add(writer)
        try:
            if len(clients) <= _CLIENTS_MAX:
                with suppress(TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_S)
                    writer.write(_answer(reason()))
                    await writer.drain()
        finally:
            clients.discard(writer)
            writer.close()

    server = None
    if address[1]:
        # Who has the port shows when the server itself wants it.
        with suppress(OSError):
            server = await asyncio.start_server(answer, *address, limit=_HEAD_BYTES_MAX)
    try:
        yield
    finally:
        if server is not None:
            server.close()
            for writer in list(clients):
                writer.close()
            await server.wait_closed()


def _answer(reason: str) -> bytes:
    first = reason.splitlines()[0] if reason else ""
    message = f"Service is starting: it waits for the catalog's database, which is not reached ({first})."
    body = json.dumps({"status": "starting", "message": message}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
