from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from duobus.storage.interface import MessagingStore
from duobus.storage.memory import MemoryStore
from duobus.storage.postgres.store import PostgresStore
from duobus.testing.postgres_server import PostgresServer
from kits.postgres import place_of, running_postgres
from kits.store_builders import Broker, journal_store, sqlite_store


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server that does not wait for the disk."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """Where a shared catalog can be that no other test has."""
    return place_of(postgres).url


@pytest.fixture
def postgres_store(postgres: PostgresServer) -> Iterator[PostgresStore]:
    """A store in a schema of its own, not yet open."""
    store = PostgresStore(place_of(postgres), 1)
    yield store
    store.close()


@pytest.fixture(params=["memory", "sqlite", "journal", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessagingStore]:
    """A store of each kind, not yet open."""
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_store")
        return
    made: MessagingStore = MemoryStore(1)
    if request.param != "memory":
        made = sqlite_store(tmp_path) if request.param == "sqlite" else journal_store(tmp_path)
    yield made
    made.close()


@pytest.fixture
def broker(store: MessagingStore) -> Broker:
    """A broker on an open store of each kind."""
    return Broker(store)
