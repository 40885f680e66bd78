"""``duobus fragment``: where the fragments of entities are."""

from __future__ import annotations

import click

from duobus.cli.operating import operate
from duobus.cli.printing import Printer
from duobus.cli.remote import Remote, remote_command

_COLUMNS = ("entity", "kind", "fragment", "store", "available", "messages", "bytes")

_LIST = """
\b
Example:
  duobus fragment list orders -o table
"""


@click.group()
def command() -> None:
    """Tell which fragment of an entity is on which messaging store."""


@command.command(name="list", epilog=_LIST)
@click.argument("entity", required=False)
@remote_command()
def list_fragments(remote: Remote, entity: str | None, output: str | None) -> None:
    """List the fragments of all queues and topics, or of one."""
    with Printer(output, _COLUMNS) as printer:
        printer.print(operate(remote, "GET", "fragments", {"entity": entity} if entity else {}))
