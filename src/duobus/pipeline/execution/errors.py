"""What a stage tells when it fails: one sentence, with the place in the document and the name that was meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Final

from duobus.pipeline.document.model import View
from duobus.spark.jobs.job import cause_of

_LINE: Final = re.compile(r"\(line (\d+), pos \d+\)")


class StageError(RuntimeError):
    """A stage cannot do its work; the text says where and why."""


def place_of_view(view: View, line: int | None = None) -> str:
    """Where a view is declared, as an error names it."""
    where = f"line {line} of " if line is not None else ""
    return f"view {view.name!r} ({where}{view.file or view.function or 'its statement'})"


def sentence_of(error: Exception, view: View) -> str:
    """What is wrong with a view, out of an error of Spark's analysis."""
    parameters: Mapping[str, str] = {}
    condition, text = "", str(error)
    with suppress(Exception):
        condition = str(error.getCondition())  # type: ignore[attr-defined]
        parameters = error.getMessageParameters() or {}  # type: ignore[attr-defined]
    line = _line_of(error, view.sql or "", text)
    return f"In the {place_of_view(view, line)}: {_said(condition, parameters, error)}"


def _said(condition: str, parameters: Mapping[str, str], error: Exception) -> str:
    name = str(parameters.get("objectName", "")).replace("`", "")
    if condition.startswith(("UNRESOLVED_COLUMN", "UNRESOLVED_FIELD")) and name:
        return f"there is no column {name!r}.{_proposed(parameters.get('proposal', ''), name)}"
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        return f"there is no table {str(parameters.get('relationName', '')).replace('`', '')!r}."
    if condition == "UNRESOLVED_ROUTINE":
        return f"there is no function {str(parameters.get('routineName', '')).replace('`', '')!r}."
    if condition == "PARSE_SYNTAX_ERROR":
        return f"the statement cannot be read at {parameters.get('error', 'its end')}{parameters.get('hint', '')}."
    return cause_of(error)


def _proposed(proposal: str, name: str) -> str:
    """The nearest of the columns that Spark proposes, which it writes with their tables."""
    columns = [one.strip().replace("`", "").rpartition(".")[2] for one in proposal.split(",") if one.strip()]
    found = get_close_matches(name.rpartition(".")[2], columns, 1, 0.5) or columns[:1]
    return f" Did you mean {found[0]!r}?" if found else ""


def _line_of(error: Exception, sql: str, text: str) -> int | None:
    if (found := _LINE.search(text)) is not None:
        return int(found[1])
    with suppress(Exception):
        start = int(error.getQueryContext()[0].startIndex())  # type: ignore[attr-defined]
        return sql.count("\n", 0, start) + 1
    return None


def schema_faults(
    given: Iterable[tuple[str, str]], wanted: Iterable[tuple[str, str]], *, who: str, table: str
) -> list[str]:
    """What is wrong with the columns of rows for a table, a sentence each.

    Args:
        given: Name and type of each column of the rows.
        wanted: The same of the table.
        who: The stage, for the sentences.
        table: The table, for the sentences.
    """
    have, need = dict(given), dict(wanted)
    faults = []
    for name, kind in have.items():
        if name not in need:
            spelt = {one.lower(): one for one in need if one not in have}
            near = get_close_matches(name.lower(), spelt, 1, 0.5)
            hint = f" Did you mean {spelt[near[0]]!r}?" if near else f" The table has {', '.join(need)}."
            faults.append(f"The stage {who!r} gives a column {name!r}, which the table {table!r} does not have.{hint}")
        elif need[name] != kind:
            faults.append(
                f"The stage {who!r} gives the column {name!r} as {kind}, and the table {table!r} has it as "
                f"{need[name]}: cast it."
            )
    if not faults:
        faults = [
            f"The stage {who!r} gives no column {name!r}, which the table {table!r} has."
            for name in need
            if name not in have
        ]
    return faults


def told(error: BaseException) -> str:
    """An error of a stage as a sentence, without the stack of the JVM."""
    from duobus.spark.connection import masked
    from duobus.spark.jobs.job import spark_errors

    text: Any = cause_of(error) if isinstance(error, spark_errors()) else str(error) or type(error).__name__
    return masked(str(text))
