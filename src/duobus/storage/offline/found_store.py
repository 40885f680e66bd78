"""What a store was found to hold, offline, that tells of its catalog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from duobus.storage.catalog_identity import Belonging
from duobus.storage.catalog_records import Kept
from duobus.storage.interface import FragmentRow, SourceRow, StoreContents

if TYPE_CHECKING:
    pass


class FoundStore(msgspec.Struct, frozen=True):
    """What a store holds that tells of its catalog."""

    store_id: int
    path: str
    belonging: Belonging
    fragments: list[FragmentRow]
    sources: list[SourceRow]
    records: Mapping[str, Kept]

    @property
    def places(self) -> set[tuple[int, int]]:
        """Entity id and number of each fragment."""
        return {(row.entity_id, row.fragment_no) for row in self.fragments}

    @property
    def contents(self) -> StoreContents:
        """As if it had been opened."""
        return StoreContents(0, 0, 0, self.fragments, self.sources, [], None, self.belonging)
