"""Files of stores as earlier versions wrote them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw

from duobus.storage.checksums import numbers_sum
from duobus.storage.sqlite import schema


def age(db: apsw.Connection, version: int) -> None:
    """Make a file what an earlier version wrote: without the tables that it did not know, its format in both places."""
    row = db.execute(schema.READ_META).fetchone()
    assert row is not None
    with db:
        if version < 2:
            db.execute("DROP TABLE IF EXISTS shares")
        if version < 3:
            db.execute("DROP TABLE IF EXISTS folded")
        db.execute(schema.UPDATE_FORMAT, (version, numbers_sum((version, *row[1:-1]))))
        db.execute(f"PRAGMA user_version={version}")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def age_file(path: Path, version: int) -> None:
    """Do that to a file that nobody has open."""
    with closing(apsw.Connection(str(path))) as db:
        age(db, version)


def version_of(path: Path) -> int:
    """The format that a file says it has."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        return int(db.pragma("user_version"))
