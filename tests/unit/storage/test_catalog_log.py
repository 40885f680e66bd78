"""A catalog's log or file that is taken away or exchanged costs nothing that was answered, or is refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from duobus.errors import StoreFailed
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_rows import NamespaceRow, SlotRow

SLOTS = [SlotRow(0, 0, 1)]


def create(catalog: SqliteCatalog, name: str) -> int:
    entity_id = catalog.begin_create("n", "queue", name, b"{}", SLOTS)
    catalog.mark_live(entity_id)
    return entity_id


def names(catalog: SqliteCatalog) -> list[str]:
    return [row.path for row in catalog.read().entities]


def killed(folder: Path, name: str = "killed") -> Path:
    """The files as a SIGKILL leaves them, in another folder."""
    copy = folder.parent / name
    shutil.copytree(folder, copy)
    return copy


@pytest.fixture
def catalog(tmp_path: Path) -> SqliteCatalog:
    made = SqliteCatalog(tmp_path / "data" / "catalog.db")
    create(made, "first")
    return made


@pytest.mark.parametrize("other", [None, b"something else"])
def test_a_removed_or_replaced_log_takes_nothing_with_it(
    catalog: SqliteCatalog, tmp_path: Path, other: bytes | None
) -> None:
    log = tmp_path / "data" / "catalog.db-wal"
    log.unlink()
    if other is not None:
        log.write_bytes(other)
    assert names(SqliteCatalog(killed(tmp_path / "data", "at-once") / "catalog.db")) == ["first"]
    create(catalog, "second")
    create(catalog, "third")
    assert names(SqliteCatalog(killed(tmp_path / "data") / "catalog.db")) == ["first", "second", "third"]
    assert (log.with_name("catalog.db-wal.foreign").exists()) == (other is not None)
    catalog.close()


@pytest.mark.parametrize("is_together", [False, True])
def test_nothing_that_was_answered_stands_in_the_log_alone(
    catalog: SqliteCatalog, tmp_path: Path, *, is_together: bool
) -> None:
    log = tmp_path / "data" / "catalog.db-wal"
    if is_together:
        with catalog.together():
            create(catalog, "second")
            create(catalog, "third")
    else:
        catalog.put_namespace(NamespaceRow("n", ()))
        assert not log.stat().st_size
        catalog.add_store(1, "stores/store-1.db")
    assert not log.stat().st_size
    catalog.close()


def test_a_catalog_that_was_taken_away_takes_no_change(catalog: SqliteCatalog, tmp_path: Path) -> None:
    file = tmp_path / "data" / "catalog.db"
    file.rename(tmp_path / "away")
    with pytest.raises(StoreFailed, match="moved, removed or replaced while in use; put it back"):
        create(catalog, "second")
    with pytest.raises(StoreFailed, match="put it back"):
        catalog.read()
    (tmp_path / "away").rename(file)
    assert names(catalog)[0] == "first"
    catalog.close()


def test_an_older_copy_of_the_catalog_is_refused_until_the_right_one_is_back(
    catalog: SqliteCatalog, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    older = killed(folder, "older")
    create(catalog, "second")
    catalog.close()
    right = (folder / "catalog.db").read_bytes()
    shutil.copyfile(older / "catalog.db", folder / "catalog.db")
    with pytest.raises(StoreFailed, match="older than what was committed"):
        SqliteCatalog(folder / "catalog.db").read()
    (folder / "catalog.db").write_bytes(right)
    assert names(SqliteCatalog(folder / "catalog.db")) == ["first", "second"]


def test_an_older_log_is_refused_and_not_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    catalog = SqliteCatalog(folder / "catalog.db")
    with monkeypatch.context() as patches:
        # Killed between the commit and its copy home.
        patches.setattr("duobus.storage.catalog.sqlite_connection.CatalogConnection._bring_home", lambda *_: None)
        create(catalog, "first")
    log = (folder / "catalog.db-wal").read_bytes()
    assert log
    create(catalog, "second")
    catalog.close()
    right = (folder / "catalog.db").read_bytes()
    (folder / "catalog.db-wal").write_bytes(log)
    with pytest.raises(StoreFailed, match="older than what was committed"):
        SqliteCatalog(folder / "catalog.db").read()
    assert (folder / "catalog.db").read_bytes() == right


def test_what_a_killed_server_left_in_the_log_is_brought_home_before_it_is_shown(
    catalog: SqliteCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patches:
        # Killed between the commit and its copy home.
        patches.setattr("duobus.storage.catalog.sqlite_connection.CatalogConnection._bring_home", lambda *_: None)
        create(catalog, "second")
    folder = killed(tmp_path / "data")
    again = SqliteCatalog(folder / "catalog.db")
    assert names(again) == ["first", "second"]
    last = killed(folder, "again")
    (last / "catalog.db-wal").unlink()
    assert names(SqliteCatalog(last / "catalog.db")) == ["first", "second"]
    again.close()
    catalog.close()


def test_a_catalog_that_is_gone_is_not_made_anew(catalog: SqliteCatalog, tmp_path: Path) -> None:
    catalog.close()
    for file in ("catalog.db", "catalog.db-wal"):
        (tmp_path / "data" / file).unlink()
    with pytest.raises(StoreFailed, match="missing or empty; put it back"):
        SqliteCatalog(tmp_path / "data" / "catalog.db").read()
    assert not (tmp_path / "data" / "catalog.db").exists()
    # Whoever wants an empty one says so.
    (tmp_path / "data" / "catalog.db.mark").unlink()
    again = SqliteCatalog(tmp_path / "data" / "catalog.db")
    assert names(again) == []
    again.close()
