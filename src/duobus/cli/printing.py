"""How commands print what they found: table, json, jsonl or tsv. Data to standard output, talk to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import click

from duobus.cli.remote import clean

Record = Mapping[str, Any]


class Printer:
    """Prints records as they come; all but table keep none.

    Args:
        form: One of ``OUTPUTS``; None for what suits standard output.
        columns: What table and tsv show of each record; all of it if empty, in a table one line each.
        is_one: Whether there is one record, which json then writes without a list around it.
    """

    def __init__(self, form: str | None, columns: Sequence[str] = (), *, is_one: bool = False) -> None:
        self._form = form or ("table" if sys.stdout.isatty() else "jsonl")
        self._columns = columns
        self._is_one = is_one
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._form == "json" and not self._is_one and (kind is None or self._count):
            click.echo("\n]" if self._count else "[]")

    def print(self, records: Iterable[Record]) -> None:
        """Print records; they are out when this returns."""
        if self._form == "table":
            self._print_table(list(records))
        else:
            for record in records:
                self._print_record(record)
        sys.stdout.flush()

    def _print_record(self, record: Record) -> None:
        if self._form == "jsonl":
            click.echo(json.dumps(record))
        elif self._form == "tsv":
            values = (record.get(name) for name in self._columns) if self._columns else record.values()
            click.echo("\t".join(_cell(value) for value in values))
        elif self._is_one:
            click.echo(json.dumps(record, indent=2))
        else:
            click.echo(("," if self._count else "[") + "\n" + json.dumps(record, indent=2), nl=False)
        self._count += 1

    def _print_table(self, records: Sequence[Record]) -> None:
        if not records:
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        rows: Iterable[Iterable[Any]]
        if self._columns:
            heads, rows = self._columns, ([record.get(name) for name in self._columns] for record in records)
        else:
            heads, rows = ("property", "value"), (row for record in records for row in record.items())
        for head in heads:
            table.add_column(head, overflow="fold")
        for row in rows:
            # As Text, so that nothing in it is taken for markup.
            table.add_row(*(Text(_cell(value)) for value in row))
        Console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return clean(
        value if isinstance(value, str) else json.dumps(value) if isinstance(value, dict | list) else str(value)
    )
