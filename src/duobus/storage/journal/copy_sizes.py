"""What the copies of topics' messages take up after all commits, those included that SQLite does not have yet.

A commit tells its topics how many bytes their copies have, each body that several copies share counted once. SQLite's
tables would know only when the commit has been brought over. So this keeps the copies and bodies that the commits of
the journal have put or touched; of a copy that none of them has, SQLite is asked. What is kept here is true until
SQLite has all commits that touched it, and is forgotten then.

One thread notes commits; another one says how far SQLite has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import NamedTuple, Protocol

from duobus.storage.interface import CommitBatch, Put
from duobus.storage.sqlite.copy_lookup import CopyFound

#: Source key and count.
_Copy = tuple[int, int]
#: Key of source 0 of the fragment, and count there.
_Body = tuple[int, int]
_Span = tuple[int, int, int]


class StoredCopies(Protocol):
    """SQLite's side."""

    def copies_in(self, spans: list[_Span]) -> Iterable[CopyFound]:
        """See ``copy_lookup.copies_in``."""

    def bodies_of(self, bodies: list[_Body]) -> Mapping[_Body, tuple[int, int]]:
        """See ``copy_lookup.bodies_of``."""


class _Shared:
    """A body that copies share: how many, its bytes, and the last commit that touched it."""

    __slots__ = ("commit_no", "refs", "size")

    def __init__(self, refs: int, size: int, commit_no: int) -> None:
        self.refs = refs
        self.size = size
        self.commit_no = commit_no


class _Noted(NamedTuple):
    """What a commit has touched."""

    commit_no: int
    new: list[_Copy]
    gone: list[_Copy]
    bodies: list[_Body]


class CopySizes:
    """The copies of one store.

    Args:
        homes: See ``shared_bodies.topic_keys_of``.
        totals: ``StoreContents.shared``, after all commits so far, all of which SQLite has.
        stored: Asked about copies that only SQLite knows.

    Attributes:
        totals: The same, after all commits.
        brought_no: The last commit that SQLite has.
    """

    __slots__ = ("_added", "_bodies", "_copies", "_gone", "_homes", "_noted", "_stored", "brought_no", "totals")

    def __init__(self, homes: Mapping[int, int], totals: Mapping[int, int], stored: StoredCopies) -> None:
        self.totals = dict(totals)
        self.brought_no = 0
        # Shared bodies that the commit adds which is being counted, less those that go with it.
        self._added = 0
        self._homes = homes
        self._stored = stored
        #: New copies: bytes of its own body, or the body that it shares.
        self._copies: dict[_Copy, int | _Body] = {}
        #: Copies that were removed, which SQLite may have still.
        self._gone: set[_Copy] = set()
        self._bodies: dict[_Body, _Shared] = {}
        self._noted: deque[_Noted] = deque()

    def concerns(self, batch: CommitBatch) -> bool:
        """Whether a commit puts or removes copies."""
        homes = self._homes
        return any(put.source_key in homes for put in batch.puts) or any(row[0] in homes for row in batch.removed)

    def note(self, batch: CommitBatch) -> int:
        """Count a commit that is about to be written, and tell in it what it changes.

        Returns:
            How many shared bodies it adds, less those that go with it.
        """
        self._forget_brought()
        noted = _Noted(batch.commit_no, [], [], [])
        self._added = 0
        changes: dict[int, int] = {}
        for put in batch.puts:
            home = self._homes.get(put.source_key)
            if home:
                changes[home] = changes.get(home, 0) + self._put(put, home, noted)
        unknown: list[_Span] = []
        for source_key, first, last in batch.removed:
            home = self._homes.get(source_key)
            if home:
                unknown += self._remove(source_key, first, last, home, changes, noted)
        if unknown:
            self._remove_stored(unknown, changes, noted)
        self._noted.append(noted)
        for home, change in changes.items():
            if change:
                batch.shared[home] = self.totals[home] = max(0, self.totals.get(home, 0) + change)
        return self._added

    def _put(self, put: Put, home: int, noted: _Noted) -> int:
        """Note new copies; returns the bytes that they add."""
        size = 0
        copies, bodies = self._copies, self._bodies
        for index, (payload, origin) in enumerate(zip(put.payloads, put.origins or repeat(0), strict=False)):
            copy = (put.source_key, put.first_count + index)
            noted.new.append(copy)
            if origin >= 0:
                copies[copy] = len(payload)
                size += len(payload)
                continue
            key = (home, -origin)
            body = bodies.get(key)
            if body is None:
                body = bodies[key] = _Shared(0, len(payload), noted.commit_no)
                noted.bodies.append(key)
                self._added += 1
                size += len(payload)
            body.refs += 1
            copies[copy] = key
        return size

    def _remove(
        self, source_key: int, first: int, last: int, home: int, changes: dict[int, int], noted: _Noted
    ) -> list[_Span]:
        """Note removals of copies that are kept here; returns the spans that SQLite has to tell of."""
        copies, gone = self._copies, self._gone
        if last - first > len(copies) + len(gone):
            # The span is wider than all that is kept: SQLite tells of the rest, and what is kept is known again there.
            for copy in [found for found in copies if found[0] == source_key and first <= found[1] <= last]:
                self._take(copy, copies[copy], home, changes, noted)
            return [(source_key, first, last)]
        unknown: list[_Span] = []
        for count in range(first, last + 1):
            copy = (source_key, count)
            found = copies.get(copy)
            if found is not None:
                self._take(copy, found, home, changes, noted)
            elif copy not in gone:
                if unknown and unknown[-1][2] == count - 1:
                    unknown[-1] = (source_key, unknown[-1][1], count)
                else:
                    unknown.append((source_key, count, count))
        return unknown

    def _take(self, copy: _Copy, found: int | _Body, home: int, changes: dict[int, int], noted: _Noted) -> None:
        """Remove a copy that is kept here."""
        del self._copies[copy]
        self._gone.add(copy)
        noted.gone.append(copy)
        if isinstance(found, int):
            changes[home] = changes.get(home, 0) - found
        else:
            self._release(found, changes, noted)

    def _release(self, key: _Body, changes: dict[int, int], noted: _Noted) -> None:
        """Take one copy away from a body that is kept here."""
        body = self._bodies[key]
        body.refs -= 1
        if body.commit_no != noted.commit_no:
            body.commit_no = noted.commit_no
            noted.bodies.append(key)
        if body.refs <= 0:
            self._added -= 1
            changes[key[0]] = changes.get(key[0], 0) - body.size

    def _remove_stored(self, spans: list[_Span], changes: dict[int, int], noted: _Noted) -> None:
        """Remove copies that only SQLite knows."""
        found = []
        for one in self._stored.copies_in(spans):
            copy = (one.source_key, one.message_count)
            if copy not in self._gone:
                self._gone.add(copy)
                noted.gone.append(copy)
                found.append(one)
        homes = self._homes
        shared = {(homes[one.source_key], one.origin) for one in found if one.origin}
        for key, (refs, size) in self._stored.bodies_of([key for key in shared if key not in self._bodies]).items():
            self._bodies[key] = _Shared(refs, size, 0)
        for one in found:
            key = (homes[one.source_key], one.origin)
            if not one.origin:
                changes[key[0]] = changes.get(key[0], 0) - one.size
            elif key in self._bodies:
                self._release(key, changes, noted)

    def _forget_brought(self) -> None:
        """Forget what SQLite knows as well."""
        brought_no = self.brought_no
        while self._noted and self._noted[0].commit_no <= brought_no:
            noted = self._noted.popleft()
            for copy in noted.new:
                self._copies.pop(copy, None)
            self._gone.difference_update(noted.gone)
            for key in noted.bodies:
                body = self._bodies.get(key)
                if body is not None and body.commit_no <= brought_no:
                    del self._bodies[key]
