"""The store in PostgreSQL does what the one in memory does, for any sequence of calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from duobus.storage.interface import MessagingStore
from duobus.storage.postgres.store import PostgresStore
from duobus.testing.postgres_server import PostgresServer
from kits.postgres import place_of
from kits.two_stores import TwoStores

pytestmark = pytest.mark.slow

_SERVERS: list[PostgresServer] = []


@pytest.fixture(scope="module", autouse=True)
def _server(postgres: PostgresServer) -> Iterator[None]:
    """Sequences are made by a class that takes no fixtures."""
    _SERVERS.append(postgres)
    yield
    _SERVERS.clear()


class MemoryAndPostgres(TwoStores):
    """The other store is in PostgreSQL."""

    def make_other(self) -> MessagingStore:
        return PostgresStore(place_of(_SERVERS[0]), 1)


MemoryAndPostgres.TestCase.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)


class TestPostgresBehavesAsMemoryDoes(MemoryAndPostgres.TestCase):  # type: ignore[name-defined, misc]
    """Run by unittest's collector; hypothesis makes the sequences."""
