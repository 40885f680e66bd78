"""The page of metering, usage and reconciliation says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from duobus.model.metering import KINDS, MeteringRecord
from duobus.spark.jobs.reconcile import FINDINGS
from duobus.spark.jobs.work.tables import COMPACTED_DDL, RECORD, USAGE_DDL

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "usage.md"


def table(heading: str, first: str) -> list[tuple[str, ...]]:
    """Rows of the table below a heading whose first column has a name."""
    section = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None
    found = re.search(rf"^\| {first} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", section[1], re.MULTILINE)
    assert found is not None
    return [tuple(cell.strip().strip("`") for cell in row.strip("|").split("|")) for row in found[1].splitlines()]


def columns(ddl: str) -> list[tuple[str, str]]:
    return [(name, kind) for name, kind in re.findall(r"`(\w+)` ([^`]+?)(?:, (?=`)|$)", ddl)]


def test_the_page_names_every_member_of_a_record_and_every_kind() -> None:
    members = [row[0] for row in table("Metering files", "member")]
    assert members == [*MeteringRecord.__struct_fields__, "sum"]
    assert members[:-1] == [name for name, _ in RECORD]
    assert {row[0] for row in table("Metering files", "kind")} == set(KINDS)


def test_the_page_names_every_column_with_its_type() -> None:
    assert [row[:2] for row in table("Compacted records", "column")] == columns(COMPACTED_DDL)
    assert [row[:2] for row in table("Usage", "column")] == columns(USAGE_DDL)


def test_the_page_names_every_finding() -> None:
    assert tuple(row[0] for row in table("Reconciliation", "finding")) == FINDINGS
