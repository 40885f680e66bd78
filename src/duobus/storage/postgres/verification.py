"""What can be wrong in a PostgreSQL store that reading single ranges does not find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from duobus.storage.checksums import numbers_sum, split_id
from duobus.storage.interface import COUNT_BITS, COUNT_MAX, SOURCE_KEY_MAX
from duobus.storage.postgres import schema as postgres_schema
from duobus.storage.postgres.reader import copy_of, message_of
from duobus.storage.postgres.session import PostgresSession
from duobus.storage.sqlite.shared_bodies import PREFIX_BYTES

_PAGE_ROWS: Final = 1000
_PAGE_BYTES: Final = 16 << 20
_LOWEST_ID: Final = -(1 << 63)
_HIGHEST_ID: Final = (1 << 63) - 1

_BODIES_WITHOUT_COPIES: Final = (
    "SELECT b.id FROM messages b WHERE b.id < 0 AND NOT EXISTS (SELECT 1 FROM messages c WHERE c.body = b.id) LIMIT 100"
)
_SIZE_OF_COPIES: Final = (
    f"SELECT coalesce(sum(octet_length(payload) - {PREFIX_BYTES}), 0)::int8 FROM messages"
    " WHERE body IS NULL AND id BETWEEN $1::int8 AND $2::int8"
)
_SIZE_OF_BODIES: Final = (
    "SELECT coalesce(sum(octet_length(payload)), 0)::int8 FROM messages WHERE id BETWEEN $1::int8 AND $2::int8"
)


def faults(link: PostgresSession, expected_rows: int, homes: Mapping[int, int]) -> list[str]:
    """Return what is wrong, in words; reads everything."""
    quarantine: dict[int, str] = {}
    number, first_id = 0, _LOWEST_ID
    while rows := link.rows(postgres_schema.LOAD_COPIES, first_id, _HIGHEST_ID, _PAGE_ROWS, _PAGE_BYTES):
        number += len(rows)
        for row in rows:
            take = copy_of if row[0] >> COUNT_BITS in homes else message_of
            take(row if take is copy_of else row[: postgres_schema.COLUMNS], quarantine)
        first_id = rows[-1][0] + 1
    problems = []
    for row_id, fault in quarantine.items():
        source_key, count = split_id(row_id)
        problems.append(f"source {source_key}, message {count}: {fault}")
    if number != expected_rows:
        problems.append(f"{expected_rows} messages were stored, {number} were found")
    for row_id, at_ms, ids, check in link.rows("SELECT id, at_ms, ids, row_sum FROM histories ORDER BY id"):
        if numbers_sum((row_id, at_ms), ids) != check:
            source_key, count = split_id(row_id)
            problems.append(f"source {source_key}, duplicate history at {count}: the checksum does not hold")
    problems += [
        f"body {split_id(row_id)[1]} of a topic is referred to by nobody"
        for (row_id,) in link.rows(_BODIES_WITHOUT_COPIES)
    ]
    return problems + _wrong_totals(link, homes)


def _wrong_totals(link: PostgresSession, homes: Mapping[int, int]) -> list[str]:
    noted = dict(link.rows(postgres_schema.READ_TOTALS))
    problems = []
    for home in sorted(set(homes.values()) - {0}):
        shelf = home - SOURCE_KEY_MAX - 1
        keys = [key for key, found in homes.items() if found == home]
        ((size,),) = link.rows(_SIZE_OF_BODIES, shelf << COUNT_BITS, shelf << COUNT_BITS | COUNT_MAX)
        for key in keys:
            ((more,),) = link.rows(_SIZE_OF_COPIES, key << COUNT_BITS, key << COUNT_BITS | COUNT_MAX)
            size += more
        if size != noted.get(home, 0):
            problems.append(f"source {home}: its copies have {size} bytes, noted are {noted.get(home, 0)}")
    return problems
