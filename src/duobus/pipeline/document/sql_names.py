"""Names of tables that a statement of SQL reads, found without Spark.

Spark itself checks the statement when it runs. What is found here gives the order of the stages, and tells a misspelt
name before a JVM is started. So the scan has to find the names behind FROM and JOIN, and may leave out what it does
not know: functions, files (``parquet.`...```) and tables of a catalog.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`|[A-Za-z_][A-Za-z0-9_]*|\d[\w.]*|\S",
    re.DOTALL,
)
_WORD: Final = re.compile(r"[A-Za-z_`][^\n]*")
#: Words that may stand behind FROM or a comma without being a table.
_NO_TABLES: Final = frozenset({"select", "lateral", "values", "unnest", "table"})
#: Words that end the list of tables behind FROM.
_ENDS: Final = frozenset(
    {"where", "group", "order", "having", "limit", "union", "intersect", "except", "window", "on", "lateral"}
)


class TableName(NamedTuple):
    """A table that a statement reads.

    Attributes:
        name: As it is written.
        line: Of the statement, from 1.
    """

    name: str
    line: int


def tables_of(sql: str) -> list[TableName]:
    """The tables that a statement reads, in the order in which they stand there, without its own WITH names."""
    tokens = [
        (found[0], sql.count("\n", 0, found.start()) + 1)
        for found in _TOKEN.finditer(sql)
        if not found[0].startswith(("--", "/*", "'", '"'))
    ]
    words = [text.lower() for text, _ in tokens]
    own = _with_names(words)
    found: list[TableName] = []
    # For each open bracket: whether a SELECT stands in it, so that FROM is a clause and not part of a function.
    selects, lists = [False], [False]
    for index, word in enumerate(words):
        if word == "(":
            selects.append(False)
            lists.append(False)
        elif word == ")":
            if len(selects) > 1:
                selects.pop()
                lists.pop()
        elif word == "select":
            selects[-1] = True
        elif word in _ENDS:
            lists[-1] = False
        # "is distinct from" compares two values.
        is_from = word == "from" and selects[-1] and words[index - 1] != "distinct"
        if is_from:
            lists[-1] = True
        if not (is_from or word == "join" or (word == "," and lists[-1])):
            continue
        name = _name_at(tokens, index + 1)
        if name is not None and name.name.lower() not in own:
            found.append(name)
    return list({one.name.lower(): one for one in reversed(found)}.values())[::-1]


def _name_at(tokens: list[tuple[str, int]], index: int) -> TableName | None:
    if index >= len(tokens):
        return None
    text, line = tokens[index]
    following = tokens[index + 1][0] if index + 1 < len(tokens) else ""
    if not _WORD.fullmatch(text) or text.lower() in _NO_TABLES or following in ("(", "."):
        return None
    return TableName(text.strip("`"), line)


def _with_names(words: list[str]) -> frozenset[str]:
    """Names that WITH gives to parts of the statement: each stands before AS and a bracket."""
    found = set()
    for index, word in enumerate(words):
        if word != "as" or index + 1 >= len(words) or words[index + 1] != "(" or index == 0:
            continue
        place = index - 1
        if words[place] == ")":
            # A list of columns stands between the name and AS.
            while place and words[place] != "(":
                place -= 1
            place -= 1
        if place >= 0:
            found.add(words[place].strip("`"))
    return frozenset(found)
