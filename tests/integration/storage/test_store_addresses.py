"""An address of a store in PostgreSQL may be written in many ways: what is there decides, and not the text."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from duobus.broker import ScaleUnit
from duobus.cli.main import main
from duobus.clock import Clock, Entropy
from duobus.errors import ConfigurationError
from duobus.model.descriptions import QueueDescription
from duobus.server.cluster_server import ClusterServer
from duobus.server.composition import Server
from duobus.server.settings import Settings, load_settings
from duobus.storage.catalog.postgres import PostgresCatalog
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_rows import CatalogContents
from duobus.storage.postgres.address import catalog_place, parse

SPACE = "sbemulatorns"


def serve(data: Path, *addresses: str, queues: tuple[str, ...] = ()) -> dict[str, int]:
    """Start a server with stores at these addresses, and stop it; returns where its queues are."""

    async def whole() -> dict[str, int]:
        places = tuple(map(parse, addresses))
        settings = Settings(data=data, port=0, http_port=0, emulator=True, stores=0, places=places)
        server = Server(load_settings(settings), Clock(), Entropy())
        try:
            await server.start()
            for name in queues:
                await server.unit.create_queue(SPACE, QueueDescription(name=name))
            found = server.unit.namespace(SPACE).queues
            assert all(handle.online for queue in found.values() for handle in queue.fragments)
            return {name: queue.fragments[0].broker.store_id for name, queue in found.items()}
        finally:
            await server.stop()

    return asyncio.run(whole())


def read(data: Path) -> CatalogContents:
    with closing(SqliteCatalog(data / "catalog.db")) as catalog:
        return catalog.read()


@pytest.fixture
def base(postgres_url: str) -> str:
    """The address of a database; each test adds the schema."""
    return postgres_url.partition("?")[0] + "?unsafe_no_sync=1"


@pytest.fixture
def aliases(base: str) -> tuple[str, str]:
    """The same database, written in two ways."""
    assert "127.0.0.1" in base
    other = base.replace("127.0.0.1", "localhost") + "&connect_timeout=4"
    assert parse(other).server != parse(base).server
    return base, other


def test_the_same_database_written_differently_holds_the_same_store(aliases: tuple[str, str], tmp_path: Path) -> None:
    one, other = aliases
    places = serve(tmp_path, one, queues=("q",))
    # A further store, in another database, may be named first: it is not taken for the one that is there.
    with psycopg.connect(parse(one).conninfo()[0], autocommit=True) as link:
        link.execute("CREATE DATABASE further")
    further = one.replace("/postgres?", "/further?")
    assert serve(tmp_path, further, other) == places
    assert serve(tmp_path, one, further) == places
    assert len(read(tmp_path).stores) == 2


def test_one_store_given_twice_under_two_addresses_is_refused(aliases: tuple[str, str], tmp_path: Path) -> None:
    one, other = (f"{alias}&schema=given_twice" for alias in aliases)
    serve(tmp_path, one)
    with pytest.raises(ConfigurationError, match="is messaging store 1, which another --store of this start leads to"):
        serve(tmp_path, one, other)
    # Of a new folder, too, where both would be new.
    with pytest.raises(ConfigurationError, match="cannot be created"):
        serve(tmp_path / "new", *(text.replace("given_twice", "given_again") for text in (one, other)))


def test_a_database_without_the_store_is_not_taken_for_the_place_where_it_has_moved(base: str, tmp_path: Path) -> None:
    serve(tmp_path, f"{base}&schema=the_right_one", queues=("q",))
    with pytest.raises(ConfigurationError, match="None of the others that are given leads to it"):
        serve(tmp_path, f"{base}&schema=a_wrong_one")
    assert len(read(tmp_path).stores) == 1


def test_a_store_in_postgresql_of_another_server_is_refused(base: str, tmp_path: Path) -> None:
    address = f"{base}&schema=of_one_server"
    serve(tmp_path / "one", address, queues=("a", "b"))
    serve(tmp_path / "other", f"{base}&schema=of_the_other")
    with closing(SqliteCatalog(tmp_path / "other" / "catalog.db")) as catalog:
        catalog.add_store(1, parse(address).url)
    with pytest.raises(ConfigurationError, match="Messaging store 1 belongs to another catalog"):
        serve(tmp_path / "other", address)


def test_the_address_of_a_store_is_changed_by_a_command_when_the_store_is_there(
    aliases: tuple[str, str], tmp_path: Path
) -> None:
    one, other = (f"{alias}&schema=readdressed" for alias in aliases)
    serve(tmp_path, one, queues=("q",))
    words = ["store", "address", "1", other, "--data", str(tmp_path)]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, "localhost" in done.output) == (0, True), done.output
    assert "localhost" in read(tmp_path).stores[0].path
    wrong = CliRunner().invoke(main, [*words[:3], one.replace("readdressed", "nothing_here"), *words[4:]])
    assert wrong.exit_code == 1
    assert "is not at postgresql://" in wrong.output
    assert "localhost" in read(tmp_path).stores[0].path
    missing = CliRunner().invoke(main, ["store", "address", "2", *words[3:]])
    assert "There is no messaging store 2 in PostgreSQL; there are: 1" in missing.output


def test_a_server_that_joins_by_another_address_registers_no_further_stores(
    aliases: tuple[str, str], tmp_path: Path
) -> None:
    async def start(name: str, address: str) -> ScaleUnit:
        settings = Settings(
            data=tmp_path / name,
            port=0,
            http_port=0,
            emulator=True,
            stores=2,
            join=catalog_place(f"{address}&schema=joined_by_two_names"),
        )
        server = ClusterServer(load_settings(settings), Clock(), Entropy())
        try:
            await server.start()
        finally:
            await server.stop()
        return server.unit

    for name, address in zip(("one", "other"), aliases, strict=True):
        asyncio.run(start(name, address))
    with closing(PostgresCatalog(catalog_place(f"{aliases[0]}&schema=joined_by_two_names"))) as catalog:
        assert [row.store_id for row in catalog.read().stores] == [1, 2]
