"""Values of a document taken out of what TOML has, each with a fault where it is missing, wrong or unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

from duobus.pipeline.document.model import Fault
from duobus.pipeline.document.toml_lines import TomlLines

#: Names in SQL, and names of stages and sinks, which become names of folders and parts of message ids.
_SQL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,23}")
_KINDS: Final[Mapping[type, str]] = {str: "a text", int: "a whole number", dict: "a table", list: "a list"}
_CUTOFF: Final = 0.5


def near(name: str, known: Iterable[str]) -> str:
    """The sentence that suggests the nearest of the known names, with a space before it; empty where none is near."""
    spelt = {one.lower(): one for one in known}
    found = get_close_matches(name.lower(), spelt, 1, _CUTOFF)
    return f" Did you mean {spelt[found[0]]!r}?" if found else ""


class Faults:
    """Faults of one document, in the order in which they are found.

    Args:
        lines: The lines of the document.
    """

    def __init__(self, lines: TomlLines) -> None:
        self._lines = lines
        self.found: list[Fault] = []

    def add(self, place: str, key: str | None, text: str) -> None:
        """Note a fault at a key of a table, or at the table."""
        self.found.append(Fault(place, key, self._lines.line_of(place, key), text))


class Section:
    """One table of the document, from which each key is taken once.

    Args:
        place: Its name, as ``stages.report``.
        values: What TOML has for it.
        faults: Where faults go.
    """

    def __init__(self, place: str, values: Mapping[str, Any], faults: Faults) -> None:
        self.place = place
        self.values = values
        self._faults = faults

    def fault(self, key: str | None, text: str) -> None:
        """Note a fault."""
        self._faults.add(self.place, key, text)

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self.values

    def known(self, names: Iterable[str], *, hint: str = "") -> None:
        """Note a fault for each key that is none of some names."""
        known = tuple(names)
        for key in self.values:
            if key not in known:
                self.fault(key, f"There is no key {key!r} here.{near(key, known) or hint}")

    def text(self, key: str) -> str | None:
        """A text that is not empty; None where it is missing or wrong, which is noted."""
        value = self._of(key, str)
        if value == "":
            self.fault(key, f"{key!r} is empty.")
            return None
        return value if value is None else str(value)

    def number(self, key: str, default: int, least: int, most: int) -> int:
        """A whole number between two bounds."""
        value = self._of(key, int)
        if value is None:
            return default
        if not least <= value <= most:
            self.fault(key, f"{key!r} is {value}; it has to be {least} to {most}.")
            return default
        return int(value)

    def names(self, key: str) -> tuple[str, ...]:
        """One name, or a list of them."""
        value = self.values.get(key)
        if value is None:
            return ()
        names = value if isinstance(value, list) else [value]
        if not names or not all(isinstance(name, str) and name for name in names):
            self.fault(key, f"{key!r} has to be a name or a list of names, not {value!r}.")
            return ()
        return tuple(names)

    def table(self, key: str) -> Mapping[str, Any]:
        """A table; empty where it is missing or wrong."""
        value = self._of(key, dict)
        return {} if value is None else value

    def sections(self, key: str, *, is_sql: bool) -> dict[str, Section]:
        """The tables in a table, by name: ``[stages.report]``."""
        found = {}
        for name, values in self.table(key).items():
            place = f"{key}.{name}"
            form, wanted = (
                (_SQL_NAME, "letters, digits and underscores, with a letter first, 64 at most")
                if is_sql
                else (_NAME, "letters, digits, dashes and underscores, 24 at most")
            )
            if not isinstance(values, dict):
                self._faults.add(key, name, f"{name!r} has to be a table: [{place}].")
            elif not form.fullmatch(name):
                self._faults.add(place, None, f"The name {name!r} has to be of {wanted}.")
            else:
                found[name] = Section(place, values, self._faults)
        return found

    def _of(self, key: str, kind: type) -> Any:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, kind) or isinstance(value, bool):
            self.fault(key, f"{key!r} has to be {_KINDS[kind]}, not {value!r}.")
            return None
        return value
