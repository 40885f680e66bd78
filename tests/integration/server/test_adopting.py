"""A lost catalog is made anew from what its stores have kept of it: names, properties, rules, keys and places."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest
from click.testing import CliRunner
from test_lost_catalog import (
    PAYLOADS,
    SPACE,
    catalog_files,
    create,
    delete,
    forget_belonging,
    moved,
    names,
    put_messages,
    refusal,
    serve,
)

from duobus.broker import ScaleUnit
from duobus.cli.main import main
from duobus.clock import Clock
from duobus.errors import ConfigurationError, StoreFailed
from duobus.model.descriptions import QueueDescription, RuleDescription, SubscriptionDescription, TopicDescription
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_rows import DELETING, INTENT, LIVE, CatalogContents, store_path
from duobus.storage.offline.catalog_rebuild import REVISIONS_LEFT_OUT, adopt
from duobus.storage.sqlite.store import SqliteStore


def read(data: Path) -> CatalogContents:
    with closing(SqliteCatalog(data / "catalog.db")) as catalog:
        return catalog.read()


def lose(data: Path) -> CatalogContents:
    """Take the catalog away; returns what was in it."""
    contents = read(data)
    moved(catalog_files(data), data.parent / "away")
    return contents


def same(found: CatalogContents, lost: CatalogContents) -> bool:
    """But for the revision, which is far above, and for what is seen of stores at the next start."""
    assert found.revision >= REVISIONS_LEFT_OUT
    return msgspec.structs.replace(found, revision=lost.revision, generations=()) == msgspec.structs.replace(
        lost, generations=()
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"

    async def work(unit: ScaleUnit) -> None:
        await unit.create_queue(SPACE, QueueDescription(name="Payroll", lock_duration_ms=30_000))
        await unit.create_queue(SPACE, QueueDescription(name="parted", enable_partitioning=True))
        await unit.create_queue(SPACE, QueueDescription(name="gone", enable_partitioning=True))
        about = TopicDescription(name="news", subscriptions=(SubscriptionDescription(name="all"),))
        await unit.topics.create_topic(SPACE, about)
        await unit.topics.create_subscription(SPACE, "news", SubscriptionDescription(name="some"))
        await unit.topics.create_subscription(SPACE, "news", SubscriptionDescription(name="none"))
        await unit.topics.add_rule(unit.topics.subscription(SPACE, "news", "some"), RuleDescription(name="more"))
        await unit.topics.delete_subscription(SPACE, "news", "none")
        await unit.delete_queue(SPACE, "gone")
        changed = QueueDescription(name="Payroll", lock_duration_ms=60_000, max_delivery_count=3)
        await unit.update_queue(SPACE, changed)

    serve(data, work)
    return data


def test_a_rebuilt_catalog_is_as_the_lost_one_was(data: Path) -> None:
    put_messages(data, 1)
    lost = lose(data)
    found = adopt(data, Clock())
    assert same(found.contents, lost)
    assert same(read(data), lost)
    assert (found.unknown, found.away) == ((), ())
    assert names(data) == ["parted", "payroll"]
    create(data, "new")
    rows = {row.path: row for row in read(data).entities}
    assert rows["new"].entity_id > lost.last_id
    with closing(SqliteStore(str(data / store_path(1)), 1, must_exist=True)) as store:
        sources = store.open().sources
        kept = [message.payload for source in sources for message in store.load(source.source_key, 1, 100)]
    assert kept.count(PAYLOADS[0]) == len([row for row in sources if row.next_count > 1]) > 0


def test_the_lost_catalog_is_an_older_copy_when_it_turns_up_after_all(data: Path) -> None:
    lose(data)
    adopt(data, Clock())
    names(data)
    shutil.copy(data.parent / "away" / "catalog.db", data / "catalog.db")
    assert "older copy" in refusal(data)


def test_an_older_catalog_is_kept_beside_the_rebuilt_one(data: Path) -> None:
    shutil.copy(data / "catalog.db", data.parent / "older.db")
    create(data, "public")
    lost = lose(data)
    shutil.copy(data.parent / "older.db", data / "catalog.db")
    assert same(adopt(data, Clock()).contents, lost)
    assert len(list(data.glob("catalog.db.before-*"))) == 1
    assert names(data) == ["parted", "payroll", "public"]


def test_a_catalog_that_fits_is_not_rebuilt(data: Path) -> None:
    before = read(data)
    with pytest.raises(ConfigurationError, match="there is nothing to rebuild"):
        adopt(data, Clock())
    assert read(data) == before


def test_the_newest_record_wins_when_a_store_was_away_during_a_change(data: Path) -> None:
    """A store that has not written the last change has an older record, whichever store is read first."""
    stores = [data / store_path(number) for number in (1, 2)]
    for path in stores:
        shutil.copy(path, path.with_suffix(".older"))

    async def change(unit: ScaleUnit) -> None:
        about = unit.namespace(SPACE).queues["parted"].description
        await unit.update_queue(SPACE, msgspec.structs.replace(about, max_delivery_count=77))

    serve(data, change)
    lost = lose(data)
    for path in stores:
        # The records of one store as they were before; its rows are the same.
        with closing(apsw.Connection(str(path))) as db:
            before = apsw.Connection(str(path.with_suffix(".older"))).execute("SELECT * FROM records").fetchall()
            now = db.execute("SELECT * FROM records").fetchall()
            assert before != now
            db.execute("DELETE FROM records")
            db.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", before)
        assert same(adopt(data, Clock(), is_dry=True).contents, lost)
        with closing(apsw.Connection(str(path))) as db:
            db.execute("DELETE FROM records")
            db.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", now)


def test_what_was_being_made_or_deleted_is_resumed_by_the_next_start(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begin(unit: ScaleUnit) -> None:
        def lost(*_: object) -> None:
            raise StoreFailed("killed")

        with monkeypatch.context() as patch:
            patch.setattr(SqliteCatalog, "mark_live", lost)
            with pytest.raises(StoreFailed):
                await unit.create_queue(SPACE, QueueDescription(name="half", enable_partitioning=True))
        queue = unit.namespace(SPACE).queues["parted"]
        unit._take_away(queue)
        await queue.fragments[0].broker.host.drop_entity(queue.entity_id)

    serve(data, begin)
    states = {row.path: row.state for row in lose(data).entities}
    assert (states["half"], states["parted"]) == (INTENT, DELETING)
    found = {row.path: row.state for row in adopt(data, Clock()).contents.entities}
    # All of it is there, so that its clients may have been told.
    assert (found["half"], found["parted"]) == (LIVE, DELETING)
    assert names(data) == ["half", "payroll"]


def test_moved_fragments_are_found_where_they_are(data: Path) -> None:
    async def move(unit: ScaleUnit) -> None:
        handle = unit.namespace(SPACE).queues["payroll"].fragments[0]
        target = 3 - handle.store.store_id
        unit.moves.start(SPACE, "payroll", 0, target)
        await unit.moves.wait()
        assert handle.store.store_id == target

    serve(data, move)
    assert same(adopt_lost(data), read_away(data))
    assert names(data) == ["parted", "payroll"]


def adopt_lost(data: Path) -> CatalogContents:
    lose(data)
    return adopt(data, Clock()).contents


def read_away(data: Path) -> CatalogContents:
    with closing(SqliteCatalog(data.parent / "away" / "catalog.db")) as catalog:
        return catalog.read()


def test_a_store_that_is_away_is_named_and_may_come_back(data: Path) -> None:
    lost = lose(data)
    moved([data / store_path(2)], data.parent / "off")
    found = adopt(data, Clock())
    assert [row.store_id for row in found.away] == [2]
    shutil.move(data.parent / "off" / "store-2.db", data / store_path(2))
    # What only the other one knew is not in it; its fragments are told of, and handed to nobody.
    assert {row.path for row in read(data).entities} <= {row.path for row in lost.entities}
    assert "parted" in names(data)


def test_stores_of_two_catalogs_are_not_put_together(data: Path, tmp_path: Path) -> None:
    create(tmp_path / "other", "a")
    lose(data)
    shutil.copy(tmp_path / "other" / store_path(2), data / store_path(2))
    with pytest.raises(ConfigurationError, match=r"belong to different catalogs \(1; 2\)"):
        adopt(data, Clock())


def test_stores_of_the_version_before_keep_nothing(data: Path) -> None:
    forget_belonging(data)
    lose(data)
    with pytest.raises(ConfigurationError, match="written by an earlier version"):
        adopt(data, Clock())


def test_the_command_says_what_it_found_and_changes_nothing_in_a_dry_run(data: Path) -> None:
    delete(data, "payroll")
    lose(data)
    words = ["store", "adopt", "--data", str(data), "-o", "json"]
    dry = CliRunner().invoke(main, [*words, "--dry-run"])
    assert dry.exit_code == 0, dry.output
    assert {row["entity"]: row["fragments"] for row in json.loads(dry.stdout)} == {
        "parted": 16,
        "news": 1,
        "news/Subscriptions/all": 0,
        "news/Subscriptions/some": 0,
    }
    assert "would be rebuilt from stores 1, 2: 4 entities" in dry.stderr
    assert catalog_files(data) == []
    assert CliRunner().invoke(main, words).exit_code == 0
    assert names(data) == ["parted"]
    again = CliRunner().invoke(main, words)
    assert again.exit_code == 1
    assert "nothing to rebuild" in again.output


def test_a_change_is_through_although_its_record_cannot_be_read_and_the_record_comes_later(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(unit: ScaleUnit) -> None:
        def unreadable(*_: object) -> None:
            raise apsw.IOError("it is gone for a moment")

        about = unit.namespace(SPACE).queues["parted"].description
        with monkeypatch.context() as patch:
            patch.setattr(SqliteCatalog, "_record", unreadable)
            await unit.update_queue(SPACE, msgspec.structs.replace(about, max_delivery_count=55))
        copies = unit.catalog.mark.copies
        assert copies is not None
        assert not copies.knows(1)

    serve(data, work)
    lost = lose(data)
    assert same(adopt(data, Clock()).contents, lost)


def test_a_server_that_runs_keeps_others_out_of_its_folder(data: Path) -> None:
    async def work(_unit: ScaleUnit) -> None:
        with pytest.raises(ConfigurationError, match=r"is in use by a server with process id \d+, since 20"):
            adopt(data, Clock())

    serve(data, work)
