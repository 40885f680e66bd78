"""Which states of which sources have rows, found in as many steps as there are such pairs.

A recovery looks for each state in each source. For ten thousand entities that are a hundred thousand questions, nearly
all of them about nothing; the index of exceptional rows answers them by leaps from one source to the next.
"""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from duobus.storage.interface import COUNT_BITS
from duobus.storage.sqlite import schema


def states_of_sources(db: apsw.Connection, states: Iterable[int]) -> set[tuple[int, int]]:
    """Return (source key, state) of those that have a row, sound or not.

    A damaged row may be found where it does not belong; whoever reads it there verifies it.
    """
    found: set[tuple[int, int]] = set()
    for state in states:
        first_id = schema.LOWEST_ID
        while (row := db.execute(schema.NEXT_OF_STATE, (state, first_id)).fetchone()) is not None:
            source_key = row[0] >> COUNT_BITS
            found.add((source_key, state))
            first_id = (source_key + 1) << COUNT_BITS
            if first_id > schema.HIGHEST_ID:
                break
    return found
