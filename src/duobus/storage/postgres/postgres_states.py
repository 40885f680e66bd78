"""Which states the exceptional rows of each source have, so that nobody asks the server for what is not there.

A recovery looks for a dozen states in every source, and most sources have none of them: over a network that would be a
round trip each. It is read when the store is opened, in one query, and grows with what is written; a state whose last
row has gone stays until the store is opened again, and costs a query that finds nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from duobus.storage.interface import COUNT_BITS, COUNT_MAX, Put

#: Each state that the index has, found by a step from one to the next; then, for each source, whether it has a row.
READ_STATES: Final = (
    "WITH RECURSIVE t(state) AS ((SELECT state FROM messages WHERE state <> 0 ORDER BY state LIMIT 1) UNION ALL"
    " SELECT (SELECT m.state FROM messages m WHERE m.state <> 0 AND m.state > t.state ORDER BY m.state LIMIT 1)"
    " FROM t WHERE t.state IS NOT NULL)"
    " SELECT s.source_key, t.state FROM t, sources s WHERE t.state IS NOT NULL AND EXISTS ("
    "SELECT 1 FROM messages m WHERE m.state <> 0 AND m.state = t.state"
    f" AND m.id BETWEEN s.source_key << {COUNT_BITS} AND (s.source_key << {COUNT_BITS} | {COUNT_MAX}))"
)


class States:
    """The states other than 0 that rows of a source may have.

    Args:
        found: (source key, state) of rows that exist.
    """

    __slots__ = ("_known",)

    def __init__(self, found: Iterable[tuple[int, int]] = ()) -> None:
        self._known = set(found)

    def may_have(self, source_key: int, state: int) -> bool:
        """Whether a source may have rows of a state."""
        return (source_key, state) in self._known

    def note(self, puts: Sequence[Put], changes: Sequence[tuple[int, int, int, int, bytes | None]]) -> None:
        """Take in what a commit is about to write."""
        for put in puts:
            if put.specials:
                self._known.update((put.source_key, rare[0]) for rare in put.specials.values() if rare[0])
        self._known.update((row[0], row[2]) for row in changes if row[2])

    def forget(self, source_keys: Collection[int]) -> None:
        """Take in that sources are gone; their keys are never used again."""
        self._known = {known for known in self._known if known[0] not in source_keys}
