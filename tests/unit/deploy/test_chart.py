"""The chart for Kubernetes, as files: they are well-formed, and say what the server and its command line say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from duobus.cli.commands.serve import command
from duobus.cli.settings_file import OWN_OPTIONS, keys_of
from duobus.gateway.rest import health
from duobus.server.composition import PEERS_CLOSE_S
from duobus.server.settings import Settings

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "duobus"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
TEMPLATES = "\n".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))
#: Objects whose members are the operator's or Kubernetes' to name.
OPEN = {"global", "settings", "config", "resources", "affinity", "nodeSelector"}
EXAMPLES = sorted(CHART.glob("ci/*.yaml"))

TYPES = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


def faults(schema: dict[str, Any], value: Any, path: str = "$") -> Iterator[str]:
    """What a value breaks, by those words of JSON Schema that the chart uses; another word is a fault of the schema."""
    wrong = list(_typed(schema["type"], value)) if "type" in schema else []
    # What a value of another type would break besides means nothing.
    yield from (f"{path}: {fault}" for fault in wrong)
    for word, wanted in schema.items() if not wrong else ():
        yield from (f"{path}: {fault}" for fault in CHECKS[word](wanted, value, path, schema))


def _members(wanted: dict[str, Any], value: Any, path: str, _schema: Any) -> Iterator[str]:
    for name, member in value.items():
        if name in wanted:
            yield from faults(wanted[name], member, f"{path}.{name}")


def _others(wanted: Any, value: dict[str, Any], path: str, schema: dict[str, Any]) -> Iterator[str]:
    for name in value.keys() - schema.get("properties", {}).keys():
        if wanted is False:
            yield f"{name} is not known"
        else:
            yield from faults(wanted, value[name], f"{path}.{name}")


def _typed(wanted: str | list[str], value: Any, *_: Any) -> Iterator[str]:
    if not any(TYPES[name](value) for name in ([wanted] if isinstance(wanted, str) else wanted)):
        yield f"{value!r} is no {wanted}"


def _when(is_wrong: bool, text: str) -> Iterator[str]:
    if is_wrong:
        yield text


CHECKS: dict[str, Any] = {
    "$schema": lambda *_: (),
    "title": lambda *_: (),
    "description": lambda *_: (),
    "type": _typed,
    "properties": _members,
    "additionalProperties": _others,
    "required": lambda wanted, value, *_: [f"{name} is missing" for name in wanted if name not in value],
    "enum": lambda wanted, value, *_: _when(value not in wanted, f"{value!r} is none of {wanted}"),
    "pattern": lambda wanted, value, *_: _when(not re.search(wanted, value), f"{value!r} has not the form {wanted}"),
    "minimum": lambda wanted, value, *_: _when(value < wanted, f"{value} is too small"),
    "maximum": lambda wanted, value, *_: _when(value > wanted, f"{value} is too large"),
    "minLength": lambda wanted, value, *_: _when(len(value) < wanted, "too short"),
    "maxLength": lambda wanted, value, *_: _when(len(value) > wanted, "too long"),
    "items": lambda wanted, value, path, _: [fault for item in value for fault in faults(wanted, item, path)],
    "anyOf": lambda wanted, value, *_: _when(all(list(faults(one, value)) for one in wanted), f"{value!r} fits none"),
    "not": lambda wanted, value, *_: _when(not list(faults(wanted, value)), f"{value!r} is not allowed"),
    "propertyNames": lambda wanted, value, *_: [fault for name in value for fault in faults(wanted, name)],
}


def merged(base: Any, over: Any) -> Any:
    """Values as helm puts them together: objects member by member, all else as a whole."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return {**base, **{name: merged(base.get(name), value) for name, value in over.items()}}


def test_the_chart_says_what_it_is() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (about["apiVersion"], about["name"], about["type"]) == ("v2", "duobus", "application")
    project = (CHART.parents[2] / "pyproject.toml").read_text()
    assert f'version = "{about["appVersion"]}"' in project


@pytest.mark.parametrize("example", [None, *EXAMPLES], ids=lambda path: path.name if path else "defaults")
def test_the_defaults_and_the_examples_are_values_that_the_schema_allows(example: Path | None) -> None:
    assert len(EXAMPLES) == 2
    values = VALUES if example is None else merged(VALUES, yaml.safe_load(example.read_text()))
    assert list(faults(SCHEMA, values)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"replica": 2},
        {"replicas": 0},
        {"replicas": "two"},
        {"cluster": {"url": "postgresql://duobus:secret@postgres/duobus"}},
        {"cluster": {"stores": ["mysql://host/database"]}},
        {"settings": {"port": 1}},
        {"settings": {"emulator": {}}},
        {"persistence": {"size": "20"}},
        {"stopSeconds": 5},
    ],
)
def test_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    assert len(list(faults(SCHEMA, merged(VALUES, wrong)))) == 1


def test_every_value_is_in_the_schema_and_every_one_of_the_schema_has_a_default() -> None:
    def compare(schema: dict[str, Any], values: dict[str, Any], path: str) -> None:
        names = set(schema["properties"]) - {"global"}
        assert names == set(values), path
        for name in names - OPEN:
            if "properties" in schema["properties"][name]:
                compare(schema["properties"][name], values[name], f"{path}.{name}")

    compare(SCHEMA, VALUES, "")


def test_every_value_that_a_template_asks_for_has_a_default_and_every_default_is_asked_for() -> None:
    asked = set(re.findall(r"\.Values\.([A-Za-z]+(?:\.[A-Za-z]+)*)", TEMPLATES))
    for path in asked:
        found: Any = VALUES
        for name in path.split("."):
            assert name in found, path
            found = found[name]
    assert set(VALUES) == {path.partition(".")[0] for path in asked}


def flags() -> set[str]:
    """Every option that a template gives."""
    return set(re.findall(r"^\s*- --([a-z-]+)=", TEMPLATES, re.MULTILINE))


def test_every_flag_of_a_template_is_an_option_of_serve() -> None:
    options = {name.removeprefix("--") for option in command.params for name in option.opts}
    assert {"data", "join", "advertise", "tls-cert", "drain-delay"} <= flags()
    assert flags() <= options
    # No flag is written in another way, which the pattern would not see.
    assert len(flags()) <= len(re.findall(r"--[a-z]", TEMPLATES)) == len(re.findall(r"^\s*- --[a-z]", TEMPLATES, re.M))


def test_the_settings_of_the_operator_are_all_options_but_what_the_chart_gives_itself() -> None:
    taken = set(SCHEMA["properties"]["settings"]["propertyNames"]["not"]["enum"])
    assert flags() | OWN_OPTIONS <= taken
    assert taken <= set(keys_of(command)) | OWN_OPTIONS
    for path in EXAMPLES:
        assert set(yaml.safe_load(path.read_text())["settings"]) <= set(keys_of(command)) - taken


def test_the_probes_ask_addresses_that_the_server_has_and_the_ports_are_its_own() -> None:
    paths = re.findall(r"^\s+path: (/health\S*)$", TEMPLATES, re.MULTILINE)
    assert sorted(paths) == ["/health/live", "/health/ready", "/health/started"]
    routes = Path(health.__file__).read_text()
    assert all(f'add_get("{path}"' in routes for path in paths)
    defaults = Settings(data=None)
    assert VALUES["service"]["ports"] == {
        "amqp": defaults.port,
        "amqps": defaults.tls_port,
        "http": defaults.http_port,
    }
    for name, port in VALUES["service"]["ports"].items():
        assert re.search(rf"- name: {name}\n\s+containerPort: {port}\n", TEMPLATES)


def test_a_stop_is_given_the_delay_and_longer_than_the_close_of_its_clients() -> None:
    assert "terminationGracePeriodSeconds: {{ add .Values.drainDelaySeconds .Values.stopSeconds }}" in TEMPLATES
    assert SCHEMA["properties"]["stopSeconds"]["minimum"] >= PEERS_CLOSE_S + 20
    # A balancer asks every 3 seconds, and takes out who has said no once.
    assert VALUES["drainDelaySeconds"] >= 2 * 3


def test_a_pod_is_nobody_in_particular_and_writes_only_to_its_volumes() -> None:
    for line in (
        "runAsNonRoot: true",
        "runAsUser: 10001",
        "fsGroup: 10001",
        "readOnlyRootFilesystem: true",
        "allowPrivilegeEscalation: false",
        "automountServiceAccountToken: false",
    ):
        assert line in TEMPLATES
