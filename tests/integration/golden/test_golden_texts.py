"""What users read stays as it is, letter by letter: helps of all commands, XML of all entities, metrics, configuration.

After a change that is wanted, write them anew with
``DUOBUS_GOLDEN=write .venv/bin/python -m pytest tests/integration/golden``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.model.topology.config_file import parse_config

# What fills the servers of tests/integration/durability has every kind of entity in it.
from kits.gateway import in_loop, serving
from kits.http_client import Http, token
from kits.server_contents import configuration

TEXTS: Final = Path(__file__).parent / "texts"
ROOT: Final = Path(__file__).parents[3]


def demand(name: str, text: str) -> None:
    """Compare with the file, or write it."""
    path = TEXTS / name
    if os.environ.get("DUOBUS_GOLDEN") == "write":
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8"), f"{name} is another; DUOBUS_GOLDEN=write writes it anew"


def helps(command: click.Command, words: tuple[str, ...]) -> Iterator[str]:
    result = CliRunner().invoke(main, [*words, "--help"], terminal_width=100, prog_name="duobus")
    assert result.exit_code == 0, result.output
    yield f"$ duobus {' '.join(words)} --help\n{result.output}"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from helps(inner, (*words, name))


def test_the_help_of_every_command() -> None:
    demand("help.txt", "\n".join(helps(main, ())))


def test_what_a_configuration_file_means() -> None:
    found = parse_config(json.dumps(configuration()))
    demand("configuration.json", json.dumps(msgspec.to_builtins(found), indent=1, sort_keys=True) + "\n")


def test_the_description_of_the_http_side() -> None:
    text = (ROOT / "docs" / "reference" / "openapi.json").read_bytes()
    demand("openapi.txt", hashlib.sha256(text).hexdigest() + "\n")


def masked(text: str) -> str:
    """Without times, ports and made-up names."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z?", "TIME", text)
    text = re.sub(r"(localhost|127\.0\.0\.1):\d+", r"\1:PORT", text)
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}(_G\d+)?", "UUID", text)


@in_loop
async def test_what_the_http_side_answers() -> None:
    namespace = parse_config(json.dumps(configuration())).namespaces[0]
    async with serving(*namespace.queues) as server:
        for topic in namespace.topics:
            await server.unit.topics.create_topic("ns", topic)
        http = await Http.connect(server.port("http") or 0)
        found: list[str] = []
        for target in TARGETS:
            reply = await http.ask("GET", f"/{target}", headers={"Authorization": token()})
            names = sorted(name.lower() for name, _ in reply.headers)
            found.append(f"GET /{target}: {reply.status} {names}\n{masked(reply.text)}\n")
        demand("http.txt", "\n".join(found))
        metrics = (await http.ask("GET", "/metrics")).text
        demand("metrics.txt", "\n".join(sorted(set(signatures(metrics)))) + "\n")


TARGETS: Final = (
    "$Resources/Queues",
    "$Resources/Topics",
    "plain",
    "news/subscriptions",
    "news/subscriptions/acted",
    "news/subscriptions/acted/rules",
    "news/subscriptions/acted/rules/label",
    "missing",
    "$Resources/Queues?$top=x",
    "$namespaceinfo",
    "health",
)


def signatures(metrics: str) -> Iterator[Any]:
    """Comments as they are, and of each sample its name and the names of its labels."""
    for line in metrics.splitlines():
        if line.startswith("#"):
            yield line
        else:
            yield re.sub(r'="[^"]*"', "", line.rpartition(" ")[0])
