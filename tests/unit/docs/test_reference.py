"""The reference says what the code does: options, configuration, metrics, errors, management operations, limits."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import duobus.errors
from duobus.cli.main import main
from duobus.errors import ServiceBusError
from duobus.gateway.amqp.management.node import _DISPOSITIONS, _OPERATIONS
from duobus.model.durations import parse_duration
from duobus.model.metering import KINDS
from duobus.model.properties import PROPERTIES, Surface
from duobus.model.quotas import Quotas, quota_names
from duobus.model.topology.config_file import parse_config
from duobus.server.monitoring.metric_samples import _STATES
from duobus.server.settings import Settings, ready_members
from duobus.spark.progress.figures import SPARK_METRICS
from duobus.telemetry.metrics import METRICS

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "docs" / "reference"
SOURCE = ROOT / "src" / "duobus"

#: Sub-packages whose constants bound no peer: what only tests use.
NO_PEERS = {"testing"}


def rows_of(page: str, heading: str | None = None) -> list[list[str]]:
    """The rows of all tables of a page, or of those below one heading, without heads and rules."""
    text = (REFERENCE / page).read_text()
    if heading is not None:
        text = re.split(r"^#", text.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    found: list[list[str]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        is_head = number + 1 < len(lines) and lines[number + 1].startswith("|---")
        if line.startswith("| ") and not is_head:
            found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


def plain(cell: str) -> str:
    return cell.strip("`")


def commands(path: str = "duobus", command: click.Command = main) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(f"{path} {name}", inner)


def rows_of_command(heading: str, command: click.Command) -> list[list[str]]:
    """The rows of a command, and those of the options it shares with others, which have a table of their own."""
    names = {option.opts[0] for option in command.params}
    own = rows_of("command-line.md", heading)
    if "--connection-string" not in names:
        # An option of the same name is another one there.
        return own
    shared = [row for row in rows_of("command-line.md", "Which server") if plain(row[0]) in names]
    assert not {plain(row[0]) for row in own} & {plain(row[0]) for row in shared}
    return own + shared


@pytest.mark.parametrize(("heading", "command"), list(commands()), ids=lambda value: str(value))
def test_every_option_of_a_command_stands_there_with_its_default(heading: str, command: click.Command) -> None:
    built = {}
    for option in command.params:
        if isinstance(option, click.Argument):
            built[option.human_readable_name] = "none"
            continue
        assert isinstance(option, click.Option)
        default = option.default if isinstance(option.default, int | float | str) and not option.is_flag else None
        built[option.opts[0]] = "none" if default is None else str(default)
    assert {plain(row[0]): plain(row[2]) for row in rows_of_command(heading, command)} == built


def test_choices_and_ranges_of_options_stand_there_as_built() -> None:
    for heading, command in commands():
        values = {plain(row[0]): row[1] for row in rows_of_command(heading, command)}
        for option in command.params:
            name = option.human_readable_name if isinstance(option, click.Argument) else option.opts[0]
            if isinstance(option.type, click.Choice):
                for choice in option.type.choices:
                    assert f"`{choice}`" in values[name]
            elif isinstance(option.type, click.IntRange):
                numbers = [str(bound) for bound in (option.type.min, option.type.max) if bound is not None]
                assert re.findall(r"\d+", values[name]) == numbers


def test_every_member_of_the_ready_file_stands_there() -> None:
    members = ready_members(
        Settings(data=None),
        amqp_port=1,
        tls_port=2,
        http_port=3,
        https_port=4,
        rule_name="rule",
        key="key",
        ca=None,
    )
    assert [plain(row[0]) for row in rows_of("command-line.md", "The ready file")] == list(members)


def members_read() -> set[str]:
    """Names of the members that the reader of the configuration asks for, by name or by the table of properties."""
    readers = {"take", "child", "children", "duration", "finite_duration", "optional_text"}
    return {item.element for item in PROPERTIES if Surface.CONFIG in item.given} | {
        node.args[0].value
        for node in ast.walk(ast.parse((SOURCE / "model" / "topology" / "config_file.py").read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in readers
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }


def test_every_member_of_the_configuration_stands_there_and_no_other() -> None:
    rows = rows_of("configuration.md")
    # Access rules are read for namespaces, queues and topics by one function.
    assert {plain(row[0]) for row in rows} == members_read()


def attribute_of(member: str) -> str:
    irregular = {"MaxMessageSizeInKilobytes": "max_message_size_bytes"}
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", member).lower()
    durations = {"LockDuration", "DefaultMessageTimeToLive", "AutoDeleteOnIdle"}
    is_duration = member in durations or "Window" in member or member.startswith("RedeliveryDelay")
    return irregular.get(member, snake + ("_ms" if is_duration else ""))


def config_of(properties: dict[str, Any]) -> str:
    queue = {"Name": "q", "Properties": properties}
    return json.dumps({"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [queue]}]}})


def value_of(member: str, text: str) -> Any:
    if text == "none":
        return None
    if text == "empty":
        return ()
    if text.startswith("P") and attribute_of(member).endswith("_ms"):
        return parse_duration(text)
    if text in {"true", "false"}:
        return text == "true"
    if text.isdigit():
        return int(text) * (1024 if member == "MaxMessageSizeInKilobytes" else 1)
    return text


def test_defaults_of_queue_properties_are_those_of_the_reader() -> None:
    queue = parse_config(config_of({})).namespaces[0].queues[0]
    checked = 0
    for member, _, default, _ in rows_of("configuration.md", "Queue"):
        name = plain(member)
        if name not in {"Name", "Properties"}:
            assert getattr(queue, attribute_of(name)) == value_of(name, plain(default)), name
            checked += 1
    assert checked > 15


@pytest.mark.parametrize(
    ("member", "low", "high", "below", "above"),
    [
        ("LockDuration", "PT5S", "PT5M", "PT4.9S", "PT5M0.1S"),
        ("DuplicateDetectionHistoryTimeWindow", "PT5S", "P7D", "PT4.9S", "P7DT1S"),
        ("MaxDeliveryCount", 1, 2147483647, 0, 2147483648),
        ("MaxMessageSizeInKilobytes", 1, 102400, 0, 102401),
        ("DefaultMessageTimeToLive", "PT1S", None, "PT0.9S", None),
        ("AutoDeleteOnIdle", "PT5M", None, "PT4M59S", None),
        ("RedeliveryDelayMaximum", "PT0.001S", "P1D", "PT0S", "P1DT1S"),
    ],
)
def test_ranges_of_queue_properties_are_those_of_the_reader(
    member: str, low: Any, high: Any, below: Any, above: Any
) -> None:
    (value,) = [row[1] for row in rows_of("configuration.md", "Queue") if plain(row[0]) == member]
    for bound in (low, high):
        if bound is not None:
            assert re.search(rf"\b{bound}\b", value)
            parse_config(config_of({member: bound}))
    for wrong in (below, above):
        if wrong is not None:
            with pytest.raises(duobus.errors.ConfigurationError, match="Queues"):
                parse_config(config_of({member: wrong}))


def test_every_metric_stands_there_with_kind_and_labels() -> None:
    written = [
        (plain(name), kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels, _ in rows_of("metrics.md")[: len(METRICS)]
    ]
    assert written == [(metric.name, metric.kind, metric.labels) for metric in METRICS]


def test_every_metric_of_queries_on_spark_stands_there_with_kind_labels_and_meaning() -> None:
    written = [
        (plain(name), kind, tuple(re.findall(r"`(\w+)`", labels)), meaning)
        for name, kind, labels, meaning in rows_of("metrics.md", "Queries on Spark")
    ]
    assert written == [(metric.name, metric.kind, metric.labels, metric.help) for metric in SPARK_METRICS]


def test_every_label_stands_there_with_its_values() -> None:
    labels = {plain(name): set(re.findall(r"`([\w-]+)`", values)) for name, values in rows_of("metrics.md", "Labels")}
    assert set(labels) == {label for metric in (*METRICS, *SPARK_METRICS) for label in metric.labels}
    assert labels["kind"] == set(KINDS)
    assert labels["state"] == set(_STATES)


def classes() -> list[type[Exception]]:
    found = [value for value in vars(duobus.errors).values() if inspect.isclass(value)]
    return [value for value in found if value.__module__ == "duobus.errors"]


def test_every_error_stands_there_with_condition_status_and_retry() -> None:
    written = {plain(row[0]): (plain(row[1]), row[2], row[3]) for row in rows_of("errors.md", "What clients see")}
    assert written == {
        error.__name__: (error.condition, str(error.http_status), "yes" if error.transient else "no")
        for error in classes()
        if issubclass(error, ServiceBusError)
    }


def test_every_error_stands_there_with_the_advice_of_its_class() -> None:
    written = {plain(row[0]): row[-1] for row in rows_of("errors.md")}
    for error in classes():
        first = (inspect.getdoc(error) or "").split("\n\n")[0]
        assert written.pop(error.__name__) == " ".join(first.split())
    assert written == {}


def test_every_management_operation_stands_there_with_its_right() -> None:
    written = {plain(row[0]): row[1].upper() for row in rows_of("management-operations.md", "Built")}
    assert written == {name: right.name for name, (_, right) in _OPERATIONS.items()}


def test_every_disposition_status_stands_there_by_its_name() -> None:
    page = (REFERENCE / "management-operations.md").read_text()
    for status in _DISPOSITIONS:
        assert f"`{status}`" in page


def test_every_limit_stands_there_with_the_value_of_its_constant() -> None:
    quotas = rows_of("limits.md", "Quotas")
    rows = [row for row in rows_of("limits.md") if row not in quotas]
    for name, value, _ in rows:
        module, _, constant = plain(name).rpartition(".")
        built = getattr(importlib.import_module(f"duobus.{module}"), constant)
        assert float(value.replace(",", "")) == built, name
    assert len({name for name, _, _ in rows}) == len(rows)


def test_every_quota_stands_there_with_its_default() -> None:
    written = {plain(name): int(value.replace(",", "")) for name, value, _ in rows_of("limits.md", "Quotas")}
    assert written == {name: getattr(Quotas(), name.replace("-", "_")) for name in quota_names()}


def test_every_constant_that_names_a_maximum_stands_in_the_limits() -> None:
    written = {plain(row[0]) for row in rows_of("limits.md")}
    assert sorted(set(maxima()) - written) == []


def maxima() -> Iterator[str]:
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] in NO_PEERS:
            continue
        for name in names_assigned(ast.parse(path.read_text())):
            if re.search(r"^[A-Z].*_MAX(_|$)", name):
                yield ".".join((*parts, name))


def names_assigned(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for item in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(item, ast.Name):
                    yield item.id


def test_every_target_of_make_stands_on_its_page() -> None:
    page = (REFERENCE / "make-targets.md").read_text()
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(targets) > 10
    assert sorted(re.findall(r"^\| `make ([a-z-]+)` \|", page, re.MULTILINE)) == sorted(targets)
