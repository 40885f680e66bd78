"""The catalog: one contract for both implementations, and what the file itself promises."""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest

from duobus.clock import Entropy
from duobus.errors import EntityAlreadyExists, EntityNotFound, StoreFailed, StoreTooNew
from duobus.model.descriptions import AccessRule
from duobus.storage.catalog.interface import Catalog, new_namespace
from duobus.storage.catalog.memory import MemoryCatalog
from duobus.storage.catalog.postgres import PostgresCatalog
from duobus.storage.catalog.sqlite import FORMAT_VERSION, SqliteCatalog
from duobus.storage.catalog_rows import (
    DELETING,
    INTENT,
    LIVE,
    CatalogContents,
    MoveRow,
    NamespaceRow,
    SlotRow,
    StoreRow,
)
from duobus.storage.postgres.address import catalog_place

_SLOTS = (SlotRow(1, 8, 0), SlotRow(0, 7, 1))
_RULE = AccessRule(name="r", primary_key="one", secondary_key="two", rights=7)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    found: Catalog
    if request.param == "memory":
        found = MemoryCatalog()
    elif request.param == "sqlite":
        found = SqliteCatalog(tmp_path / "data" / "catalog.db")
    else:
        found = PostgresCatalog(catalog_place(request.getfixturevalue("postgres_url")))
    yield found
    found.close()


def _reread(catalog: Catalog) -> CatalogContents:
    catalog.close()
    return catalog.read()


def test_a_new_catalog_is_empty_and_stays_so(catalog: Catalog) -> None:
    assert catalog.read() == CatalogContents((), (), ())
    assert _reread(catalog) == CatalogContents((), (), ())


def test_the_name_of_what_could_not_be_created_is_free_while_it_is_deleted(catalog: Catalog) -> None:
    catalog.read()
    failed = catalog.begin_create("ns", "queue", "Orders", b"{}", _SLOTS)
    catalog.withdraw(failed, f"Orders#{failed}")
    again = catalog.begin_create("ns", "queue", "orders", b"{}", _SLOTS)
    assert again > failed
    rows = {row.entity_id: (row.path, row.state, len(row.slots)) for row in _reread(catalog).entities}
    assert rows == {failed: (f"Orders#{failed}", DELETING, 2), again: ("orders", INTENT, 2)}
    catalog.finish_delete(failed)
    assert [row.entity_id for row in _reread(catalog).entities] == [again]


def test_a_description_is_replaced_only_where_it_is_still_the_one_that_was_read(catalog: Catalog) -> None:
    catalog.read()
    entity_id = catalog.begin_create("ns", "queue", "q", b"1", ())
    assert catalog.update_description(entity_id, b"2", b"1")
    assert not catalog.update_description(entity_id, b"3", b"1")
    assert [row.description for row in _reread(catalog).entities] == [b"2"]
    catalog.begin_delete(entity_id)
    assert not catalog.update_description(entity_id, b"3", b"2")
    assert [(row.description, row.state) for row in _reread(catalog).entities] == [(b"2", DELETING)]


def test_what_is_being_deleted_is_not_made_live(catalog: Catalog) -> None:
    catalog.read()
    entity_id = catalog.begin_create("ns", "queue", "q", b"{}", ())
    catalog.begin_delete(entity_id)
    catalog.mark_live(entity_id)
    assert [row.state for row in _reread(catalog).entities] == [DELETING]


def test_a_part_is_created_only_while_what_it_is_a_part_of_is_there(catalog: Catalog) -> None:
    catalog.read()
    whole = catalog.begin_create("ns", "whole", "t", b"{}", ())
    part = catalog.begin_create("ns", "part", "t/1", b"{}", (), whole)
    catalog.begin_delete(whole)
    for missing in (whole, part + 1_000):
        with pytest.raises(EntityNotFound, match="t/2"):
            catalog.begin_create("ns", "part", "t/2", b"{}", (), missing)
    assert [row.path for row in _reread(catalog).entities] == ["t", "t/1"]


def test_a_deletion_is_done_only_while_others_are_live_and_the_description_is_the_one_that_was_read(
    catalog: Catalog,
) -> None:
    catalog.read()
    whole, first, second = (catalog.begin_create("ns", "queue", path, b"1", ()) for path in ("q", "a", "b"))
    for entity_id in (whole, first):
        catalog.mark_live(entity_id)
    assert not catalog.begin_delete_while(whole, b"1", [first, second])
    catalog.mark_live(second)
    assert not catalog.begin_delete_while(whole, b"2", [first, second])
    catalog.finish_delete(first)
    assert not catalog.begin_delete_while(whole, b"1", [first, second])
    assert _reread(catalog).entities[0].state == LIVE
    assert catalog.begin_delete_while(whole, b"1", [second])
    assert not catalog.begin_delete_while(whole, b"1", [second])
    assert _reread(catalog).entities[0].state == DELETING


def test_calls_that_are_made_together_are_all_there_but_for_those_that_raised(catalog: Catalog) -> None:
    with catalog.together():
        first = catalog.begin_create("n", "queue", "one", b"{}", _SLOTS)
        with pytest.raises(EntityAlreadyExists):
            catalog.begin_create("n", "queue", "ONE", b"{}", _SLOTS)
        second = catalog.begin_create("n", "queue", "two", b"{}", _SLOTS)
        catalog.mark_live(first)
    assert [(row.entity_id, row.state) for row in _reread(catalog).entities] == [(first, LIVE), (second, INTENT)]


def test_calls_that_are_made_together_are_one_commit_of_the_file(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.read()

    def die_in_between() -> None:
        with catalog.together():
            catalog.begin_create("n", "queue", "one", b"{}", _SLOTS)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        die_in_between()
    assert catalog.read().entities == ()
    catalog.close()


def test_everything_written_is_there_after_reopening(catalog: Catalog) -> None:
    catalog.put_namespace(NamespaceRow("contoso", (_RULE,)))
    catalog.add_store(0, "store-0.db")
    catalog.add_store(1, "store-1.db")
    entity_id = catalog.begin_create("contoso", "queue", "Orders/EU", b'{"name":"Orders/EU","x":"\xc3\xbc"}', _SLOTS)
    contents = _reread(catalog)
    assert contents.namespaces == (NamespaceRow("contoso", (_RULE,)),)
    assert contents.stores == (StoreRow(0, "store-0.db"), StoreRow(1, "store-1.db"))
    (entity,) = contents.entities
    assert (entity.entity_id, entity.namespace, entity.kind, entity.path) == (
        entity_id,
        "contoso",
        "queue",
        "Orders/EU",
    )
    assert (entity.state, entity.partition_count) == (INTENT, 2)
    assert entity.description == b'{"name":"Orders/EU","x":"\xc3\xbc"}'
    assert entity.slots == (SlotRow(0, 7, 1), SlotRow(1, 8, 0))


def test_an_entity_goes_from_intent_over_live_to_gone(catalog: Catalog) -> None:
    entity_id = catalog.begin_create("n", "queue", "q", b"{}", _SLOTS)
    for step, state in ((catalog.mark_live, LIVE), (catalog.begin_delete, DELETING)):
        step(entity_id)
        assert _reread(catalog).entities[0].state == state
    catalog.finish_delete(entity_id)
    catalog.finish_delete(entity_id)
    assert _reread(catalog).entities == ()


def test_ids_of_entities_are_never_used_again(catalog: Catalog) -> None:
    first = catalog.begin_create("n", "queue", "q", b"{}", _SLOTS)
    catalog.finish_delete(first)
    catalog.close()
    assert catalog.begin_create("n", "queue", "q", b"{}", _SLOTS) > first


def test_names_are_unique_in_a_namespace_without_regard_to_case(catalog: Catalog) -> None:
    entity_id = catalog.begin_create("n", "queue", "Orders", b"{}", _SLOTS)
    catalog.begin_delete(entity_id)
    with pytest.raises(EntityAlreadyExists, match="oRDERS"):
        catalog.begin_create("n", "topic", "oRDERS", b"{}", _SLOTS)
    catalog.begin_create("other", "queue", "orders", b"{}", _SLOTS)
    assert [entity.path for entity in _reread(catalog).entities] == ["Orders", "orders"]


def test_a_description_is_replaced_and_nothing_else(catalog: Catalog) -> None:
    entity_id = catalog.begin_create("n", "queue", "q", b'{"a":1}', _SLOTS)
    catalog.mark_live(entity_id)
    catalog.update_description(entity_id, b'{"a":2}')
    (entity,) = _reread(catalog).entities
    assert (entity.description, entity.state, len(entity.slots)) == (b'{"a":2}', LIVE, 2)


def test_changing_an_unknown_entity_fails_clearly(catalog: Catalog) -> None:
    calls: list[Callable[[], None]] = [
        lambda: catalog.mark_live(9),
        lambda: catalog.begin_delete(9),
        lambda: catalog.update_description(9, b"{}"),
    ]
    for call in calls:
        with pytest.raises(StoreFailed, match="no entity 9"):
            call()


def test_stores_and_namespaces_can_be_put_again(catalog: Catalog) -> None:
    for _ in range(2):
        catalog.add_store(0, "s")
        catalog.put_namespace(NamespaceRow("n", (_RULE,)))
    catalog.put_namespace(NamespaceRow("n", ()))
    contents = _reread(catalog)
    assert (contents.stores, contents.namespaces) == ((StoreRow(0, "s"),), (NamespaceRow("n", ()),))


def test_access_rules_become_what_a_change_makes_of_those_that_are_there(catalog: Catalog) -> None:
    catalog.put_namespace(NamespaceRow("n", (_RULE,)))
    catalog.put_namespace(NamespaceRow("other", (_RULE,)))
    before = catalog.read().revision
    new = AccessRule(name="new", primary_key="a", secondary_key="b", rights=1)
    assert catalog.change_rules("n", lambda rules: (*rules, new)) == (_RULE, new)
    # What comes next sees what came before.
    assert catalog.change_rules("n", lambda rules: rules[1:]) == (new,)
    contents = _reread(catalog)
    assert {row.name: row.rules for row in contents.namespaces} == {"n": (new,), "other": (_RULE,)}
    assert contents.revision == before + 2


def test_a_change_of_access_rules_that_is_refused_leaves_nothing_behind(catalog: Catalog) -> None:
    catalog.put_namespace(NamespaceRow("n", (_RULE,)))
    before = catalog.read()

    def refuse(rules: tuple[AccessRule, ...]) -> tuple[AccessRule, ...]:
        raise EntityAlreadyExists("so it is")

    with pytest.raises(EntityAlreadyExists):
        catalog.change_rules("n", refuse)
    with pytest.raises(EntityNotFound, match="no namespace 'none'"):
        catalog.change_rules("none", lambda rules: rules)
    assert catalog.read() == before
    assert catalog.mark.revision == before.revision
    assert _reread(catalog) == before


def test_two_servers_that_change_access_rules_at_the_same_time_keep_both_changes(
    request: pytest.FixtureRequest,
) -> None:
    url = request.getfixturevalue("postgres_url")
    first, second = (PostgresCatalog(catalog_place(url)) for _ in range(2))
    with closing(first), closing(second):
        first.put_namespace(NamespaceRow("n", (_RULE,)))
        second.read()
        started, done = threading.Event(), []

        def change_slowly(rules: tuple[AccessRule, ...]) -> tuple[AccessRule, ...]:
            # The other one comes in the middle of this change, and has to wait for its end.
            started.set()
            assert not other_is_over.wait(0.3)
            return (*rules, msgspec.structs.replace(_RULE, name="slow"))

        other_is_over = threading.Event()

        def change_meanwhile() -> None:
            started.wait(60)
            done.append(second.change_rules("n", lambda rules: (*rules, msgspec.structs.replace(_RULE, name="fast"))))
            other_is_over.set()

        thread = threading.Thread(target=change_meanwhile)
        thread.start()
        first.change_rules("n", change_slowly)
        thread.join(60)
        assert [rule.name for rule in done[0]] == ["r", "slow", "fast"]
        assert [rule.name for rule in first.read().namespaces[0].rules] == ["r", "slow", "fast"]


def test_a_new_namespace_has_the_default_rule_with_two_fresh_keys() -> None:
    (rule,) = new_namespace("Contoso", Entropy()).rules
    assert rule.name == "RootManageSharedAccessKey"
    assert rule.rights == 7
    assert len(rule.primary_key) == len(rule.secondary_key) == 44
    assert rule.primary_key != rule.secondary_key


def test_files_of_the_catalog_are_for_their_owner_only(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "data" / "catalog.db")
    catalog.put_namespace(NamespaceRow("n", (_RULE,)))
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    files = list((tmp_path / "data").iterdir())
    assert len(files) >= 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    catalog.close()


def test_commits_of_the_catalog_are_synced_to_disk(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.read()
    connection = catalog._connection
    assert connection is not None
    assert connection.pragma("synchronous") == 2
    assert connection.pragma("journal_mode") == "wal"
    catalog.close()


def test_a_second_process_is_refused_while_the_first_holds_it(tmp_path: Path) -> None:
    first, second = (SqliteCatalog(tmp_path / "catalog.db") for _ in range(2))
    first.read()
    with pytest.raises(StoreFailed, match="catalog"):
        second.read()
    first.close()
    second.read()
    second.close()


def test_a_catalog_of_a_newer_version_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    catalog = SqliteCatalog(path)
    catalog.read()
    catalog.close()
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE meta SET value = ?", (FORMAT_VERSION + 1,))
    connection.close()
    with pytest.raises(StoreTooNew, match="newer"):
        catalog.read()
    with pytest.raises(StoreTooNew):
        catalog.put_namespace(NamespaceRow("n", ()))


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entities SET description = '{\"b\":1}'",
        "UPDATE entities SET state = 'live'",
        "UPDATE entities SET path = 'Q'",
        "UPDATE slots SET store_id = 5 WHERE slot = 1",
        "DELETE FROM slots WHERE slot = 1",
        "UPDATE stores SET path = 'elsewhere'",
        "UPDATE namespaces SET rules = '[]'",
    ],
)
def test_an_altered_row_is_noticed_when_the_catalog_is_read(tmp_path: Path, change: str) -> None:
    path = tmp_path / "catalog.db"
    catalog = SqliteCatalog(path)
    catalog.begin_create("n", "queue", "q", b"{}", _SLOTS)
    catalog.add_store(0, "s")
    catalog.put_namespace(NamespaceRow("n", (_RULE,)))
    catalog.close()
    connection = apsw.Connection(str(path))
    connection.execute(change)
    connection.close()
    with pytest.raises(StoreFailed, match="backup"):
        catalog.read()
    catalog.close()


def test_a_file_that_is_no_catalog_fails_clearly(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    path.write_bytes(b"not a database at all, but long enough to be looked at" * 40)
    with pytest.raises(StoreFailed, match=r"catalog\.db"):
        SqliteCatalog(path).read()


def test_a_catalog_that_failed_is_opened_again_by_the_next_call(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "catalog.db"
    path.parent.write_text("in the way")
    catalog = SqliteCatalog(path)
    with pytest.raises(StoreFailed):
        catalog.put_namespace(NamespaceRow("n", ()))
    path.parent.unlink()
    catalog.put_namespace(NamespaceRow("n", ()))
    assert _reread(catalog).namespaces == (NamespaceRow("n", ()),)
    catalog.close()


def test_a_connection_that_failed_is_never_used_again(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.put_namespace(NamespaceRow("n", ()))
    assert catalog._connection is not None
    catalog._connection.close()
    with pytest.raises(StoreFailed, match="failed"):
        catalog.add_store(0, "s")
    catalog.add_store(0, "s")
    assert catalog.read().stores == (StoreRow(0, "s"),)
    catalog.close()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_catalog_that_was_moved_away_is_not_made_anew_and_keeps_its_log(tmp_path: Path, is_replaced: bool) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.add_store(1, "store-1.db")
    # As after SIGKILL: what is in the log alone stays there.
    catalog._open().config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    catalog.close()
    catalog.path.rename(tmp_path / "away")
    if is_replaced:
        catalog.path.touch()
    for opened in (catalog, SqliteCatalog(catalog.path)):
        with pytest.raises(StoreFailed, match="put it back"):
            opened.read()
    (tmp_path / "away").replace(catalog.path)
    assert [row.store_id for row in catalog.read().stores] == [1]


def test_a_move_is_known_until_it_ends_and_its_switch_changes_one_slot(catalog: Catalog) -> None:
    entity_id = catalog.begin_create("n", "queue", "q", b"{}", _SLOTS)
    move = MoveRow(entity_id, 8, 0, 3)
    catalog.begin_move(move)
    catalog.begin_move(move)
    assert _reread(catalog).moves == (move,)
    assert _reread(catalog).entities[0].slots == tuple(sorted(_SLOTS, key=lambda row: row.slot))
    catalog.switch_move(move)
    assert _reread(catalog).entities[0].slots == (SlotRow(0, 7, 1), SlotRow(1, 8, 3))
    catalog.end_move(move)
    catalog.end_move(move)
    assert _reread(catalog).moves == ()


def test_a_fragment_that_is_gone_cannot_be_switched(catalog: Catalog) -> None:
    with pytest.raises(StoreFailed, match="no entity"):
        catalog.switch_move(MoveRow(77, 0, 1, 2))
