"""Lists of entities over several servers: which part of a page each of them has, and one feed of their parts.

The catalog says what there is and who has it, so a page costs one request to each server that has something on it,
however long the list. What a server tells of its entities, counts and sizes, only it knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import unescape
from typing import Final, NamedTuple
from urllib.parse import quote

from duobus.gateway.rest.atom.paging import Page, cut, next_url
from duobus.gateway.rest.atom.xml import documents

#: First segment of the addresses of lists.
LISTS: Final = "$resources"
#: An entry of a feed.
ENTRY: Final = re.compile(r"<entry .*?</entry>", re.DOTALL)
_TITLE: Final = re.compile(r'<title type="text">(.*?)</title>', re.DOTALL)
_PAGING: Final = ("$skip", "$top")


class Listed(NamedTuple):
    """An entity of a list, and the address of the server that has it: empty while it moves.

    ``is_everywhere``: every server has it in its own list.
    """

    path: str
    address: str
    is_everywhere: bool = False


class PageSegment(NamedTuple):
    """What one server has of a page: from which one on in its own list, and how many."""

    address: str
    skip: int
    top: int


class ListPage:
    """One page of a list.

    Attributes:
        paths: What is on it, in order.
        parts: Who has what of it.
        is_followed: Another page follows.
    """

    def __init__(self, rows: Iterable[Listed], page: Page) -> None:
        rows = sorted(rows, key=_path_of)
        found, self.is_followed = cut(rows, page, _path_of)
        self._page = page
        self.paths = [row.path for row in found]
        addresses = dict.fromkeys(row.address for row in found)
        self.parts = [_part_of(rows, found, page, address) for address in addresses]

    @property
    def is_moving(self) -> bool:
        """Whether something on it has no server at the moment."""
        return any(not part.address for part in self.parts)

    def assemble(
        self, title: str, url: str, texts: Sequence[str], now_ms: int, completed: Mapping[str, str] | None = None
    ) -> str | None:
        """The feed, of what the servers told of their parts; None when one of the entities is missing.

        ``completed``: lower-case path to the entry of an entity of which no server knows all numbers.
        """
        entries = {**entries_of(texts), **(completed or {})}
        if any(path.lower() not in entries for path in self.paths):
            return None
        return documents.feed(
            title,
            [entries[path.lower()] for path in self.paths],
            url=f"{url}?$skip={self._page.skip}&$top={self._page.top}",
            following=next_url(url, self._page) if self.is_followed else None,
            updated_at_ms=now_ms,
        )


def entries_of(texts: Iterable[str]) -> dict[str, str]:
    """Lower-case path to entry, of what servers told."""
    return {title_of(entry): entry for text in texts for entry in ENTRY.findall(text)}


def title_of(entry: str) -> str:
    """The name of an entry's entity, in lower case."""
    found = _TITLE.search(entry)
    return unescape(found[1]).lower() if found else ""


def query_of(asked: Mapping[str, str], part: PageSegment) -> str:
    """What a server is asked for its part: everything else as the client has asked."""
    rest = "".join(f"&{quote(name)}={quote(value)}" for name, value in asked.items() if name not in _PAGING)
    return f"$skip={part.skip}&$top={part.top}{rest}"


def _path_of(row: Listed) -> str:
    return row.path


def _part_of(rows: Sequence[Listed], found: Sequence[Listed], page: Page, address: str) -> PageSegment:
    own, _ = cut(
        (row for row in rows if row.address == address or row.is_everywhere), Page(0, len(rows), page.prefix), _path_of
    )
    wanted = [row for row in found if row.address == address]
    first = own.index(wanted[0])
    return PageSegment(address, first, own.index(wanted[-1]) - first + 1)
