"""``duobus namespace``: what a namespace says of itself."""

from __future__ import annotations

from typing import Any, Final

import click

from duobus.cli.entity_commands import camel, plain
from duobus.cli.output import Printer
from duobus.cli.remote import Remote, remote_command

_MEMBERS: Final = (
    "name",
    "alias",
    "messaging_sku",
    "messaging_units",
    "namespace_type",
    "created_at_utc",
    "modified_at_utc",
)

_SHOW: Final = """
\b
Example:
  duobus namespace show
  duobus namespace show --query messagingSku -o tsv
"""


@click.group(name="namespace", no_args_is_help=True)
def command() -> None:
    """Show the namespace."""


@command.command(name="show", epilog=_SHOW)
@remote_command()
def show(remote: Remote, output: str | None) -> None:
    """Show name, tier and times of the namespace; any good key or token is enough."""
    with remote.administration("namespace") as client:
        found = client.get_namespace_properties()
        record: dict[str, Any] = {camel(name): plain(getattr(found, name, None)) for name in _MEMBERS}
    with Printer(output, is_one=True) as printer:
        printer.print([{name: value for name, value in record.items() if value is not None}])
