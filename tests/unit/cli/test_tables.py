"""What a table shows: short heads, no column that is empty throughout, colours on a terminal only."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from duobus.cli.output import ALARM, BYTES, FLAG, NUMBER, SQL, TIME, Column, Printer, bytes_text

RED = "\x1b[31m"
COLUMNS = (
    Column("name", "name"),
    Column("activeMessageCount", "active", NUMBER),
    Column("deadLetterMessageCount", "dead", ALARM),
    Column("sizeInBytes", "size", BYTES),
    Column("requiresSession", "sessions", FLAG),
)


class Output(io.StringIO):
    """Standard output, which may be a terminal."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def queue(name: str, dead: int = 0, *, sessions: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "activeMessageCount": 123456,
        "deadLetterMessageCount": dead,
        "sizeInBytes": 2048,
        "requiresSession": sessions,
    }


def printed(
    monkeypatch: pytest.MonkeyPatch,
    *calls: Sequence[dict[str, Any]],
    form: str | None = "table",
    table: Sequence[Column] = COLUMNS,
    is_terminal: bool = False,
    environment: Mapping[str, str] | None = None,
) -> str:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in (environment or {}).items():
        monkeypatch.setenv(name, value)
    output = Output(is_terminal=is_terminal)
    monkeypatch.setattr("sys.stdout", output)
    with Printer(form, ("name", "activeMessageCount"), table=table, gathers=True) as printer:
        for records in calls:
            printer.print(records)
    return output.getvalue()


def test_a_table_has_short_heads_and_readable_values(monkeypatch: pytest.MonkeyPatch) -> None:
    head, row = printed(monkeypatch, [queue("orders", sessions=True)]).splitlines()
    assert head.split() == ["name", "active", "dead", "size", "sessions"]
    assert row.split() == ["orders", "123456", "0", "2.0", "KiB", "yes"]


def test_a_column_that_is_empty_throughout_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "sessions" not in printed(monkeypatch, [queue("orders"), queue("other")])
    # All calls make one table, so that a column is there for all records or for none.
    assert printed(monkeypatch, [queue("orders")], [queue("other", sessions=True)]).count("sessions") == 1


def test_nothing_found_is_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch) == ""
    assert printed(monkeypatch, []) == ""


def test_dead_letters_above_zero_are_red_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = printed(monkeypatch, [queue("sick", dead=7), queue("well")], is_terminal=True)
    sick, well = shown.splitlines()[1:]
    assert RED in sick
    assert RED not in well


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}, {"CLICOLOR_FORCE": "1"}])
def test_nothing_is_coloured_where_standard_output_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    assert "\x1b" not in printed(monkeypatch, [queue("sick", dead=7)], environment=environment)


def test_no_color_is_heeded_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RED not in printed(monkeypatch, [queue("sick", dead=7)], is_terminal=True, environment={"NO_COLOR": "1"})


def test_numbers_stay_whole_on_a_narrow_terminal_and_names_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = printed(monkeypatch, [queue("n" * 60, dead=7)], is_terminal=True, environment={"COLUMNS": "27"})
    assert max(len(re.sub("\x1b\\[[0-9;]*m", "", line)) for line in shown.splitlines()) <= 27
    assert "123456" in shown
    assert "n" * 60 not in shown


def test_a_record_stays_on_one_line_where_standard_output_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(printed(monkeypatch, [queue("n" * 500)]).splitlines()) == 2


def test_what_programs_read_has_the_members_and_never_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(printed(monkeypatch, [queue("orders")], form="jsonl")) == queue("orders")
    assert printed(monkeypatch, [queue("orders")], form="tsv") == "orders\t123456\n"


def test_times_are_told_to_the_second_and_filters_by_their_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = (Column("at", "at", TIME), Column("filter", "filter", SQL))
    records = [
        {"at": "2026-01-31T12:00:00.123000+01:00", "filter": {"type": "sql", "sqlExpression": "a > 5"}},
        {"at": "some day", "filter": {"type": "correlation", "label": "x"}},
    ]
    rows = printed(monkeypatch, records, table=columns).splitlines()[1:]
    assert [row.rstrip() for row in rows] == [
        "2026-01-31T11:00:00Z  a > 5",
        'some day              {"type": "correlation", "label": "x"}',
    ]


def test_bytes_are_told_in_the_largest_unit_that_leaves_a_whole() -> None:
    found = [bytes_text(number) for number in (0, 1023, 1024, 150 * 1024, 5 << 30, 5 << 50)]
    assert found == ["0 B", "1023 B", "1.0 KiB", "150 KiB", "5.0 GiB", "5120 TiB"]
