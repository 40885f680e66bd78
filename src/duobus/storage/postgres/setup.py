"""Opening a store in PostgreSQL: a session with the settings that safety needs, one owner, and migrations."""

from __future__ import annotations

import threading
from typing import Final
from zlib import crc32

from duobus.errors import StoreFailed, StoreTooNew
from duobus.storage.postgres import commit_call as postgres_call
from duobus.storage.postgres import schema
from duobus.storage.postgres.address import SERVER_SIDE, PostgresAddress
from duobus.storage.postgres.rows import PostgresMeta
from duobus.storage.postgres.session import PostgresSession

#: First half of the key of all locks of ours ("duob").
_LOCK_CLASS: Final = 0x64756F62
#: How long a session that is told to end may take to do so, in tries and seconds between them.
_TRIES: Final = 40
_TRY_S: Final = 0.1
#: The session of an owner that has just ended lingers until the server has seen that: so many tries before somebody
#: else is taken for the owner.
_LINGER_TRIES: Final = 10

#: What every session is set to. Plans are kept, and made when the tables were small: they must not read them whole.
_SESSION: Final = (
    "client_min_messages = warning",
    "standard_conforming_strings = on",
    "enable_seqscan = off",
    "enable_hashjoin = off",
    "enable_mergejoin = off",
    "jit = off",
    "statement_timeout = 0",
    "idle_in_transaction_session_timeout = 0",
    "lock_timeout = '20s'",
    "client_encoding = 'UTF8'",
    "max_parallel_workers_per_gather = 0",
    *SERVER_SIDE,
)
#: What a commit relies on, and what may be set there. With a standby, ``remote_write`` and ``local`` would acknowledge
#: what its promotion loses.
_DURABLE: Final = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "remote_apply"),
}


def open_session(
    place: PostgresAddress, store_id: int, *, last_pid: int = 0, take_over: bool = False, is_aside: bool = False
) -> PostgresSession:
    """Open a session; the owner's keeps others out for as long as it lasts.

    Args:
        place: The database, with a schema.
        store_id: For the name that the server's operator sees.
        last_pid: The server's process of an earlier session of this store object, which may not have noticed its end.
        take_over: End the session of another owner.
        is_aside: Not the owner's: it only reads and vacuums.

    Raises:
        StoreFailed: Another owner has the store, or the server would lose acknowledged commits.
        psycopg.Error: There is no session to be had.
    """
    if place.schema is None:
        raise StoreFailed(f"{place.url}: the address of a store names its schema")
    link = PostgresSession(place, f"duobus-store-{store_id}{'-aside' if is_aside else ''}")
    try:
        settings = [*_SESSION, f"search_path = {place.schema}"]
        if place.is_unsafe:
            settings.append("synchronous_commit = off")
        link.run(";".join(f"SET {setting}" for setting in settings))
        if not is_aside:
            _demand_durable(link, place)
            _take_lock(link, place, last_pid, take_over=take_over)
    except BaseException:
        link.close()
        raise
    return link


def _demand_durable(link: PostgresSession, place: PostgresAddress) -> None:
    if place.is_unsafe:
        return
    for name, right in _DURABLE.items():
        ((value,),) = link.rows(f"SELECT current_setting('{name}')")
        if value not in right:
            raise StoreFailed(
                f"{place.url}: the server has {name} = {value} and would lose acknowledged messages; set it to"
                f" {' or '.join(right)} for this server, database and user"
            )


def _take_lock(link: PostgresSession, place: PostgresAddress, last_pid: int, *, take_over: bool) -> None:
    key = crc32((place.schema or "").encode())
    # Two integers of 32 bits, both signed.
    key = key - (1 << 32) if key >> 31 else key
    for tried in range(_TRIES):
        ((is_ours,),) = link.rows(f"SELECT pg_try_advisory_lock({_LOCK_CLASS}, {key})")
        if is_ours:
            return
        holders = link.rows(
            "SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()"
            f" WHERE l.locktype = 'advisory' AND l.classid::int8 = {_LOCK_CLASS} AND l.objid::int8 = {key & 0xFFFFFFFF}"
            " AND l.granted"
        )
        for (pid,) in holders:
            if take_over or pid == last_pid:
                link.run(f"SELECT pg_terminate_backend({pid})")
            elif tried >= _LINGER_TRIES:
                raise StoreFailed(
                    f"{place.url}: another process has this store open (the server's process {pid});"
                    " one store has one owner"
                )
        threading.Event().wait(_TRY_S)
    raise StoreFailed(f"{place.url}: the session of this store's last owner does not end; end it on the server")


def prepare(link: PostgresSession, place: PostgresAddress, store_id: int, *, must_exist: bool) -> None:
    """Create the store where it may be created, and bring it forward to the format of this version (I65).

    Raises:
        StoreTooNew: A newer version wrote it; nothing was touched.
        StoreFailed: It is missing, is not ours to use, or its migrations are others.
        psycopg.Error: The server refused.
    """
    ((exists,),) = link.rows(f"SELECT to_regclass('{place.schema}.meta') IS NOT NULL")
    if not exists:
        if must_exist:
            raise StoreFailed(
                f"{place.url}: the store is missing; bring its schema back, or declare the store lost."
                " It is never created anew by itself"
            )
        _create(link, place, store_id)
    else:
        _bring_forward(link, place, must_exist=must_exist)
    link.prepare(postgres_call.NAME, postgres_call.STATEMENT)


def _bring_forward(link: PostgresSession, place: PostgresAddress, *, must_exist: bool) -> None:
    applied: list[tuple[int, str]] = [(row[0], row[1]) for row in link.rows(schema.READ_MIGRATIONS)]
    if applied and applied[-1][0] > schema.FORMAT_VERSION:
        raise StoreTooNew(
            f"{place.url}: the store has format {applied[-1][0]}, this version reads up to {schema.FORMAT_VERSION};"
            " use the version of duobus that wrote it"
        )
    expected = [(number, schema.digest(text)) for number, text in enumerate(schema.MIGRATIONS, 1)]
    if applied != expected[: len(applied)] or not applied:
        raise StoreFailed(f"{place.url}: the store was made by other migrations than those of this version")
    if not must_exist and link.rows("SELECT 1 FROM meta WHERE generation > 0"):
        raise StoreFailed(
            f"{place.url}: there is a store already that this server's catalog does not know. If it is this server's,"
            " the catalog was lost or is an older copy: bring the right one back, or, if no other server shares it,"
            " rebuild it from its stores (duobus store adopt). If it is another server's, name another schema"
            f" (?schema=...). Only if nothing in it is needed any more, drop it: DROP SCHEMA {place.schema} CASCADE"
        )
    _migrate(link, len(applied))


def _create(link: PostgresSession, place: PostgresAddress, store_id: int) -> None:
    # One transaction: a crash leaves nothing or a whole store.
    ((exists,),) = link.rows(f"SELECT to_regnamespace('{place.schema}') IS NOT NULL")
    meta = PostgresMeta(store_id)
    values = ",".join(map(str, (1, *meta.numbers(), meta.check_sum(), 0)))
    texts = [] if exists else [f"CREATE SCHEMA {place.schema}"]
    texts.append(schema.CREATE_MIGRATIONS)
    texts += _steps(0)
    texts.append(f"INSERT INTO meta(id, {schema.META_COLUMNS}) VALUES ({values})")
    link.run(";".join(["BEGIN", *texts, "COMMIT"]))


def _migrate(link: PostgresSession, applied: int) -> None:
    if applied < schema.FORMAT_VERSION:
        link.run(";".join(["BEGIN", *_steps(applied), "COMMIT"]))


def _steps(applied: int) -> list[str]:
    texts = []
    for number, text in list(enumerate(schema.MIGRATIONS, 1))[applied:]:
        texts += [text.strip().rstrip(";"), f"INSERT INTO migrations VALUES ({number}, '{schema.digest(text)}')"]
    return texts
