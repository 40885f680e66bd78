"""What a document of a pipeline declares: kinds and order of its stages, names in SQL, lines in TOML."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit_document import SHOP, parsed

from duobus.pipeline.document.model import Kind
from duobus.pipeline.document.parser import state_of
from duobus.pipeline.document.sql_names import tables_of
from duobus.pipeline.document.toml_lines import TomlLines


def test_what_a_stage_reads_and_writes_says_what_it_does(tmp_path: Path) -> None:
    pipeline = parsed(tmp_path)
    kinds = {name: stage.kind for name, stage in pipeline.stages.items()}
    assert kinds == {"capture": Kind.CAPTURE, "totals": Kind.REPORT, "alert": Kind.SEND}
    assert (pipeline.stages["alert"].tables, pipeline.stages["alert"].views) == (("totals",), ("large",))
    assert pipeline.stages["capture"].every_ms == 10_000
    assert pipeline.sources["incoming"].options["connectionStringEnv"] == "SHOP_BUS"
    assert pipeline.tables["orders"].path == str(tmp_path / "lake" / "orders")


def test_a_view_over_a_source_makes_a_stream(tmp_path: Path) -> None:
    text = SHOP + '\n[views.cheap]\nsql = "select * from incoming2"\n[sources.incoming2]\nqueue = "cheap"\n'
    pipeline = parsed(tmp_path, text + '[stages.pass]\nfrom = "cheap"\nto = "alerts"\n')
    assert pipeline.stages["pass"].kind is Kind.STREAM
    assert pipeline.stages["pass"].sources == ("incoming2",)


def test_stages_stand_behind_what_they_read_whatever_the_order_of_the_document(tmp_path: Path) -> None:
    head, capture = SHOP.split("[stages.capture]")
    own, others = capture.split("[stages.totals]")
    pipeline = parsed(
        tmp_path, f"{head}[stages.totals]{others}\n[stages.capture]{own}".replace('after = "capture"\n', "")
    )
    assert list(pipeline.stages) == ["capture", "totals", "alert"]
    assert pipeline.before(pipeline.stages["totals"]) == ("capture",)


def test_a_replay_and_a_reconciliation_take_tables_by_their_names(tmp_path: Path) -> None:
    more = """
[stages.replay]
job = "replay"
from = "orders"
to = "alerts"
dedupe = "original"
since = "2026-11-20T08:00Z"

[stages.compare]
job = "reconcile"
a = "orders"
b = ["/elsewhere/orders"]
out = "lake/both"
"""
    pipeline = parsed(tmp_path, SHOP + more)
    replay, compare = pipeline.stages["replay"], pipeline.stages["compare"]
    assert replay.settings["path"] == str(tmp_path / "lake" / "orders")
    assert (replay.settings["topic"], replay.settings["dedupe"]) == ("alerts", "original")
    # What the command has as --from, since the table is what a stage reads from.
    assert replay.settings["from"] == "2026-11-20T08:00Z"
    assert compare.settings["a"] == str(tmp_path / "lake" / "orders")
    assert compare.settings["b"] == "/elsewhere/orders"
    assert pipeline.before(compare) == ("capture",)


def test_the_state_is_found_though_the_rest_of_the_document_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text('state = "kept"\n[nonsense]\n')
    assert state_of(path) == tmp_path / "kept"
    path.write_text("[nonsense]\n")
    assert state_of(path) == tmp_path / "shop.state"
    assert state_of(tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("select * from orders", ["orders"]),
        ("SELECT a FROM orders o JOIN `people` p ON o.a = p.a, other", ["orders", "people"]),
        ("select a, b from orders, people where a in (select a from third)", ["orders", "people", "third"]),
        ("with t as (select * from orders), u (a, b) as (select * from t) select * from u join t", ["orders"]),
        ("select extract(year from enqueued_time), trim(both from body) from orders", ["orders"]),
        ("select * from a where x is not distinct from y", ["a"]),
        ("select 'from b' -- from c\n /* join d */ from `orders`", ["orders"]),
        ("select * from a lateral view explode(b) t as c, d", ["a"]),
        ("select * from range(5) r, parquet.`/x` join spark_catalog.db.t", []),
        ("select * from (select * from a union all select * from b) x, c", ["a", "b", "c"]),
        ("select a, sum(b) over (partition by c order by d) from e", ["e"]),
    ],
)
def test_the_tables_of_a_statement_are_found_without_spark(sql: str, tables: list[str]) -> None:
    assert [one.name for one in tables_of(sql)] == tables


def test_a_table_of_a_statement_has_its_line() -> None:
    assert [(one.name, one.line) for one in tables_of("select *\nfrom a\n\njoin b")] == [("a", 2), ("b", 4)]


def test_keys_have_their_lines_also_dotted_ones_and_behind_long_texts() -> None:
    lines = TomlLines('a = 1\n[b.c]\n"d" = """\nx = 1\n[y]\n"""\ne.f = 2\n[[g]]\nh = 3\n')
    assert [lines.line_of(*place) for place in (("", "a"), ("b.c", "d"), ("b.c", "e"), ("b.c.e", "f"), ("g", "h"))] == [
        1,
        3,
        7,
        7,
        9,
    ]
    assert lines.line_of("b") == 2
    assert lines.line_of("b.c", "x") == 2
    assert lines.line_of("none", "x") is None
