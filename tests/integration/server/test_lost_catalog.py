"""A catalog that is lost, or older than its stores, is refused by name: nobody gets what was sent to somebody else."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import apsw
import pytest

from duobus.broker import ScaleUnit
from duobus.clock import Clock, Entropy
from duobus.errors import ConfigurationError, RowsExist, StoreFailed
from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from duobus.server.settings import Settings, load_settings
from duobus.storage.backup.copy import back_up_stopped
from duobus.storage.backup.restore import restore
from duobus.storage.catalog.interface import Catalog
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_rows import store_path
from duobus.storage.interface import CommitBatch, Put
from duobus.storage.replacement import give_up
from duobus.storage.sqlite.log_watch import remove_mark
from duobus.storage.sqlite.store import SqliteStore

SPACE = "sbemulatorns"
T = TypeVar("T")
PAYLOADS = [b"%d" % number for number in range(5)]


def serve(data: Path, work: Callable[[ScaleUnit], Awaitable[T]], stores: int = 2) -> T:
    """Start a server on a data folder, have something done, and stop it."""

    async def whole() -> T:
        settings = Settings(data=data, port=0, http_port=0, emulator=True, stores=stores)
        server = Server(load_settings(settings), Clock(), Entropy())
        try:
            await server.start()
            return await work(server.unit)
        finally:
            await server.stop()

    return asyncio.run(whole())


def create(data: Path, *names: str, stores: int = 2) -> None:
    async def work(unit: ScaleUnit) -> None:
        for name in names:
            await unit.create_queue(SPACE, QueueDescription(name=name, enable_partitioning=name.startswith("parted")))

    serve(data, work, stores)


def delete(data: Path, name: str) -> None:
    serve(data, lambda unit: unit.delete_queue(SPACE, name))


def names(data: Path, stores: int = 2) -> list[str]:
    """The queues that a server offers, if it starts."""

    async def work(unit: ScaleUnit) -> list[str]:
        return sorted(unit.namespace(SPACE).queues)

    return serve(data, work, stores)


def refusal(data: Path, stores: int = 2) -> str:
    with pytest.raises(ConfigurationError) as refused:
        names(data, stores)
    return str(refused.value)


def put_in_place(copy: Path, store: Path) -> None:
    """Put another database in a store's place, without what would tell that the log does not go with it."""
    shutil.copy(copy, store)
    remove_mark(str(store))


def moved(paths: Sequence[Path], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for path in paths:
        shutil.move(path, folder / path.name)


def catalog_files(data: Path) -> list[Path]:
    return sorted(data.glob("catalog.db*"))


def forget_belonging(data: Path) -> None:
    """Make a data folder what the version before wrote, which knew neither identities nor revisions."""
    for path in (data / "stores").glob("store-*.db"):
        with closing(apsw.Connection(str(path))) as db:
            db.execute("DROP TABLE IF EXISTS belonging; DROP TABLE IF EXISTS records")
    with closing(apsw.Connection(str(data / "catalog.db"))) as db:
        db.execute("DELETE FROM meta WHERE name IN ('identity', 'revision'); DROP TABLE IF EXISTS seen")


def put_messages(data: Path, store_id: int) -> None:
    """Have messages in every fragment of a store."""
    with closing(SqliteStore(str(data / store_path(store_id)), store_id, must_exist=True)) as store:
        found = store.open()
        store.begin_generation(())
        batch = CommitBatch(found.last_commit_no + 1, 1)
        batch.epochs = [(row.fragment_key, row.epoch + 1) for row in found.fragments]
        for source in found.sources:
            batch.puts.append(Put(source.source_key, source.next_count, 1, PAYLOADS))
            batch.sources.append((source.source_key, source.next_count + len(PAYLOADS), 0, b""))
        store.commit(batch)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with two queues, of which one has messages."""
    data = tmp_path / "data"
    create(data, "payroll", "parted")
    put_messages(data, 1)
    return data


def test_a_server_whose_files_were_left_alone_starts_again(data: Path) -> None:
    assert names(data) == ["parted", "payroll"]
    create(data, "more")
    delete(data, "parted")
    assert names(data, stores=3) == ["more", "payroll"]
    create(data, "still", stores=3)
    assert names(data, stores=3) == ["more", "payroll", "still"]


@pytest.mark.parametrize("is_old_format", [False, True])
def test_no_new_catalog_is_made_beside_stores_that_hold_something(data: Path, is_old_format: bool) -> None:
    if is_old_format:
        forget_belonging(data)
    moved(catalog_files(data), data.parent / "away")
    for _ in range(2):
        text = refusal(data)
        assert "stores/store-1.db holds" in text
        assert "duobus store adopt" in text
        assert catalog_files(data) == []
    moved(sorted((data.parent / "away").iterdir()), data)
    assert names(data) == ["parted", "payroll"]


def test_no_new_catalog_is_made_whatever_number_of_stores_is_asked_for(data: Path) -> None:
    moved([*catalog_files(data), data / store_path(1)], data.parent / "away")
    assert "stores/store-2.db holds" in refusal(data, stores=1)


def test_an_empty_catalog_beside_stores_is_refused(data: Path) -> None:
    moved(catalog_files(data), data.parent / "away")
    SqliteCatalog(data / "catalog.db").read()
    assert "its catalog" in (text := refusal(data)) or "the catalog of this data folder is new" in text


@pytest.mark.parametrize("change", ["creation", "deletion", "store"])
def test_an_older_catalog_is_refused(data: Path, change: str) -> None:
    shutil.copy(data / "catalog.db", data.parent / "older.db")
    if change == "creation":
        create(data, "public")
    elif change == "deletion":
        delete(data, "parted")
    else:
        create(data, stores=3)
    moved(catalog_files(data), data.parent / "away")
    shutil.copy(data.parent / "older.db", data / "catalog.db")
    text = refusal(data, stores=3)
    assert "older copy" in text
    assert "duobus restore" in text


def test_an_older_catalog_of_the_version_before_is_refused_when_it_lacks_an_entity(data: Path) -> None:
    shutil.copy(data / "catalog.db", data.parent / "older.db")
    create(data, "public")
    moved(catalog_files(data), data.parent / "away")
    shutil.copy(data.parent / "older.db", data / "catalog.db")
    forget_belonging(data)
    assert "holds an entity with the number 3, and the highest that the catalog has given out is 2" in refusal(data)


def test_a_store_of_another_server_is_refused(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    create(other, "a", "b", "c", "d")
    moved([data / store_path(2)], tmp_path / "away")
    put_in_place(other / store_path(2), data / store_path(2))
    assert "Messaging store 2 belongs to another catalog" in refusal(data)
    # Not for lack of a number either.
    moved([data / store_path(2)], tmp_path / "away")
    (data / store_path(2)).unlink(missing_ok=True)
    shutil.copy(other / store_path(2), data / store_path(3))
    with pytest.raises(ConfigurationError, match=r"stores/store-3\.db holds 2 fragments"):
        names(data, stores=3)


def forget_generations(data: Path) -> None:
    """As if the server had not been started since."""
    with closing(apsw.Connection(str(data / "catalog.db"))) as db:
        db.execute("DROP TABLE seen")


def test_an_older_copy_of_one_store_is_refused(data: Path) -> None:
    shutil.copy(data / store_path(1), data.parent / "older.db")
    names(data)
    shutil.copy(data / store_path(1), data.parent / "newer.db")
    put_in_place(data.parent / "older.db", data / store_path(1))
    assert "Messaging store 1 is at generation 2, and has been at 3: an older copy" in refusal(data)
    put_in_place(data.parent / "newer.db", data / store_path(1))
    assert names(data) == ["parted", "payroll"]


def test_an_older_copy_of_one_store_is_refused_when_it_lacks_an_entity(data: Path) -> None:
    shutil.copy(data / store_path(1), data.parent / "older.db")
    create(data, "public", "private")
    put_in_place(data.parent / "older.db", data / store_path(1))
    forget_generations(data)
    text = refusal(data)
    assert "Messaging store 1 lacks 1 fragments" in text
    assert "duobus store replace 1" in text


def test_what_an_older_copy_of_a_store_has_of_a_deleted_entity_is_told_and_handed_to_nobody(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create(data, "spare")
    shutil.copy(data / store_path(1), data.parent / "older.db")
    delete(data, "payroll")
    create(data, "public", "private")
    delete(data, "public")
    delete(data, "private")
    put_in_place(data.parent / "older.db", data / store_path(1))
    forget_generations(data)
    caplog.set_level("ERROR")

    async def work(unit: ScaleUnit) -> set[tuple[int, int]]:
        return unit.strays[1]

    assert serve(data, work) == {(1, 0)}
    assert any("unknown fragments" in record.getMessage() for record in caplog.records)
    create(data, "new", "newer")
    assert names(data) == ["new", "newer", "parted", "spare"]


def test_a_whole_backup_is_restored_also_when_more_was_created_since(data: Path, tmp_path: Path) -> None:
    back_up_stopped(data, tmp_path / "backup", Clock(), lambda _done, _total: None)
    create(data, "public")
    restore(tmp_path / "backup", tmp_path / "restored", lambda _done, _total: None)
    assert names(tmp_path / "restored") == ["parted", "payroll"]
    create(tmp_path / "restored", "again")
    assert names(tmp_path / "restored") == ["again", "parted", "payroll"]
    # A store of the folder that went on is not taken for one of the restored one.
    put_in_place(data / store_path(1), tmp_path / "restored" / store_path(1))
    assert "Messaging store 1" in refusal(tmp_path / "restored")


def test_files_of_the_version_before_get_an_identity_and_are_guarded_from_then_on(data: Path, tmp_path: Path) -> None:
    forget_belonging(data)
    assert names(data) == ["parted", "payroll"]
    create(data, "public")
    shutil.copy(data / "catalog.db", tmp_path / "older.db")
    delete(data, "public")
    put_in_place(tmp_path / "older.db", data / "catalog.db")
    assert "older copy" in refusal(data)


@pytest.mark.parametrize("stores", [2, 3])
def test_a_replacement_that_was_killed_before_the_catalog_was_told_is_no_stranger(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stores: int
) -> None:
    moved([data / store_path(1)], tmp_path / "away")

    def killed(*_: object) -> None:
        raise StoreFailed("killed")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteCatalog, "replace_store", killed)
        with pytest.raises(StoreFailed, match="killed"):
            give_up(data, 1)
    assert names(data, stores=stores) == ["parted", "payroll"]
    assert {loss.entity for loss in give_up(data, 1)} == {"parted", "payroll"}
    assert names(data, stores=stores) == ["parted", "payroll"]
    create(data, "more", stores=stores)


def test_a_creation_that_meets_messages_refuses_and_leaves_them(data: Path) -> None:
    payloads: list[bytes] = []

    async def work(unit: ScaleUnit) -> None:
        # What no check at a start can see: under the number that comes next.
        number = unit.catalog.read().last_id + 1
        for broker in unit.brokers.values():
            row, (source,) = await broker.use(lambda broker=broker: broker.store.add_fragment(number, 0, [0]))  # type: ignore[misc]

            def fill(commit: CommitBatch, row=row, source=source) -> None:  # type: ignore[no-untyped-def]
                commit.epochs.append((row.fragment_key, row.epoch))
                commit.puts.append(Put(source.source_key, 1, 1, PAYLOADS))
                commit.sources.append((source.source_key, 1 + len(PAYLOADS), 0, b""))

            await broker.commit_loop.add_writes(fill)
        with pytest.raises(RowsExist, match="which are not its own"):
            await unit.create_queue(SPACE, QueueDescription(name="public"))
        assert "public" not in unit.namespace(SPACE).queues

    serve(data, work)

    async def look(unit: ScaleUnit) -> None:
        # The next start has tried to bring the creation to its end, and has refused, too.
        assert "public" not in unit.namespace(SPACE).queues
        for broker in unit.brokers.values():
            for key in broker.store._sources:  # type: ignore[attr-defined]
                payloads.extend(m.payload for m in await broker.use(lambda: broker.store.load(key, 1, 100)))  # noqa: B023

    serve(data, look)
    assert payloads.count(PAYLOADS[0]) >= 3


def test_a_revision_is_told_only_when_it_is_durable(tmp_path: Path) -> None:
    catalog: Catalog = SqliteCatalog(tmp_path / "catalog.db")
    assert catalog.identify(77) == 77
    before = catalog.read().revision

    def given_up() -> None:
        with catalog.together():
            catalog.add_store(1, "stores/store-1.db")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        given_up()
    catalog.read()
    assert catalog.mark.revision == before
    with catalog.together():
        catalog.add_store(1, "stores/store-1.db")
        assert catalog.mark.revision == before
    assert catalog.mark.revision == before + 1 == catalog.read().revision
    catalog.close()
    again = SqliteCatalog(tmp_path / "catalog.db")
    assert (again.identify(78), again.read().revision) == (77, before + 1)
    again.close()
