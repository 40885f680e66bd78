"""Stores in the data folder that its catalog does not know: what is in them may be another catalog's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from duobus.errors import StoreForeign
from duobus.storage.catalog_identity import ADVICE, NOBODYS, Belonging
from duobus.storage.catalog_rows import CatalogContents, store_path
from duobus.storage.sqlite import rows
from duobus.storage.sqlite.file import DRIVER_ERRORS, StoreOptions, check_format, close, connect, store_failed

_NAME: Final = re.compile(r"store-([1-9]\d{0,8})\.db")


def store_files(data: Path) -> Iterator[int]:
    """Numbers of the stores that have files in a data folder, ascending."""
    names = (_NAME.fullmatch(path.name) for path in (data / "stores").glob("store-*.db"))
    return iter(sorted(int(name[1]) for name in names if name))


def look_into(path: Path) -> tuple[Belonging, int]:
    """Return which catalog the file of a store belongs to, and how many fragments are in it; nothing is changed.

    Raises:
        StoreFailed: It cannot be read, or somebody has it open.
        StoreTooNew: A newer version wrote it.
    """
    # Its maker was killed; or a link leads to where nothing is yet.
    if not path.exists() or not path.stat().st_size:
        return NOBODYS, 0
    db = None
    try:
        db = connect(str(path), StoreOptions())
        # What a journal may hold that the file lacks is messages, which nobody asks for here.
        if not check_format(db, str(path), must_exist=False, has_journal=True):
            return NOBODYS, 0
        return rows.read_belonging(db, str(path)), len(rows.read_fragments(db, str(path)))
    except DRIVER_ERRORS as error:
        raise store_failed(str(path), "look into the store", error) from error
    finally:
        close(db)


def demand_no_strangers(data: Path, contents: CatalogContents) -> None:
    """Refuse to go on with a catalog that does not know the stores that lie beside it.

    A store that was given up may lie there, and so may one that was just being made when the server was killed.

    Raises:
        StoreForeign: There is one with something in it.
        StoreFailed, StoreTooNew: One of them cannot be looked into.
    """
    known = {row.store_id for row in (*contents.stores, *contents.lost)}
    for number in store_files(data):
        if number in known:
            continue
        own, fragments = look_into(data / store_path(number))
        if own.is_prepared and own.identity == contents.identity:
            # ``duobus store replace`` was killed before the catalog was told.
            continue
        if own.identity or fragments:
            what = "is new" if not contents.stores else "does not know it"
            raise StoreForeign(
                f"{store_path(number)} holds {fragments} fragments of entities, and the catalog of this data folder "
                f"{what}: it was lost, or is an older copy, or the store is another server's. {ADVICE}. A store that "
                "is another server's, move away."
            )
