"""What stands in the files of ``deploy/`` for Prometheus and Grafana: queries, rules, and the names that these use."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "deploy" / "grafana" / "duobus.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
SCRAPES = ROOT / "deploy" / "prometheus" / "prometheus.yaml"
CASES = Path(__file__).parent / "alert_cases.yaml"

#: Skips, and so counts, what needs Debian's package ``prometheus`` on a machine that has none.
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="Prometheus is not installed (Debian's package prometheus)",
)


class Query(NamedTuple):
    """One query of the dashboard, or one expression of an alert rule."""

    title: str
    expression: str


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard, rows excepted."""
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def queries() -> list[Query]:
    """What the panels and annotations of the dashboard ask for."""
    notes = json.loads(DASHBOARD.read_text())["annotations"]["list"]
    return [
        *(Query(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]),
        *(Query(note["name"], note["expr"]) for note in notes),
    ]


def variables() -> list[Query]:
    """The variables of the dashboard that ask Prometheus for their values."""
    listed = json.loads(DASHBOARD.read_text())["templating"]["list"]
    return [Query(one["name"], one["query"]["query"]) for one in listed if one["type"] == "query"]


def rules() -> list[dict[str, Any]]:
    """The alert rules."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def filled_in(expression: str, window: str) -> str:
    """A query as Grafana sends it when everything is chosen."""
    text = re.sub(r"\$(instance|namespace|entity)\b", ".*", expression)
    return text.replace("$__rate_interval", window)


def names_in(expression: str) -> set[str]:
    """The metrics that an expression names."""
    return set(re.findall(r"\bduobus_[a-z_]+\b", expression))


def labels_in(expression: str) -> dict[str, set[str]]:
    """The metrics that an expression names, each with the labels that are asked for in its braces."""
    found: dict[str, set[str]] = {}
    for name, inside in re.findall(r"\b(duobus_[a-z_]+)\{([^}]*)\}", re.sub(r'"[^"]*"', '""', expression)):
        found.setdefault(name, set()).update(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", inside))
    return found


def grouped_in(expression: str) -> set[str]:
    """The labels by which an expression groups or joins."""
    inside = re.findall(r"\b(?:by|on|without|group_left)\s*\(([^)]*)\)", expression)
    return {label.strip() for part in inside for label in part.split(",") if label.strip()}
