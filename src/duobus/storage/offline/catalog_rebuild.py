"""Rebuilding a lost catalog from what its stores have kept of it (``catalog_records.py``), offline.

Of records that differ, the one holds that was written at the later revision of the catalog: a store may have been away
when something changed. Where a fragment is, the stores say themselves, by having it. The rebuilt catalog keeps the
identity, and goes on far above the revision that the lost one can have had: should that turn up, it is refused as an
older copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from duobus.clock import Clock
from duobus.errors import ConfigurationError, StoreFailed, StoreForeign
from duobus.model.descriptions import SUBSCRIPTION
from duobus.storage.backup.manifest import CATALOG, sync_file, sync_folder
from duobus.storage.catalog.interface import Catalog
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog.unknown_stores import demand_no_strangers, store_files
from duobus.storage.catalog_identity import NOBODYS, CatalogMark, demand_own, highest_of, missing_from
from duobus.storage.catalog_records import (
    ENTITY,
    GAP,
    LOST,
    MOVE,
    NAMESPACE,
    STORE,
    Kept,
    entity_of,
    key_of,
    rules_of,
    topic_key,
)
from duobus.storage.catalog_rows import (
    INTENT,
    LIVE,
    CatalogContents,
    EntityRow,
    MoveRow,
    NamespaceRow,
    StoreRow,
    store_path,
)
from duobus.storage.folder_lock import FolderLock
from duobus.storage.offline.found_store import FoundStore
from duobus.storage.offline.store_search import PostgresSearch
from duobus.storage.postgres.address import PostgresAddress
from duobus.storage.sqlite import rows
from duobus.storage.sqlite.file import DRIVER_ERRORS, StoreOptions, check_format, close, connect, store_failed
from duobus.storage.sqlite.log_watch import MARK_SUFFIX, remove_mark

#: By how much the revision of a rebuilt catalog is above what any store was told: more changes than a lost catalog can
#: have had since.
REVISIONS_LEFT_OUT: Final = 1 << 32
_ENDING: Final = ".adopting"


class Adoption(msgspec.Struct, frozen=True):
    """A rebuilt catalog, and what is not in it.

    Attributes:
        contents: The catalog.
        stores: What was found, by number.
        unknown: Store id, entity id and number of fragments of which no record tells.
        away: Stores that the records name and that were not found.
    """

    contents: CatalogContents
    stores: tuple[int, ...]
    unknown: tuple[tuple[int, int, int], ...]
    away: tuple[StoreRow, ...]


def look_at(data: Path) -> list[FoundStore]:
    """Return what the stores of a data folder hold; nothing is changed.

    Raises:
        ConfigurationError: A file is not the store that its name says.
        StoreFailed: One cannot be read.
        StoreTooNew: A newer version wrote one.
    """
    return [_look_into(data / store_path(number), number) for number in store_files(data)]


def _look_into(path: Path, number: int) -> FoundStore:
    if not path.stat().st_size:
        return FoundStore(number, store_path(number), NOBODYS, [], [], {})
    db = None
    try:
        db = connect(str(path), StoreOptions())
        # What a journal may hold that the file lacks is messages, which nobody asks for here.
        check_format(db, str(path), must_exist=True, has_journal=True)
        meta = rows.read_meta(db, str(path), int(db.pragma("user_version")))
        if meta.store_id != number:
            raise ConfigurationError(f"{path} is store {meta.store_id}, not {number}: give it its own name.")
        return FoundStore(
            number,
            store_path(number),
            rows.read_belonging(db, str(path)),
            rows.read_fragments(db, str(path)),
            rows.read_sources(db, str(path)),
            rows.read_records(db, str(path)),
        )
    except DRIVER_ERRORS as error:
        raise store_failed(str(path), "look into the store", error) from error
    finally:
        close(db)


def rebuilt(stores: Sequence[FoundStore]) -> Adoption:
    """Return the catalog that these stores tell of.

    Raises:
        ConfigurationError: They belong to different catalogs, or keep nothing of any.
    """
    # Made for a replacement that was never through: it is made again when it is asked for.
    whole = [store for store in stores if not store.belonging.is_prepared]
    identity = _identity_of(whole)
    records = _latest(whole)
    if not records and any(store.fragments for store in whole):
        raise ConfigurationError(
            "The stores that were found keep no rows of their catalog: servers that share a catalog (--join) had them, "
            "or an earlier version of duobus. Bring back the catalog as it was last, or restore catalog and stores "
            "from one backup."
        )
    lost = tuple(_stores_in(records, LOST))
    present = {store.store_id: store for store in whole if store.store_id not in {row.store_id for row in lost}}
    known = {row.store_id: row for row in _stores_in(records, STORE)}
    known |= {number: StoreRow(number, store.path) for number, store in present.items()}
    entities, moves, unknown = _entities(records, present, known)
    gap = records.get(key_of(GAP))
    highest = max((highest_of(store.contents) for store in whole), default=0)
    contents = CatalogContents(
        tuple(NamespaceRow(name, rules_of(text)) for name, text in _of_kind(records, NAMESPACE)),
        tuple(entities),
        tuple(known[number] for number in sorted(known)),
        lost,
        0 if gap is None else int(json.loads(gap)),
        tuple(moves),
        identity,
        max(store.belonging.revision for store in whole) + REVISIONS_LEFT_OUT,
        max([highest, *(row.entity_id for row in entities)]),
    )
    away = tuple(row for number, row in sorted(known.items()) if number not in present)
    return Adoption(contents, tuple(sorted(present)), tuple(sorted(unknown)), away)


def _identity_of(stores: Iterable[FoundStore]) -> int:
    by_identity: dict[int, list[int]] = {}
    for store in stores:
        if store.belonging.identity:
            by_identity.setdefault(store.belonging.identity, []).append(store.store_id)
    if not by_identity:
        raise ConfigurationError(
            "No store that was found keeps anything of its catalog: there is none, or they were written by an "
            "earlier version of duobus and not opened by this one since. Restore a backup (duobus restore). Stores in "
            "PostgreSQL are found by --store."
        )
    if len(by_identity) > 1:
        groups = "; ".join(", ".join(map(str, numbers)) for numbers in by_identity.values())
        raise ConfigurationError(
            f"The stores that were found belong to different catalogs ({groups}). Move away those that are another "
            "server's, or older than a restored backup; of those in PostgreSQL give the right ones."
        )
    return next(iter(by_identity))


def _latest(stores: Iterable[FoundStore]) -> dict[str, bytes]:
    """Of each record, the text that was written last."""
    found: dict[str, Kept] = {}
    for store in stores:
        for key, kept in store.records.items():
            if key not in found or kept.revision > found[key].revision:
                found[key] = kept
    return {key: kept.text for key, kept in found.items()}


def _of_kind(records: Mapping[str, bytes], kind: str) -> list[tuple[str, bytes]]:
    start = f"{kind}:"
    return [(key[len(start) :], text) for key, text in sorted(records.items()) if key.startswith(start)]


def _stores_in(records: Mapping[str, bytes], kind: str) -> list[StoreRow]:
    return sorted(
        (StoreRow(int(number), msgspec.json.decode(text, type=str)) for number, text in _of_kind(records, kind)),
        key=lambda row: row.store_id,
    )


def _entities(
    records: Mapping[str, bytes], present: Mapping[int, FoundStore], known: Mapping[int, StoreRow]
) -> tuple[list[EntityRow], list[MoveRow], set[tuple[int, int, int]]]:
    """What there is, the moves that are to be ended, and the fragments of which no record tells."""
    holders: dict[tuple[int, int], list[int]] = {}
    for number, store in sorted(present.items()):
        for place in store.places:
            holders.setdefault(place, []).append(number)
    told = [entity_of(int(number), text) for number, text in _of_kind(records, ENTITY)]
    found: list[EntityRow] = []
    moves: list[MoveRow] = []
    explained: set[tuple[int, int]] = set()
    for row in (row for row in told if row.kind != SUBSCRIPTION):
        row = _placed(row, holders)
        here = [slot for slot in row.slots if (row.entity_id, slot.fragment_no) in holders]
        # Of what is in a store that is away, nothing is known but what the others tell.
        away = [slot for slot in row.slots if slot.store_id not in present and slot.store_id in known]
        if row.slots and not here and not away:
            # It was deleted: its fragments are gone, and only this was left of it.
            continue
        is_whole = len(here) + len(away) == len(row.slots)
        # Nobody is told that it exists before all of it does; from then on it may have been used.
        state = LIVE if row.state == INTENT and is_whole else row.state
        found.append(msgspec.structs.replace(row, state=state))
        for slot in row.slots:
            place = (row.entity_id, slot.fragment_no)
            explained.add(place)
            others = [number for number in holders.get(place, ()) if number != slot.store_id]
            moves += [MoveRow(*place, slot.store_id, number) for number in others[:1]]
    found += _subscriptions([row for row in told if row.kind == SUBSCRIPTION], found, present)
    ended = {(move.entity_id, move.fragment_no) for move in moves}
    for name, text in _of_kind(records, MOVE):
        entity_id, fragment_no = map(int, name.split(":"))
        if (entity_id, fragment_no) not in ended and (entity_id, fragment_no) in holders:
            moves.append(MoveRow(entity_id, fragment_no, *json.loads(text)))
            explained.add((entity_id, fragment_no))
    unknown = {(number, *place) for place, numbers in holders.items() if place not in explained for number in numbers}
    return sorted(found, key=lambda row: row.entity_id), moves, unknown


def _placed(row: EntityRow, holders: Mapping[tuple[int, int], list[int]]) -> EntityRow:
    """With its slots where the fragments are."""
    slots = []
    for slot in row.slots:
        numbers = holders.get((row.entity_id, slot.fragment_no), [])
        if numbers and slot.store_id not in numbers:
            slot = msgspec.structs.replace(slot, store_id=numbers[0])
        slots.append(slot)
    return msgspec.structs.replace(row, slots=tuple(slots))


def _subscriptions(
    told: Iterable[EntityRow], topics: Iterable[EntityRow], present: Mapping[int, FoundStore]
) -> Iterable[EntityRow]:
    """Those whose topics are there; what was deleted has no sources any more."""
    by_name = {(row.namespace.lower(), row.path.lower()): row for row in topics}
    numbers = {source.source_no for store in present.values() for source in store.sources}
    for row in told:
        topic = by_name.get(topic_key(row))
        if topic is not None and (row.entity_id in numbers or any(s.store_id not in present for s in topic.slots)):
            yield msgspec.structs.replace(row, state=LIVE) if row.state == INTENT else row


def demand_use(catalog: Catalog, stores: Sequence[FoundStore], data: Path | None) -> None:
    """Raise ConfigurationError when the catalog that is there fits its stores, so that nothing has to be rebuilt."""
    try:
        contents = catalog.read()
        if not contents.stores:
            return
        if data is not None:
            demand_no_strangers(data, contents)
        elif {store.store_id for store in stores} - {row.store_id for row in (*contents.stores, *contents.lost)}:
            return
        mark = CatalogMark()
        mark.see(contents)
        for store in stores:
            demand_own(mark, store.contents, store.path)
            if missing_from(contents, store.store_id, store.places):
                # A store that is too old: the stores' own records tell no more than the catalog does.
                break
    except (StoreForeign, StoreFailed):
        return
    finally:
        catalog.close()
    raise ConfigurationError(
        f"The catalog{'' if data is None else f' of {data}'} can be read, and is not older than its stores: there is "
        "nothing to rebuild."
    )


def adopt(data: Path, clock: Clock, *, places: Sequence[PostgresAddress] = (), is_dry: bool = False) -> Adoption:
    """Rebuild the catalog of a data folder that no server uses; a catalog that does not fit is kept beside it.

    Args:
        data: The folder.
        clock: For the names of what is kept.
        places: Addresses of stores in PostgreSQL. Those that the records of other stores name are found by that.
        is_dry: Only find out what the catalog would be.

    Raises:
        ConfigurationError: A server uses the folder, or there is nothing to rebuild, or nothing to rebuild it from.
        StoreFailed: A store cannot be read, or the catalog not be written; nothing was changed.
        StoreTooNew: A newer version wrote a store or the catalog; nothing was changed.
    """
    # Where all stores are in PostgreSQL, there is none.
    if not (data / "stores").is_dir() and not places:
        raise ConfigurationError(
            f"{data} is no data folder of duobus: it has no folder 'stores'. If its stores are in "
            "PostgreSQL, give --store."
        )
    lock = FolderLock(data)
    lock.take("duobus store adopt", clock)
    try:
        with closing(PostgresSearch(look_at(data), places, None)) as search:
            search.run()
            if (data / CATALOG).exists():
                demand_use(SqliteCatalog(data / CATALOG), search.found, data)
            adoption = rebuilt(search.found)
            if not is_dry:
                _write(data, adoption.contents, clock)
            return adoption
    except OSError as error:
        raise StoreFailed(f"{data}: the catalog could not be rebuilt: {error}") from error
    finally:
        lock.release()


def _write(data: Path, contents: CatalogContents, clock: Clock) -> None:
    made = data / (CATALOG + _ENDING)
    for path in data.glob(f"{CATALOG}{_ENDING}*"):
        # Of a try that was interrupted.
        path.unlink()
    catalog = SqliteCatalog(made)
    catalog.rebuild(contents)
    catalog.close()
    if Path(f"{made}-wal").exists() and Path(f"{made}-wal").stat().st_size:
        raise StoreFailed(f"{made}: its log could not be emptied; try again")
    sync_file(made)
    remove_mark(str(made))
    # The log and the mark first: beside another catalog they would be taken for that one's.
    for name in (f"{CATALOG}-wal", f"{CATALOG}-shm", f"{CATALOG}{MARK_SUFFIX}", CATALOG):
        if (data / name).exists():
            (data / name).replace(data / f"{name}.before-{clock.now_ms()}")
    made.replace(data / CATALOG)
    sync_folder(data)
