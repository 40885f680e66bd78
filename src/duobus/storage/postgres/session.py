"""A session with PostgreSQL: few round trips, no endless wait, and what went wrong in words that say what to do.

Simple strings of statements with COPY among them, and queries with parameters and binary answers, both over libpq's
own calls: the driver's cursors cannot mix COPY with other statements, which saves a commit two of its four round trips.
Whoever waits here waits in ``poll`` without the interpreter lock.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from duobus.errors import StoreFailed, StoreStale
from duobus.storage.postgres.address import PostgresAddress
from duobus.storage.postgres.schema import STALE

T = TypeVar("T")

#: Silence of the server after which the session is given up, in milliseconds: the timeout ends far sooner for clients,
#: but a thread that never came back could never open the store at another address.
SILENCE_MS_MAX: Final = 30_000
#: The same for a vacuum, which says nothing until it is done.
VACUUM_MS_MAX: Final = 3_600_000
#: Milliseconds after which somebody who is to give up asks the server again to stop.
_ASKED_AGAIN_MS: Final = 200
#: Bytes handed to libpq at once, which keeps what is not sent yet.
_PIECE_BYTES: Final = 256 << 10

_ADVICE: Final = {
    STALE: "another owner has taken the store over",
    "28P01": "the password is wrong; give the right one in PGPASSFILE, PGPASSWORD or the address",
    "28000": "the server does not let this user in; see its pg_hba.conf",
    "3D000": "there is no such database; create it",
    "42501": "the user may not do that; grant it CREATE on the database, or make the schema and give it to the user",
    "53100": "the disk of the server is full; free space there, then the store is reopened",
    "53200": "the memory of the server is exhausted",
    "53300": "the server, or a pooler before it, has no connection left; raise its max_connections, or end others",
    "25006": "the server is read-only, as a standby is; name the primary, or promote this one",
    "55P03": "a row is locked by somebody else; end their session",
    "57P01": "the server is shutting down, or its operator has ended the session; the store is reopened",
    "57P02": "the server has crashed; the store is reopened when it is back",
    "57P03": "the server starts or stops; the store is reopened when it is back",
    "XX001": "data of the server are damaged; restore it from a backup",
    "XX002": "an index of the server is damaged; REINDEX it",
    "23505": "the rows contradict what is stored; this is a fault of the broker",
}
_UNTRUSTED: Final = "its certificate is not trusted; give sslrootcert, and the host as the certificate has it"
_LOST: Final = "the server cannot be reached or has dropped the session; see that it runs and takes connections"


def failure(place: str, doing: str, error: BaseException) -> StoreFailed:
    """Return the one exception that leaves a store, with place, what was done, why, and the server's words."""
    state = getattr(error, "sqlstate", None)
    words = " ".join(str(error).split())
    kind = StoreStale if state == STALE else StoreFailed
    return kind(f"{place}: could not {doing}: {_advice(state, words)} ({words}{f' [{state}]' if state else ''})")


def _advice(state: str | None, words: str) -> str:
    if state in _ADVICE:
        return _ADVICE[state]
    if state is not None:
        return "the server refused"
    # Before there is a session, libpq has no code for what is wrong.
    if "password authentication failed" in words or "no password supplied" in words:
        return _ADVICE["28P01"]
    if "session is read-only" in words or "is not read-write" in words or "recovery" in words:
        return _ADVICE["25006"]
    if any(full in words for full in ("too many clients", "connection slots are reserved", "no more connections")):
        return _ADVICE["53300"]
    if "certificate" in words:
        return _UNTRUSTED
    if "does not exist" in words:
        return _ADVICE["28000" if "role" in words else "3D000"]
    return _LOST


class PostgresSession:
    """One session.

    Args:
        place: Whose address.
        name: What the server shows its operator as the application's name.

    Raises:
        psycopg.Error: There is no session to be had.
    """

    def __init__(self, place: PostgresAddress, name: str) -> None:
        text, beside = place.conninfo()
        self._connection = psycopg.connect(text, application_name=name, autocommit=True, **beside)  # type: ignore[arg-type]
        self._pg = self._connection.pgconn
        self._pg.nonblocking = 1
        self._poll = select.poll()
        self._poll.register(self._pg.socket, 0)
        self._silence_ms = SILENCE_MS_MAX
        self._cancel = self._pg.get_cancel()
        self._is_given_up = False

    @property
    def pid(self) -> int:
        """The server's process for this session; libpq knows that of a pooler where there is one."""
        return int(self.rows("SELECT pg_backend_pid()")[0][0])

    def cancel(self) -> None:
        """Have the server give up what it does or is about to do; may be called by another thread."""
        self._is_given_up = True
        self._ask_to_stop()

    def close(self) -> None:
        """End the session; harmless when it has ended."""
        self._pg.finish()

    def run(
        self, text: str, copied: Iterable[Sequence[bytes]] = (), *, silence_ms: int | None = None
    ) -> list[pq.abc.PGresult]:
        """Run a string of statements, in one round trip and one more for each COPY.

        Args:
            text: Statements without values from elsewhere.
            copied: For each COPY in it, in order, its data in pieces.
            silence_ms: How long the server may say nothing; None: SILENCE_MS_MAX.

        Raises:
            psycopg.Error: One of them failed; none that comes after it was done.
        """
        self._silence_ms = SILENCE_MS_MAX if silence_ms is None else silence_ms
        self._pg.send_query(text.encode())
        return self._results(iter(copied))

    def rows(self, query: str, *parameters: int) -> list[tuple[Any, ...]]:
        """Run one query with integers for its parameters; the answer travels in binary form.

        Raises:
            psycopg.Error: It failed.
        """
        self._silence_ms = SILENCE_MS_MAX
        values = [b"%d" % value for value in parameters]
        self._pg.send_query_params(query.encode(), values, result_format=pq.Format.BINARY)
        (result,) = self._results(iter(()))
        transformer = Transformer(self._connection)
        transformer.set_pgresult(result, format=pq.Format.BINARY)
        return transformer.load_rows(0, result.ntuples, tuple)

    def prepare(self, name: bytes, text: bytes) -> None:
        """Have the server keep a statement for this session.

        Raises:
            psycopg.Error: It does not take it.
        """
        self._silence_ms = SILENCE_MS_MAX
        self._pg.send_prepare(name, text)
        self._results(iter(()))

    def call(self, name: bytes, values: Sequence[bytes]) -> int:
        """Run a prepared statement, in one round trip and a transaction of its own; values travel in binary form.

        Returns:
            The integer that it answers with; the transaction is durable.

        Raises:
            psycopg.Error: It failed, with its transaction.
        """
        self._silence_ms = SILENCE_MS_MAX
        self._pg.send_query_prepared(name, values, [pq.Format.BINARY] * len(values))
        # Until the server has committed there is no end of the results: an error may still come behind the answer.
        (result,) = self._results(iter(()))
        return int(result.get_value(0, 0) or b"0")

    def _results(self, copied: Iterable[Sequence[bytes]]) -> list[pq.abc.PGresult]:
        found: list[pq.abc.PGresult] = []
        refusal: pq.abc.PGresult | None = None
        pieces = iter(copied)
        self._flush()
        while (result := self._next()) is not None:
            status = result.status
            if status == pq.ExecStatus.COPY_IN:
                self._copy(next(pieces))
            elif status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
                found.append(result)
            elif refusal is None:
                refusal = result
        if refusal is not None:
            raise psycopg.errors.error_from_result(refusal)
        return found

    def _next(self) -> pq.abc.PGresult | None:
        pg = self._pg
        while pg.is_busy():
            self._wait(select.POLLIN)
            pg.consume_input()
        return pg.get_result()

    def _copy(self, pieces: Sequence[bytes]) -> None:
        put = self._pg.put_copy_data
        for piece in pieces:
            for start in range(0, len(piece), _PIECE_BYTES):
                part = memoryview(piece)[start : start + _PIECE_BYTES] if len(piece) > _PIECE_BYTES else piece
                while put(part) == 0:
                    self._flush()
                if len(piece) > _PIECE_BYTES:
                    self._flush()
        while self._pg.put_copy_end() == 0:
            self._flush()
        self._flush()

    def _flush(self) -> None:
        """Send what libpq holds; what the server says meanwhile is taken in, or both sides could wait for ever."""
        pg = self._pg
        while pg.flush():
            if self._wait(select.POLLIN | select.POLLOUT) & select.POLLIN:
                pg.consume_input()

    def _wait(self, events: int) -> int:
        self._poll.modify(self._pg.socket, events)
        left_ms = self._silence_ms
        while left_ms > 0:
            asked_ms = min(left_ms, _ASKED_AGAIN_MS)
            ready = self._poll.poll(asked_ms)
            if ready:
                return ready[0][1]
            left_ms -= asked_ms
            if self._is_given_up:
                # A server that has not read the query yet forgets what it was asked.
                self._ask_to_stop()
        raise psycopg.OperationalError(f"no answer within {self._silence_ms / 1000:g} seconds")

    def _ask_to_stop(self) -> None:
        with suppress(psycopg.Error):
            self._cancel.cancel()


class SpareConnection:
    """A session for another thread than the writer's: opened when it is first needed, closed by whoever comes last.

    Nobody who fails or stops waits for what is under way there.

    Args:
        make: Opens one.
    """

    def __init__(self, make: Callable[[], PostgresSession]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._link: PostgresSession | None = None
        self._is_wanted = False

    def begin(self) -> None:
        """Allow its use."""
        self._is_wanted = True

    def use(self, do: Callable[[PostgresSession], T]) -> T | None:
        """Do something in the session; None when that fails, or while it is not allowed."""
        try:
            with self._lock:
                if not self._is_wanted:
                    return None
                try:
                    if self._link is None:
                        self._link = self._make()
                    # Whoever ended its use while it was being opened found nothing to stop.
                    return do(self._link) if self._is_wanted else None
                except (psycopg.Error, StoreFailed, OSError):
                    # Who uses the writer's session meets what is wrong here as well.
                    self._close()
                    return None
        finally:
            self._close_unwanted()

    def end(self, *, is_hasty: bool = False) -> None:
        """Forbid its use; ``is_hasty``: have the server give up what it does."""
        self._is_wanted = False
        link = self._link
        if is_hasty and link is not None and self._lock.locked():
            link.cancel()
        self._close_unwanted()

    def _close_unwanted(self) -> None:
        # Whoever has the lock comes here after it has let it go.
        if not self._is_wanted and self._lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._lock.release()

    def _close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
