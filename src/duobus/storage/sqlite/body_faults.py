"""What can be wrong between the copies of a topic's messages and the bodies that they share (``bodies.py``)."""

from __future__ import annotations

from collections.abc import Mapping

import apsw

from duobus.storage.checksums import split_id
from duobus.storage.interface import COUNT_BITS, COUNT_MAX
from duobus.storage.sqlite import schema
from duobus.storage.sqlite.shared_bodies import APART, PREFIX, PREFIX_BYTES, bounds_of, holds, shelf_of


def faults(db: apsw.Connection, homes: Mapping[int, int]) -> list[str]:
    """Return what is wrong between copies and bodies, in words; reads all of them."""
    problems: list[str] = []
    found: dict[int, int] = {}
    sums: dict[int, int] = {}
    for source_key, home in homes.items():
        for row_id, whole, size in db.execute(
            "SELECT id, iif(octet_length(payload) = 8, CAST(payload AS BLOB), NULL), octet_length(payload)"
            " FROM messages WHERE id BETWEEN ? AND ?",
            (source_key << COUNT_BITS, source_key << COUNT_BITS | COUNT_MAX),
        ):
            (prefix,) = PREFIX.unpack(whole) if whole is not None else (0,)
            if prefix & APART:
                body_id = shelf_of(home) << COUNT_BITS | prefix & COUNT_MAX
                found[body_id] = found.get(body_id, 0) + 1
            elif row_id is not None:
                sums[home] = sums.get(home, 0) + size - PREFIX_BYTES
    for home in sorted(set(homes.values()) - {0}):
        problems += _share_faults(db, home, found, sums.get(home, 0))
    problems += [f"body {split_id(body_id)[1]} of a topic has copies and is missing" for body_id in found]
    return problems


def _share_faults(db: apsw.Connection, home: int, found: dict[int, int], copies: int) -> list[str]:
    """Compare the references to a fragment's bodies with the copies that there are; takes them out of ``found``."""
    problems: list[str] = []
    bounds = bounds_of(home)
    bodies = dict(db.execute("SELECT id, octet_length(payload) FROM messages WHERE id BETWEEN ? AND ?", bounds))
    total = copies
    kept_total = 0
    for row in list(db.execute(schema.READ_SHARES, bounds)):
        body_id, refs, size, _ = row
        count = split_id(body_id)[1]
        if not holds(row):
            problems.append(f"source {home}: the references to body {count} are damaged")
        elif count == 0:
            kept_total = size
            continue
        elif bodies.get(body_id) != size or found.get(body_id) != refs:
            problems.append(f"source {home}: body {count} has {found.get(body_id, 0)} copies of {refs}, or is damaged")
        total += size
        bodies.pop(body_id, None)
        found.pop(body_id, None)
    problems += [f"source {home}: body {split_id(body_id)[1]} is referred to by nobody" for body_id in bodies]
    if not problems and total != kept_total:
        problems.append(f"source {home}: its copies have {total} bytes, noted are {kept_total}")
    return problems
