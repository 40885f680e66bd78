"""A shared catalog in PostgreSQL that is lost, or older than its stores."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.clock import Clock, Entropy
from duobus.cluster.scale_unit import ClusteredScaleUnit
from duobus.errors import ConfigurationError
from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from duobus.server.cluster_server import ClusterServer
from duobus.server.settings import Settings, load_settings
from duobus.storage.catalog.postgres import PostgresCatalog
from duobus.storage.catalog_rows import CatalogContents
from duobus.storage.postgres.address import PostgresAddress, catalog_place, parse

SPACE = "sbemulatorns"
T = TypeVar("T")
STORES = 2
_NUMBERS = itertools.count(1)


@pytest.fixture
def join(postgres_url: str) -> PostgresAddress:
    """Where a shared catalog is, in a database that no other test has stores in."""
    base = postgres_url.partition("?")[0] + "?unsafe_no_sync=1"
    name = f"shared_{next(_NUMBERS)}"
    with psycopg.connect(parse(base).conninfo()[0], autocommit=True) as link:
        link.execute(f"CREATE DATABASE {name}".encode())
    return catalog_place(base.replace("/postgres?", f"/{name}?"))


def serve(data: Path, join: PostgresAddress, work: Callable[[ClusteredScaleUnit], Awaitable[T]]) -> T:
    """Start a server that joins, wait until it has its stores, have something done, and stop it."""

    async def whole() -> T:
        settings = Settings(data=data, port=0, http_port=0, emulator=True, stores=STORES, join=join)
        server = ClusterServer(load_settings(settings), Clock(), Entropy())
        try:
            await server.start()
            assert isinstance(server.unit, ClusteredScaleUnit)
            async with asyncio.timeout(60):
                while len(server.unit.adopted) < STORES:  # noqa: ASYNC110 - nobody tells of it
                    await asyncio.sleep(0.02)
            return await work(server.unit)
        finally:
            await server.stop()

    return asyncio.run(whole())


async def make(unit: ClusteredScaleUnit) -> None:
    await unit.create_queue(SPACE, QueueDescription(name="payroll", lock_duration_ms=30_000))
    await unit.create_queue(SPACE, QueueDescription(name="gone"))
    about = TopicDescription(name="news", subscriptions=(SubscriptionDescription(name="all"),))
    await unit.topics.create_topic(SPACE, about)
    await unit.delete_queue(SPACE, "gone")
    await unit.update_queue(SPACE, QueueDescription(name="payroll", lock_duration_ms=60_000))


async def queues(unit: ClusteredScaleUnit) -> list[str]:
    return sorted(unit.namespace(SPACE).queues)


def read(join: PostgresAddress) -> CatalogContents:
    with closing(PostgresCatalog(join)) as catalog:
        return catalog.read()


def lose(join: PostgresAddress) -> CatalogContents:
    contents = read(join)
    with psycopg.connect(join.conninfo()[0], autocommit=True) as link:
        link.execute(f"DROP SCHEMA {join.schema} CASCADE".encode())
    return contents


def tables(join: PostgresAddress) -> list[str]:
    return ["meta", "namespaces", "entities", "slots", "stores", "lost_stores", "moves"]


def dump(join: PostgresAddress) -> dict[str, list[tuple[object, ...]]]:
    """The rows of the catalog, as a dump has them."""
    with psycopg.connect(join.conninfo()[0]) as link:
        return {name: link.execute(f"SELECT * FROM {join.schema}.{name}".encode()).fetchall() for name in tables(join)}


def bring_back(join: PostgresAddress, rows: dict[str, list[tuple[object, ...]]]) -> None:
    with psycopg.connect(join.conninfo()[0]) as link:
        for name, found in rows.items():
            link.execute(f"TRUNCATE {join.schema}.{name}".encode())
            for row in found:
                places = ", ".join(["%s"] * len(row))
                link.execute(f"INSERT INTO {join.schema}.{name} VALUES ({places})".encode(), row)
        last = max([1, *(row[0] for row in rows["entities"])])
        sequence = f"{join.schema}.entities"
        link.execute("SELECT setval(pg_get_serial_sequence(%s, 'entity_id'), %s)", (sequence, last))


def serve_beside_losses(data: Path, join: PostgresAddress, stop_asked: asyncio.Event | None, losses: int) -> list[str]:
    """Start a server whose connection to the catalog is ended so often while it prepares the catalog.

    Returns:
        The queues that it has then, after one was created.
    """

    async def whole() -> list[str]:
        settings = Settings(data=data, port=0, http_port=0, emulator=True, stores=STORES, join=join)
        server = ClusterServer(load_settings(settings), Clock(), Entropy())
        server.stop_asked = stop_asked
        register, left = server._register_stores, [None] * losses

        async def interrupted(contents: CatalogContents) -> None:
            await register(contents)
            if left:
                left.pop()
                with psycopg.connect(join.conninfo()[0], autocommit=True) as link:
                    link.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE application_name = 'duobus-catalog' AND datname = current_database()"
                    )

        server._register_stores = interrupted  # type: ignore[method-assign]
        try:
            await server.start()
            async with asyncio.timeout(60):
                while len(server.unit.adopted) < STORES:  # noqa: ASYNC110 - no event tells of it
                    await asyncio.sleep(0.02)
            await server.unit.create_queue(SPACE, QueueDescription(name="q"))
            return await queues(server.unit)
        finally:
            await server.stop()

    return asyncio.run(whole())


def test_a_start_goes_on_when_the_database_comes_back_that_went_while_the_catalog_was_prepared(
    join: PostgresAddress, tmp_path: Path
) -> None:
    assert serve_beside_losses(tmp_path, join, asyncio.Event(), losses=2) == ["q"]
    # What was registered by the tries before is not registered again.
    assert len(read(join).stores) == STORES


def test_a_start_that_is_told_to_stop_or_waits_for_nothing_fails_when_the_database_goes(
    join: PostgresAddress, tmp_path: Path
) -> None:
    told = asyncio.Event()
    told.set()
    for number, stop_asked in enumerate((told, None)):
        with pytest.raises(ConfigurationError, match="The catalog cannot be prepared"):
            serve_beside_losses(tmp_path / str(number), join, stop_asked, losses=1)


def test_a_start_with_a_lost_shared_catalog_is_refused(join: PostgresAddress, tmp_path: Path) -> None:
    serve(tmp_path, join, make)
    lose(join)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="the catalog was lost or is an older copy") as refused:
            serve(tmp_path, join, queues)
        assert "duobus store adopt" in str(refused.value)
        assert read(join).stores == ()


def test_stores_are_not_served_from_an_older_shared_catalog(join: PostgresAddress, tmp_path: Path) -> None:
    serve(tmp_path, join, make)
    older = dump(join)

    async def more(unit: ClusteredScaleUnit) -> None:
        for number in range(4):
            await unit.create_queue(SPACE, QueueDescription(name=f"secret-{number}"))

    serve(tmp_path, join, more)
    bring_back(join, older)

    revision = read(join).revision
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"Messaging store \d has been told of revision \d+") as refused:
            serve(tmp_path, join, queues)
        assert "it is an older copy" in str(refused.value)
        assert "restore catalog and stores from one backup" in str(refused.value)
        # Nothing was changed: otherwise it would have come as far as the stores, sooner or later.
        assert read(join).revision == revision


def test_stores_of_a_shared_catalog_are_not_put_under_one_of_a_data_folder(
    join: PostgresAddress, tmp_path: Path
) -> None:
    serve(tmp_path / "joined", join, make)
    lose(join)
    (tmp_path / "alone").mkdir()
    words = ["store", "adopt", "--data", str(tmp_path / "alone"), "--store", join.in_database().url]
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code == 1
    assert "servers that share a catalog (--join) had them" in refused.output
    assert not list((tmp_path / "alone").glob("catalog.db*"))
