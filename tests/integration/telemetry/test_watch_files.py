"""The dashboard and the alert rules ask for metrics that there are, by labels that these have."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from kit_watch_files import (
    ALERTS,
    CASES,
    DASHBOARD,
    SCRAPES,
    Query,
    filled_in,
    grouped_in,
    labels_in,
    names_in,
    panels,
    queries,
    rules,
    variables,
)

from duobus.spark.progress.figures import SPARK_METRICS
from duobus.telemetry.metrics import COUNTER, HISTOGRAM, METRICS

#: Labels that Prometheus adds, and those of a histogram's buckets.
ADDED = {"instance", "job"}

EXPOSED = {
    f"{metric.name}{suffix}": {*metric.labels, *ADDED, *(("le",) if suffix == "_bucket" else ())}
    for metric in (*METRICS, *SPARK_METRICS)
    for suffix in {COUNTER: ("_total",), HISTOGRAM: ("_bucket", "_sum", "_count")}.get(metric.kind, ("",))
}
ALL = [*queries(), *variables(), *(Query(rule["alert"], rule["expr"]) for rule in rules())]


def test_what_is_exposed_is_what_the_broker_names() -> None:
    assert "duobus_metered_messages_total" in EXPOSED
    assert "le" in EXPOSED["duobus_store_commit_seconds_bucket"]


@pytest.mark.parametrize("query", ALL, ids=lambda query: query.title)
def test_every_query_and_rule_names_metrics_that_there_are_by_labels_that_they_have(query: Query) -> None:
    names = names_in(query.expression)
    assert names or "up{" in query.expression
    assert names <= EXPOSED.keys(), names - EXPOSED.keys()
    for name, labels in labels_in(query.expression).items():
        assert labels <= EXPOSED[name], (name, labels - EXPOSED[name])
    known = {label for name in names for label in EXPOSED[name]} | ADDED
    assert grouped_in(query.expression) <= known


@pytest.mark.parametrize("kind", ["kind", "state"])
def test_values_of_labels_that_are_asked_for_are_those_that_the_reference_lists(kind: str) -> None:
    page = (DASHBOARD.parents[2] / "docs" / "reference" / "metrics.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| `{kind}` | `"))
    listed = set(re.findall(r"`([a-z-]+)`", row.split("|")[2]))
    for query in ALL:
        for values in re.findall(rf'\b{kind}=~?"([^"]*)"', query.expression):
            assert set(values.split("|")) <= listed, query


def test_the_dashboard_shows_every_metric_of_the_broker_and_of_queries_on_spark() -> None:
    shown = {name for query in [*queries(), *variables()] for name in names_in(query.expression)}
    missing = {
        metric.name
        for metric in (*METRICS, *SPARK_METRICS)
        if not shown & {name for name in EXPOSED if re.fullmatch(f"{metric.name}(_total|_bucket|_sum|_count)?", name)}
    }
    assert missing == set()


def test_the_dashboard_is_whole() -> None:
    text = DASHBOARD.read_text()
    board = json.loads(text)
    every = board["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert len({panel["title"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in every:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["description"].endswith(".")
        assert panel["targets"]
        for target in [panel, *panel["targets"]]:
            # No data source of the machine on which it was made.
            assert target["datasource"]["uid"] == "${datasource}"
    known = {one["name"] for one in board["templating"]["list"]} | {"__rate_interval", "__all"}
    assert set(re.findall(r"\$\{?(\w+)", text)) <= known


def test_nothing_is_left_to_fill_in_once_a_query_is_sent() -> None:
    for query in queries():
        assert "$" not in filled_in(query.expression, "1m")


def test_every_alert_says_what_is_wrong_and_what_to_do_and_has_a_case_in_which_it_fires() -> None:
    cases = CASES.read_text()
    every = rules()
    assert len({rule["alert"] for rule in every}) == len(every)
    for rule in every:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"].keys() == {"summary", "todo"}
        assert f'alertname="{rule["alert"]}"' in cases or f"alertname: {rule['alert']}" in cases, rule["alert"]


def test_the_example_for_prometheus_names_the_rules_and_the_job_that_they_ask_for() -> None:
    example = yaml.safe_load(SCRAPES.read_text())
    assert example["rule_files"] == [ALERTS.name]
    (job,) = example["scrape_configs"]
    assert f'job="{job["job_name"]}"' in ALERTS.read_text()
    assert job["static_configs"] == [{"targets": ["localhost:5300"]}]


def test_commands_and_pages_that_alerts_send_to_exist() -> None:
    import click

    from duobus.cli.main import main

    for rule in rules():
        todo = rule["annotations"]["todo"]
        for page in re.findall(r"docs/[\w/-]+\.md", todo):
            assert (DASHBOARD.parents[2] / page).is_file(), page
        for first in re.findall(r"\bduobus ([a-z]+)", todo):
            assert main.get_command(click.Context(main), first) is not None, first


def test_the_page_on_watching_names_every_alert_and_no_other() -> None:
    page = (DASHBOARD.parents[2] / "docs" / "how-to" / "watch.md").read_text()
    named = set(re.findall(r"`(Duobus[A-Za-z]+)`", page))
    assert named == {rule["alert"] for rule in rules()}


def test_the_page_on_watching_names_every_span() -> None:
    from duobus.telemetry import spans

    page = (DASHBOARD.parents[2] / "docs" / "how-to" / "watch.md").read_text()
    assert set(re.findall(r"^\| `(duobus\.[a-z]+)`", page, re.MULTILINE)) == {spans.SEND, spans.DELIVER, spans.SETTLE}
