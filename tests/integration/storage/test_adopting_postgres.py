"""A lost catalog is made anew from stores in PostgreSQL, too, alone and beside files."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import msgspec
import psycopg
import pytest
from click.testing import CliRunner, Result

from duobus.broker import ScaleUnit
from duobus.cli.main import main
from duobus.clock import Clock, Entropy
from duobus.errors import ConfigurationError, StoreFailed
from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from duobus.server.composition import Server
from duobus.server.settings import Settings, load_settings
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_rows import CatalogContents, store_path
from duobus.storage.interface import CommitBatch, Put
from duobus.storage.postgres.address import parse
from duobus.storage.postgres.store import PostgresStore
from duobus.storage.sqlite.store import SqliteStore

SPACE = "sbemulatorns"
T = TypeVar("T")
_NUMBERS = itertools.count(1)
SECRET = "opensesame"


def serve(data: Path, addresses: tuple[str, ...], work: Callable[[ScaleUnit], Awaitable[T]], *, files: int = 0) -> T:
    """Start a server with stores at these addresses, have something done, and stop it."""

    async def whole() -> T:
        places = tuple(map(parse, addresses))
        settings = Settings(data=data, port=0, http_port=0, emulator=True, stores=files, places=places)
        server = Server(load_settings(settings), Clock(), Entropy())
        try:
            await server.start()
            return await work(server.unit)
        finally:
            await server.stop()

    return asyncio.run(whole())


async def make(unit: ScaleUnit) -> None:
    await unit.create_queue(SPACE, QueueDescription(name="Payroll", lock_duration_ms=30_000))
    await unit.create_queue(SPACE, QueueDescription(name="parted", enable_partitioning=True))
    await unit.create_queue(SPACE, QueueDescription(name="gone"))
    about = TopicDescription(name="news", subscriptions=(SubscriptionDescription(name="all"),))
    await unit.topics.create_topic(SPACE, about)
    await unit.topics.create_subscription(SPACE, "news", SubscriptionDescription(name="some"))
    await unit.delete_queue(SPACE, "gone")
    await unit.update_queue(SPACE, QueueDescription(name="Payroll", lock_duration_ms=60_000, max_delivery_count=3))


async def queues(unit: ScaleUnit) -> list[str]:
    found = unit.namespace(SPACE).queues
    assert all(handle.online for queue in found.values() for handle in queue.fragments)
    return sorted(found)


def read(data: Path) -> CatalogContents:
    with closing(SqliteCatalog(data / "catalog.db")) as catalog:
        return catalog.read()


def lose(data: Path) -> CatalogContents:
    """Take the catalog away; returns what was in it."""
    contents = read(data)
    for path in data.glob("catalog.db*"):
        path.unlink()
    return contents


def same(found: CatalogContents, lost: CatalogContents) -> bool:
    """But for the revision, which is far above, and for what is seen of stores at the next start."""
    return msgspec.structs.replace(found, revision=lost.revision, generations=()) == msgspec.structs.replace(
        lost, generations=()
    )


def adopt(data: Path, *more: str) -> Result:
    return CliRunner().invoke(main, ["store", "adopt", "--data", str(data), *more])


@pytest.fixture
def base(postgres_url: str) -> str:
    """The address of a database, with a password that its server does not ask for."""
    return postgres_url.partition("?")[0].replace("@", f":{SECRET}@") + "?unsafe_no_sync=1"


@pytest.fixture
def database(base: str) -> str:
    """A database that no other test has stores in."""
    name = f"adopted_{next(_NUMBERS)}"
    with psycopg.connect(parse(base).conninfo()[0], autocommit=True) as link:
        link.execute(f"CREATE DATABASE {name}".encode())
    return base.replace("/postgres?", f"/{name}?")


def test_a_catalog_is_rebuilt_from_stores_in_postgresql_alone(database: str, tmp_path: Path) -> None:
    serve(tmp_path, (database, database), make)
    lost = lose(tmp_path)
    assert "give --store" in adopt(tmp_path).output
    done = adopt(tmp_path, "--store", database)
    assert done.exit_code == 0, done.output
    assert SECRET not in done.output
    assert same(read(tmp_path), lost)
    assert serve(tmp_path, (database, database), queues) == ["parted", "payroll"]
    again = adopt(tmp_path, "--store", database)
    assert "there is nothing to rebuild" in again.output


def test_stores_in_postgresql_are_found_by_the_records_of_files(database: str, tmp_path: Path) -> None:
    serve(tmp_path, (database,), make, files=1)
    lost = lose(tmp_path)
    dry = adopt(tmp_path, "--dry-run")
    assert "would be rebuilt from stores 1, 2" in dry.output
    assert not (tmp_path / "catalog.db").exists()
    assert adopt(tmp_path).exit_code == 0
    assert same(read(tmp_path), lost)
    assert serve(tmp_path, (database,), queues, files=1) == ["parted", "payroll"]


def test_a_store_in_postgresql_that_cannot_be_reached_is_named(base: str, database: str, tmp_path: Path) -> None:
    serve(tmp_path, (database,), make, files=1)
    lose(tmp_path)
    name = parse(database).server.rpartition("/")[2]
    with psycopg.connect(parse(base).conninfo()[0], autocommit=True) as link:
        link.execute(f"ALTER DATABASE {name} RENAME TO {name}_put_away".encode())
    done = adopt(tmp_path)
    assert done.exit_code == 0
    assert "Messaging store 2 (postgresql://" in done.output
    assert "was not found; what it holds is away" in done.output
    given = adopt(tmp_path, "--store", database)
    assert given.exit_code == 1
    assert "there is no such database" in given.output
    assert SECRET not in done.output + given.output


def test_an_older_catalog_is_rebuilt_and_no_queue_gets_what_was_sent_to_another(database: str, tmp_path: Path) -> None:
    serve(tmp_path, (database,), make)
    with closing(SqliteCatalog(tmp_path / "catalog.db")) as catalog:
        older = catalog.serialized()

    async def more(unit: ScaleUnit) -> int:
        return (await unit.create_queue(SPACE, QueueDescription(name="secret"))).entity_id

    entity_id = serve(tmp_path, (database,), more)
    place = parse(read(tmp_path).stores[0].path)
    with closing(PostgresStore(place, 1, must_exist=True)) as store:
        found = store.open()
        store.begin_generation(())
        (fragment,) = (row for row in found.fragments if row.entity_id == entity_id)
        (source, *_) = (row for row in found.sources if row.fragment_key == fragment.fragment_key)
        batch = CommitBatch(found.last_commit_no + 1, 1)
        batch.epochs = [(row.fragment_key, row.epoch + 1) for row in found.fragments]
        batch.puts.append(Put(source.source_key, source.next_count, 1, [b"for secret alone"]))
        batch.sources.append((source.source_key, source.next_count + 1, 0, b""))
        store.commit(batch)
    lost = lose(tmp_path)
    (tmp_path / "catalog.db").write_bytes(older)
    with pytest.raises(ConfigurationError, match="older copy"):
        serve(tmp_path, (database,), queues)
    assert adopt(tmp_path, "--store", database).exit_code == 0
    assert len(list(tmp_path.glob("catalog.db.before-*"))) == 1
    assert same(read(tmp_path), lost)

    async def public(unit: ScaleUnit) -> int:
        return (await unit.create_queue(SPACE, QueueDescription(name="public"))).entity_id

    assert serve(tmp_path, (database,), public) > entity_id
    assert {row.path: row.entity_id for row in read(tmp_path).entities}["secret"] == entity_id
    with closing(PostgresStore(place, 1, must_exist=True)) as store:
        found = store.open()
        owners = {row.fragment_key: row.entity_id for row in found.fragments}
        held = {owners[row.fragment_key]: len(store.load(row.source_key, 0, 9)) for row in found.sources}
    assert {number for number, count in held.items() if count} == {entity_id}


def test_stores_of_two_servers_in_one_database_are_told_apart(database: str, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    serve(one, (database,), make, files=1)
    serve(other, (database,), queues)
    lost = lose(one)
    # The other server's store is passed over, because the file says which catalog is wanted.
    assert adopt(one, "--store", database).exit_code == 0
    assert same(read(one), lost)
    lost = lose(other)
    asked = adopt(other, "--store", database)
    assert "belong to different catalogs" in asked.output
    assert "?schema=" in asked.output
    (row,) = lost.stores
    assert adopt(other, "--store", f"{database}&schema={parse(row.path).schema}").exit_code == 0
    assert same(read(other), lost)


def test_a_new_catalog_names_the_stores_beside_which_it_makes_its_own(
    database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> int:
        return sum(record.message == "stores of other catalogs" for record in caplog.records)

    serve(tmp_path, (database,), make)
    serve(tmp_path, (database,), queues)
    assert said() == 0
    (known,) = lose(tmp_path).stores
    assert serve(tmp_path, (database,), queues) == []
    assert said() == 1
    # What the new catalog has made goes, and the right one is back.
    done = adopt(tmp_path, "--store", f"{database}&schema={parse(known.path).schema}")
    assert done.exit_code == 0, done.output
    assert serve(tmp_path, (database,), queues) == ["parted", "payroll"]


def test_a_store_that_somebody_has_open_is_not_used(database: str, tmp_path: Path) -> None:
    serve(tmp_path, (database,), make)
    lost = lose(tmp_path)
    with closing(PostgresStore(parse(lost.stores[0].path), 1, must_exist=True)) as store:
        store.open()
        refused = adopt(tmp_path, "--store", database)
    assert "another process has this store open" in refused.output
    assert not (tmp_path / "catalog.db").exists()


def test_one_store_at_two_addresses_is_refused(database: str, tmp_path: Path) -> None:
    serve(tmp_path, (database,), make)
    lost = lose(tmp_path)
    address = f"{database}&schema={parse(lost.stores[0].path).schema}"
    refused = adopt(tmp_path, "--store", address, "--store", address.replace("127.0.0.1", "localhost"))
    assert refused.exit_code == 1
    assert SECRET not in refused.output
    mistyped = adopt(tmp_path, "--store", f"postgres:{SECRET}@db/bus")
    assert (mistyped.exit_code, SECRET in mistyped.output) == (1, False)


def test_changes_of_the_catalog_reach_the_records_in_postgresql(database: str, tmp_path: Path) -> None:
    serve(tmp_path, (database,), make)
    (row,) = read(tmp_path).stores
    with closing(PostgresStore(parse(row.path), 1, must_exist=True)) as store:
        store.open()
        records = store.records()
        kinds = sorted({key.partition(":")[0] for key in records})
        assert kinds == ["entity", "namespace", "store"]
        assert not any(b'"gone"' in kept.text for kept in records.values())
        assert any(b'"Payroll"' in kept.text and b"60000" in kept.text for kept in records.values())
    with psycopg.connect(parse(database).conninfo()[0], autocommit=True) as link:
        link.execute(f"UPDATE {parse(row.path).schema}.records SET text = '[]'".encode())
    with closing(PostgresStore(parse(row.path), 1, must_exist=True)) as store:
        store.open()
        with pytest.raises(StoreFailed, match="a record of the catalog is damaged"):
            store.records()


def test_a_recorded_time_that_is_ahead_is_set_back_in_postgresql(database: str, tmp_path: Path) -> None:
    serve(tmp_path, (database,), make, files=1)
    place = parse(next(row.path for row in read(tmp_path).stores if row.store_id == 2))
    ahead_ms = Clock().now_ms() + 400 * 86_400_000
    with closing(PostgresStore(place, 2, must_exist=True)) as store:
        found = store.open()
        store.begin_generation(())
        batch = CommitBatch(found.last_commit_no + 1, ahead_ms)
        batch.epochs = [(row.fragment_key, row.epoch + 1) for row in found.fragments]
        store.commit(batch)

    def clock(*more: str) -> dict[int, dict[str, object]]:
        words = ["store", "clock", "--data", str(tmp_path), "--json", "--store", database, *more]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        assert SECRET not in done.output
        return {row["store"]: row for row in json.loads(done.stdout)}

    assert clock()[2]["recordedMs"] == ahead_ms
    found_then = clock("--reset")
    assert (found_then[1]["setBack"], found_then[2]["setBack"]) == (False, True)
    assert clock()[2]["recordedMs"] < ahead_ms - 86_400_000
    assert serve(tmp_path, (database,), queues, files=1) == ["parted", "payroll"]


def test_no_time_is_set_back_when_a_store_cannot_be_reached(base: str, database: str, tmp_path: Path) -> None:
    serve(tmp_path, (database,), make, files=1)
    ahead_ms = Clock().now_ms() + 400 * 86_400_000
    file = tmp_path / store_path(1)
    with closing(SqliteStore(str(file), 1, must_exist=True)) as store:
        found = store.open()
        store.begin_generation(())
        batch = CommitBatch(found.last_commit_no + 1, ahead_ms)
        batch.epochs = [(row.fragment_key, row.epoch + 1) for row in found.fragments]
        store.commit(batch)
    name = parse(database).server.rpartition("/")[2]
    with psycopg.connect(parse(base).conninfo()[0], autocommit=True) as link:
        link.execute(f"ALTER DATABASE {name} RENAME TO {name}_put_away".encode())
    refused = CliRunner().invoke(main, ["store", "clock", "--data", str(tmp_path), "--reset", "--store", database])
    assert refused.exit_code == 1
    assert "there is no such database" in refused.output
    assert SECRET not in refused.output
    with closing(SqliteStore(str(file), 1, must_exist=True)) as store:
        assert store.open().broker_ms == ahead_ms
