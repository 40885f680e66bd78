"""The reference of the data source says what the code does: every option, every column."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from duobus.spark.options import CHOICE, CONNECTION_OPTIONS, DURATION, NUMBER, SOURCE_OPTIONS, Option
from duobus.spark.schema import COLUMNS
from duobus.spark.sink.writer import SINK_OPTIONS

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "spark.md").read_text()


def rows_below(heading: str) -> list[list[str]]:
    text = re.split(r"^#+ ", PAGE.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize(
    ("heading", "options"),
    [("How the namespace is reached", CONNECTION_OPTIONS), ("What is read, and how", SOURCE_OPTIONS)],
)
def test_every_option_stands_there_with_its_default_and_mode(heading: str, options: tuple[Option, ...]) -> None:
    written = {row[0].strip("`"): (row[2].strip("`"), row[3]) for row in rows_below(heading)}
    built = {option.name: (option.default or "none", ", ".join(option.modes) or "all") for option in options}
    assert written == built


def test_every_option_of_the_sink_stands_there_with_its_default_and_value() -> None:
    written = {row[0].strip("`"): (row[1], row[2].strip("`")) for row in rows_below("Options of the sink")}
    built = {
        option.name: (
            ", ".join(f"`{choice}`" for choice in option.choices)
            or (f"{option.least} to {option.most}" if option.kind == NUMBER else "text"),
            option.default or "none",
        )
        for option in SINK_OPTIONS
    }
    assert written == built


def test_every_column_that_is_sent_or_not_stands_there() -> None:
    section = PAGE.split("# Columns that are sent\n", 1)[1].split("\n### ", 1)[0]
    assert all(f"`{name}`" in section for name, _ in COLUMNS)


@pytest.mark.parametrize("option", [*CONNECTION_OPTIONS, *SOURCE_OPTIONS], ids=lambda option: option.name)
def test_choices_and_ranges_stand_there_as_built(option: Option) -> None:
    (value,) = [
        row[1]
        for heading in ("How the namespace is reached", "What is read, and how")
        for row in rows_below(heading)
        if row[0].strip("`") == option.name
    ]
    if option.kind == CHOICE:
        assert value == ", ".join(f"`{choice}`" for choice in option.choices)
    elif option.kind in (NUMBER, DURATION):
        assert value == f"{option._said(option.least)} to {option._said(option.most)}"


def test_every_alias_stands_there() -> None:
    for option in SOURCE_OPTIONS:
        assert all(f"`{alias}`" in PAGE for alias in option.aliases)


def test_every_column_stands_there_with_its_type_in_order() -> None:
    assert [(row[0].strip("`"), row[1].strip("`")) for row in rows_below("Columns")] == list(COLUMNS)
