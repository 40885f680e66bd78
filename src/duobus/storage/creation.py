"""What a store has to write so that fragments exist: those that are missing, and those of their sources that are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from duobus.errors import StoreFailed
from duobus.storage.interface import SOURCE_KEY_MAX, FragmentRow, SourceRow
from duobus.storage.memory import copy_of_fragment, copy_of_source, demand_first

#: Entity id, fragment number, and numbers of sources.
Asked = tuple[int, int, Sequence[int]]
_FIRST_EPOCH: Final = 1


class Creation:
    """Fragments to be made in one transaction, and what the caller is told of all that were asked for.

    Args:
        fragments: The store's fragments, by key.
        sources: Its sources, by key.
        next_fragment_key, next_source_key: The first keys that were never given out.
        asked: What is to exist.

    Attributes:
        fragments: New rows.
        sources: New rows.
        changed: Every source of the fragments that get any, by key, those included.
        next_fragment_key, next_source_key: What the keys become.

    Raises:
        ValueError: Other sources are to be made, and source 0 is neither there nor among them.
    """

    __slots__ = ("_answers", "changed", "fragments", "next_fragment_key", "next_source_key", "sources")

    def __init__(
        self,
        fragments: Mapping[int, FragmentRow],
        sources: Mapping[int, SourceRow],
        next_fragment_key: int,
        next_source_key: int,
        asked: Sequence[Asked],
    ) -> None:
        self.fragments: list[FragmentRow] = []
        self.sources: list[SourceRow] = []
        self.changed: dict[int, SourceRow] = {}
        self.next_fragment_key = next_fragment_key
        self.next_source_key = next_source_key
        self._answers: list[tuple[FragmentRow, list[SourceRow]]] = []
        wanted = {(entity_id, number) for entity_id, number, _ in asked}
        found = {place: row for row in fragments.values() if (place := (row.entity_id, row.fragment_no)) in wanted}
        known: dict[int, dict[int, SourceRow]] = {row.fragment_key: {} for row in found.values()}
        if known:
            for source in sources.values():
                if source.fragment_key in known:
                    known[source.fragment_key][source.source_no] = source
        for entity_id, number, source_nos in asked:
            fragment = found.get((entity_id, number))
            if fragment is None:
                fragment = FragmentRow(self.next_fragment_key, entity_id, number, _FIRST_EPOCH)
                self.next_fragment_key += 1
                self.fragments.append(fragment)
                found[entity_id, number] = fragment
                known[fragment.fragment_key] = {}
            self._add_sources(fragment, known[fragment.fragment_key], source_nos)

    def _add_sources(self, fragment: FragmentRow, known: dict[int, SourceRow], source_nos: Sequence[int]) -> None:
        missing = [number for number in dict.fromkeys(source_nos) if number not in known]
        demand_first(known, missing)
        for number in missing:
            source = SourceRow(self.next_source_key, fragment.fragment_key, number)
            self.next_source_key += 1
            self.sources.append(source)
            known[number] = source
        if missing:
            self.changed |= {row.source_key: row for row in known.values()}
        self._answers.append((fragment, [known[number] for number in source_nos]))

    @property
    def is_needed(self) -> bool:
        """Whether anything is missing."""
        return bool(self.fragments or self.sources)

    def demand_keys(self, where: str) -> None:
        """Raise StoreFailed when there are not as many keys left."""
        if self.next_source_key - 1 > SOURCE_KEY_MAX:
            raise StoreFailed(f"{where}: all {SOURCE_KEY_MAX} source keys are used; add another store")

    def answers(self) -> list[tuple[FragmentRow, list[SourceRow]]]:
        """Return rows of the caller's own, in the order in which they were asked for."""
        return [(copy_of_fragment(row), [copy_of_source(one) for one in rows]) for row, rows in self._answers]
