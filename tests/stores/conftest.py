from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit_postgres import postgres_server, postgres_url  # noqa: F401 - fixtures
from store_builders import Broker, sqlite_store

from duobus.stores.interface import MessagingStore
from duobus.stores.memory import MemoryStore


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessagingStore]:
    """A store of each kind, not yet open."""
    made: MessagingStore = MemoryStore(1) if request.param == "memory" else sqlite_store(tmp_path)
    yield made
    made.close()


@pytest.fixture
def broker(store: MessagingStore) -> Broker:
    """A broker on an open store of each kind."""
    return Broker(store)
