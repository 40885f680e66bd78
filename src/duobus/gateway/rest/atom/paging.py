"""Pages of lists, and the one kind of ``$filter`` that there is (Azure: Service Bus REST API)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote

from duobus.errors import ArgumentInvalid

#: Entries of a page, unless a client asks for fewer.
PAGE_MAX: Final = 100
#: Largest ``$skip``: far beyond any number of entities.
SKIP_MAX: Final = 1_000_000_000

_STARTS_WITH: Final = re.compile(
    r"\s*startswith\s*\(\s*(?:path|name|title)\s*,\s*'((?:[^']|'')*)'\s*\)\s*(?:eq\s+true\s*)?", re.IGNORECASE
)

_Item = TypeVar("_Item")


class Page(NamedTuple):
    """Which part of a list is asked for; ``prefix`` in lower case."""

    skip: int
    top: int
    prefix: str = ""


def page_of(query: Mapping[str, str]) -> Page:
    """Return the page that a query asks for.

    Raises:
        ArgumentInvalid: A number is none or negative, or the filter is another one.
    """
    skip, top = _number(query, "$skip", 0), _number(query, "$top", PAGE_MAX)
    prefix = ""
    condition = query.get("$filter", "").strip()
    if condition:
        match = _STARTS_WITH.fullmatch(condition)
        if match is None:
            raise ArgumentInvalid(
                f"The $filter {condition[:128]!r} is none of this list. Use startswith(path, 'prefix') eq true."
            )
        prefix = match[1].replace("''", "'").lower()
    return Page(min(skip, SKIP_MAX), min(top, PAGE_MAX), prefix)


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise ArgumentInvalid(f"{name} is {text[:32]!r}; it must be a whole number of 0 and up.")
    return int(text)


def cut(items: Iterable[_Item], page: Page, name_of: Callable[[_Item], str]) -> tuple[list[_Item], bool]:
    """Return the items of a page, by name, and whether another page follows."""
    wanted = [item for item in items if name_of(item).lower().startswith(page.prefix)]
    wanted.sort(key=lambda item: name_of(item).lower())
    end = page.skip + page.top
    return wanted[page.skip : end], page.top > 0 and len(wanted) > end


def next_url(url: str, page: Page) -> str:
    """Return the address of the page that follows: absolute, with both numbers (rule 0.7)."""
    filtering = f"&$filter={quote(_filter_of(page.prefix))}" if page.prefix else ""
    return f"{url}?$skip={page.skip + page.top}&$top={page.top}{filtering}"


def _filter_of(prefix: str) -> str:
    doubled = prefix.replace("'", "''")
    return f"startswith(path, '{doubled}') eq true"
