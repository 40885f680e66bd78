"""``duobus relay create, list, show, update, delete``: the hybrid connections of a namespace."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from duobus.cli.output import Printer
from duobus.cli.remote import Remote, operate, remote_command
from duobus.model.relay.description import SENDERS, STATUSES

_COLUMNS: Final = ("name", "status", "listeners", "requiresClientAuthorization", "senders", "userMetadata")

_CREATE: Final = """
\b
Example:
  duobus relay create billing/api
  duobus relay create public/page --requires-client-authorization false --senders http
"""
_LIST: Final = """
\b
Example:
  duobus relay list
  duobus relay list -o json
"""
_SHOW: Final = """
\b
Example:
  duobus relay show billing/api -o json
"""
_UPDATE: Final = """
\b
Example:
  duobus relay update billing/api --status Disabled
  duobus relay update billing/api --user-metadata "owner: billing"
"""
_DELETE: Final = """
\b
Example:
  duobus relay delete billing/api --yes
"""

_METADATA: Final = click.option("--user-metadata", help="Any text of yours, up to 1,024 characters.")
_STATUS: Final = click.option("--status", type=click.Choice(STATUSES), help="Whether the relay may be used.")
_SENDERS: Final = click.option(
    "--senders",
    type=click.Choice(SENDERS),
    help="Which senders the relay takes; some listeners fail on others.",
)


def _given(**options: Any) -> dict[str, Any]:
    names = {"user_metadata": "userMetadata", "requires": "requiresClientAuthorization"}
    return {names.get(name, name): value for name, value in options.items() if value is not None}


def _show(found: Any, output: str | None) -> None:
    with Printer(output, is_one=True) as printer:
        printer.print([found])


@click.command(epilog=_CREATE)
@click.argument("name")
@click.option(
    "--requires-client-authorization", "requires", type=bool, help="Whether senders need a token; they do by default."
)
@_METADATA
@_STATUS
@_SENDERS
@remote_command()
def create(
    remote: Remote,
    name: str,
    requires: bool | None,
    user_metadata: str | None,
    status: str | None,
    senders: str | None,
    output: str | None,
) -> None:
    """Create a relay, and show it."""
    form = _given(requires=requires, user_metadata=user_metadata, status=status, senders=senders)
    _show(operate(remote, "PUT", f"relays/{name}", {"must": "new"}, form), output)


@click.command(name="list", epilog=_LIST)
@remote_command()
def list_relays(remote: Remote, output: str | None) -> None:
    """List all relays, by name, with the listeners that each has."""
    found = operate(remote, "GET", "relays")
    with Printer(output, _COLUMNS) as printer:
        printer.print(found)
    if not found:
        click.echo("There are no relays. Create one with duobus relay create.", err=True)


@click.command(epilog=_SHOW)
@click.argument("name")
@remote_command()
def show(remote: Remote, name: str, output: str | None) -> None:
    """Show a relay."""
    _show(operate(remote, "GET", f"relays/{name}"), output)


@click.command(epilog=_UPDATE)
@click.argument("name")
@_METADATA
@_STATUS
@_SENDERS
@remote_command()
def update(
    remote: Remote,
    name: str,
    user_metadata: str | None,
    status: str | None,
    senders: str | None,
    output: str | None,
) -> None:
    """Change properties of a relay, and show it. A relay that is disabled closes what is connected through it."""
    form = _given(user_metadata=user_metadata, status=status, senders=senders)
    if not form:
        raise click.UsageError("Say what is to change: --user-metadata, --status or --senders.")
    _show(operate(remote, "PUT", f"relays/{name}", {"must": "there"}, form), output)


@click.command(epilog=_DELETE)
@click.argument("name")
@click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")
@remote_command(has_output=False)
def delete(remote: Remote, name: str, is_sure: bool) -> None:
    """Delete a relay. Its listeners and senders are disconnected."""
    if not is_sure:
        if not sys.stdin.isatty():
            raise click.UsageError(f"Give --yes to delete the relay {name}.")
        click.confirm(f"Delete the relay {name}? What is connected through it is closed.", abort=True, err=True)
    operate(remote, "DELETE", f"relays/{name}")


#: The commands, in the order of the help.
COMMANDS: Final = (create, show, list_relays, update, delete)
