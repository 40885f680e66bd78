"""On which line of a TOML text a table or key stands, which the parser of the library does not tell."""

from __future__ import annotations

import re
import tomllib
from typing import Final

_HEADER: Final = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY: Final = re.compile(
    r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*="
)
_QUOTES: Final = ('"""', "'''")
_POSITION: Final = re.compile(r"\(at line (\d+), column \d+\)")


class TomlLines:
    """The lines of a text.

    Args:
        text: TOML.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[str, int] = {}
        table, quote = "", None
        for number, line in enumerate(text.splitlines(), 1):
            if quote is not None:
                # Within a text of several lines nothing is a key.
                if quote in line:
                    quote = None
                continue
            if (header := _HEADER.match(line)) is not None:
                table = _plain(header[1])
                self._note_all(table, number)
            elif (key := _KEY.match(line)) is not None:
                path = f"{table}.{_plain(key[1])}".strip(".")
                self._note_all(path, number)
                rest = line[key.end() :]
                quote = next((one for one in _QUOTES if rest.count(one) == 1), None)

    def _note_all(self, path: str, number: int) -> None:
        """Note a path, and the tables in it, of which this may be the first mention."""
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            self._lines.setdefault(".".join(parts[:end]), number)

    def line_of(self, place: str, key: str | None = None) -> int | None:
        """The line of a key, or else of its table; None where neither stands in the text."""
        for path in (f"{place}.{key}".strip(".") if key else place, place):
            if path in self._lines:
                return self._lines[path]
        return None


def line_of_error(error: tomllib.TOMLDecodeError) -> tuple[int | None, str]:
    """The line that an error of the parser names, and the rest of its text."""
    text = str(error)
    found = _POSITION.search(text)
    return (int(found[1]) if found else None), _POSITION.sub("", text).strip()


def _plain(path: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in path.split("."))
