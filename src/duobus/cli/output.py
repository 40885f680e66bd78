"""How commands print what they found: table, json, jsonl, yaml or tsv. Data to standard output, talk to standard error.

With ``--query`` what is printed is the result of a JMESPath expression over it, as ``az`` has it: over the record of a
command that tells of one, over the list of all records of the others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import click

from duobus.cli.querying import chosen_query, searched
from duobus.cli.remote import clean
from duobus.cli.yaml_text import json_of, yaml_of

Record = Mapping[str, Any]


class Printer:
    """Prints records as they come; table keeps those of one call, and a query all of them.

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
        self._query = chosen_query()
        self._kept: list[Record] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._query is not None:
            if kind is None:
                self._print_found(searched(self._query, self._kept[0] if self._is_one else self._kept))
        elif self._form == "json" and not self._is_one and (kind is None or self._count):
            click.echo("\n]" if self._count else "[]")

    def print(self, records: Iterable[Record]) -> None:
        """Print records; they are out when this returns, unless there is a query, which wants all of them."""
        if self._query is not None:
            self._kept += records
            return
        if self._form == "table":
            self._print_table(list(records))
        else:
            for record in records:
                self._print_record(record)
        sys.stdout.flush()

    def _print_record(self, record: Record) -> None:
        if self._form == "jsonl":
            click.echo(json_of(record))
        elif self._form == "tsv":
            values = (record.get(name) for name in self._columns) if self._columns else record.values()
            click.echo("\t".join(_cell(value) for value in values))
        elif self._form == "yaml":
            click.echo(yaml_of(record if self._is_one else [record]))
        elif self._is_one:
            click.echo(json_of(record, indent=2))
        else:
            click.echo(("," if self._count else "[") + "\n" + json_of(record, indent=2), nl=False)
        self._count += 1

    def _print_found(self, found: Any) -> None:
        """Print what a query gave: a list of records, one, values, or nothing."""
        if self._form in {"json", "yaml"}:
            click.echo(json_of(found, indent=2) if self._form == "json" else yaml_of(found))
            return
        rows = found if isinstance(found, list) else [] if found is None else [found]
        self._is_one, self._query = not isinstance(found, list), None
        if self._form == "jsonl":
            for row in rows:
                click.echo(json_of(row))
        elif rows and all(isinstance(row, dict) for row in rows):
            self._columns = () if self._is_one else tuple(dict.fromkeys(name for row in rows for name in row))
            self.print(rows)
        else:
            for row in rows:
                # A list in a list is a line of cells.
                click.echo("\t".join(map(_cell, row)) if isinstance(row, list) else _cell(row))

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
    return clean(value if isinstance(value, str) else json_of(value) if isinstance(value, dict | list) else str(value))
