"""How commands print what they found: table, json, jsonl, yaml or tsv. Data to standard output, talk to standard error.

With ``--query`` what is printed is the result of a JMESPath expression over it, as ``az`` has it: over the record of a
command that tells of one, over the list of all records of the others.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import click
import yaml

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.text import Text


# JSON and YAML as commands print them: UTF-8, and without what moves the cursor or recolours a terminal.

#: Signs that a terminal may act on instead of showing them; those below U+0020 are escaped by both writers.
_UNPRINTABLE: Final = re.compile("[\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
#: Words that other readers of YAML take for true and false.
_BOOLEANS: Final = ("y", "Y", "n", "N")


def json_of(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, in which letters of all languages stand for themselves."""
    return _escaped(json.dumps(value, indent=indent, ensure_ascii=False))


def yaml_of(value: Any) -> str:
    """Return a value as YAML in the block form, without a line end behind it."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, allow_unicode=True, sort_keys=False, default_flow_style=False, width=1 << 30
    )
    return _escaped(text.removesuffix("...\n").removesuffix("\n"))


def _escaped(text: str) -> str:
    return _UNPRINTABLE.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


class _Dumper(yaml.SafeDumper):
    """Indents lists below their name, and quotes what ``_escaped`` may have to escape."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = '"' if _UNPRINTABLE.search(value) or "\n" in value else "'" if value in _BOOLEANS else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)


_Dumper.add_representer(str, _text)


# ``--query``: a JMESPath expression over what a command prints, as in ``az``.
#
# The option leaves what it was given in the context of the command, where the printer finds it: no command hands it on.

_KEY: Final = "duobus.cli.query"


def _read(context: click.Context, _option: click.Parameter, text: str | None) -> None:
    if text is None or context.resilient_parsing:
        return
    import jmespath
    from jmespath.exceptions import JMESPathError

    try:
        context.meta[_KEY] = jmespath.compile(text)
    except JMESPathError as error:
        raise click.BadParameter(f"{text!r} is no JMESPath expression: {str(error).splitlines()[0]}") from None


query_option: Final = click.option(
    "--query",
    metavar="JMESPATH",
    expose_value=False,
    callback=_read,
    help="Print what this expression finds in it, as in [].name or [?status=='Active'].",
)


def chosen_query() -> Any:
    """The compiled expression of the command that runs, or None."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_KEY)


def searched(query: Any, data: Any) -> Any:
    """What an expression finds; a function in it that does not fit the data is an error of the one who wrote it."""
    from jmespath.exceptions import JMESPathError

    try:
        return query.search(data)
    except JMESPathError as error:
        raise click.UsageError(f"--query does not fit what was found: {error}") from None


Record = Mapping[str, Any]

# Kinds of a table's columns.

TEXT: Final = "text"
NUMBER: Final = "number"
#: A number that is red above zero, on a terminal that has colours.
ALARM: Final = "alarm"
#: True is ``yes``, and false is nothing: a column that is false throughout is left out.
FLAG: Final = "flag"
#: A number of bytes, in units that people read.
BYTES: Final = "bytes"
#: A time in UTC, to the second.
TIME: Final = "time"
#: A filter or an action: its SQL, where it has some.
SQL: Final = "sql"

#: Kinds whose cells stay on one line however narrow the terminal is: half of a number would be read as another one.
_WHOLE: Final = frozenset({NUMBER, ALARM, BYTES, FLAG, TIME})
_RIGHT: Final = frozenset({NUMBER, ALARM, BYTES})

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
#: Standard output that is no terminal has no width: a record stays on one line, so that ``grep`` finds it whole.
_WIDTH_OF_A_PIPE: Final = 1 << 20


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: Member of the record.
        head: What stands above the column, which is narrower than the name of the member.
        kind: One of the kinds above.
    """

    name: str
    head: str
    kind: str = TEXT


class Printer:
    """Prints records as they come; table keeps those of one call, and a query all of them.

    Args:
        form: One of ``OUTPUTS``; None for what suits standard output.
        columns: What tsv shows of each record, and table without ``table``; all of it if empty, in a table one line
            each.
        table: What a table shows instead. A column that is empty throughout is left out.
        is_one: Whether there is one record, which json then writes without a list around it.
        gathers: Whether a table waits for the records of all calls, so that there is one table.
    """

    def __init__(
        self,
        form: str | None,
        columns: Sequence[str] = (),
        *,
        table: Sequence[Column] = (),
        is_one: bool = False,
        gathers: bool = False,
    ) -> None:
        self._form = form or ("table" if sys.stdout.isatty() else "jsonl")
        self._columns = columns
        self._table = table
        self._is_one = is_one
        self._gathers = gathers and self._form == "table"
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
        elif self._gathers:
            # After a failure, too: what was found until then is shown in every form.
            self._print_table(self._kept)
        elif self._form == "json" and not self._is_one and (kind is None or self._count):
            click.echo("\n]" if self._count else "[]")

    def print(self, records: Iterable[Record]) -> None:
        """Print records; they are out when this returns, unless there is a query, which wants all of them."""
        if self._query is not None or self._gathers:
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
        self._is_one, self._query, self._gathers, self._table = not isinstance(found, list), None, False, ()
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
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        columns: Sequence[Column] = self._table or [Column(name, name) for name in self._columns]
        is_wide = bool(columns)
        if is_wide:
            rows = [[record.get(column.name) for column in columns] for record in records]
        else:
            columns = (Column("", "property"), Column("", "value"))
            rows = [list(row) for record in records for row in record.items()]
        shown = [[_text_of(column, value) for column, value in zip(columns, row, strict=True)] for row in rows]
        kept = [place for place in range(len(columns)) if not is_wide or any(row[place].plain for row in shown)]
        for place in kept:
            column = columns[place]
            table.add_column(
                column.head,
                overflow="fold",
                justify="right" if column.kind in _RIGHT else "left",
                no_wrap=column.kind in _WHOLE,
            )
        for row in shown:
            table.add_row(*(row[place] for place in kept))
        _console().print(table)


def _console() -> Console:
    """Standard output; no environment variable makes anything but a terminal coloured, and ``NO_COLOR`` is heeded."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console()
    width = None if os.environ.get("COLUMNS") else _WIDTH_OF_A_PIPE
    return Console(force_terminal=False, color_system=None, width=width)


def _text_of(column: Column, value: Any) -> Text:
    """Return a cell as a Text, so that nothing in the value is taken for markup."""
    from rich.text import Text

    if column.kind == FLAG and isinstance(value, bool):
        return Text("yes" if value else "")
    if column.kind == BYTES and isinstance(value, int):
        return Text(bytes_text(value))
    if column.kind == TIME and isinstance(value, str):
        return Text(_seconds_of(value))
    if column.kind == SQL and isinstance(value, dict) and value.get("sqlExpression"):
        return Text(_cell(value["sqlExpression"]))
    is_alarm = column.kind == ALARM and isinstance(value, int) and value > 0
    return Text(_cell(value), style="red" if is_alarm else "")


def _seconds_of(text: str) -> str:
    """Return a time of a record without the parts of its second: ``2026-01-01T12:00:00Z``; other texts stay."""
    try:
        found = datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return clean(text)
    return found.strftime("%Y-%m-%dT%H:%M:%SZ")


def bytes_text(number: int) -> str:
    """Return a number of bytes as people read it: ``0 B``, ``1.5 KiB``, ``200 MiB``."""
    unit = 0
    size = float(number)
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit and size < 100 else f"{size:.0f} {_UNITS[unit]}"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return clean(value if isinstance(value, str) else json_of(value) if isinstance(value, dict | list) else str(value))


class Commands(click.Group):
    """A group whose help tells each command in a whole sentence, where click's own would cut the sentence off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        rows = [(name, _sentence_of(self.commands[name])) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def _sentence_of(command: click.Command) -> str:
    text = " ".join((command.short_help or command.help or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) ", text, maxsplit=1)[0]


# How far a long command is, on a terminal; nothing where standard error is none.


class Meter:
    """A bar on standard error while it is entered."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

            self._bar = Progress(
                BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=Console(stderr=True), transient=True
            )
            self._task = self._bar.add_task("")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int, total: int) -> None:
        """Say how many bytes of how many are done."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total)


def clean(text: str) -> str:
    """A text without what moves the cursor or recolours a terminal: it comes from others."""
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "backslashreplace").decode() for sign in text
    )
