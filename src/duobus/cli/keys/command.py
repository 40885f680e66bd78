"""``duobus key``: list, show, add, rotate and remove access rules and their keys."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from duobus.cli.keys.clients import Record, rules_of
from duobus.cli.output import Printer
from duobus.cli.remote import ServerChoice, remote_command
from duobus.errors import ArgumentInvalid
from duobus.model.access_rules import ADD, PRIMARY, REMOVE, ROTATE, SECONDARY, SWAP, RuleChange, rights_of

_COLUMNS: Final = ("entity", "name", "rights", "createdAt", "modifiedAt")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_LIST: Final = """
\b
Example:
  duobus key list
  duobus key list --entity orders -o json
  duobus key list --data ./bus
"""
_SHOW: Final = """
\b
Example:
  duobus key show RootManageSharedAccessKey --data ./bus
  duobus key show reader --query primaryConnectionString -o tsv
"""
_ADD: Final = """
\b
Example:
  duobus key add reader --rights listen
  duobus key add billing --rights send,listen --entity orders
"""
_ROTATE: Final = """
\b
Example:
  duobus key rotate reader --which secondary
  duobus key rotate reader --which swap
"""
_REMOVE: Final = """
\b
Example:
  duobus key remove reader --yes
"""

_ENTITY: Final = click.option("--entity", help="Of this queue, topic or relay; without it, of the namespace.")
_NAMESPACE: Final = click.option(
    "--namespace", help="With --data and several namespaces, while no server runs: which one."
)


def _name(text: str) -> str:
    """The name of a rule; it is a part of an address on its way to a server."""
    if text in {"", ".", ".."}:
        raise click.BadParameter(f"{text!r} is no name of an access rule.")
    return text


@click.group(name="key", no_args_is_help=True)
def command() -> None:
    """List, show, add, rotate and remove access rules and their keys.

    With --data the server is found by its data folder; when it does not run, its catalog is changed there.
    """


def _told(record: Record) -> Record:
    """A record as it is printed: with times that people read."""
    found = dict(record)
    for name in ("created", "modified"):
        time_ms = found.pop(f"{name}Ms", None)
        found[f"{name}At"] = None if time_ms is None else (_EPOCH + timedelta(milliseconds=time_ms)).isoformat()
    return found


def _print(record: Record, output: str | None) -> None:
    with Printer(output, is_one=True) as printer:
        printer.print([_told(record)])


@command.command(name="list", epilog=_LIST)
@click.option("--entity", help="Only those of this queue, topic or relay.")
@_NAMESPACE
@remote_command(is_chosen_later=True)
def list_rules(server: ServerChoice, entity: str | None, namespace: str | None, output: str | None) -> None:
    """List access rules, without their keys.

    Those of the namespace and of its queues, topics and relays.
    """
    with rules_of(server, namespace) as rules:
        found = rules.listed(entity)
    with Printer(output, _COLUMNS) as printer:
        printer.print(map(_told, found))


@command.command(epilog=_SHOW)
@click.argument("name", type=_name)
@_ENTITY
@_NAMESPACE
@remote_command(is_chosen_later=True)
def show(server: ServerChoice, name: str, entity: str | None, namespace: str | None, output: str | None) -> None:
    """Show an access rule with both keys and connection strings."""
    with rules_of(server, namespace) as rules:
        found = rules.shown(entity, name)
    _print(found, output)


def _rights(text: str) -> int:
    try:
        return rights_of(text.split(","))
    except ArgumentInvalid as error:
        raise click.BadParameter(str(error)) from None


@command.command(epilog=_ADD)
@click.argument("name", type=_name)
@click.option(
    "--rights",
    required=True,
    multiple=True,
    type=_rights,
    metavar="RIGHT",
    help="What it allows: listen, send, manage, several with commas; manage has the others. Repeatable.",
)
@_ENTITY
@_NAMESPACE
@remote_command(is_chosen_later=True)
def add(
    server: ServerChoice,
    name: str,
    rights: tuple[int, ...],
    entity: str | None,
    namespace: str | None,
    output: str | None,
) -> None:
    """Add an access rule with two new keys, and show it."""
    wanted = 0
    for right in rights:
        wanted |= right
    with rules_of(server, namespace) as rules:
        found = rules.change(entity, RuleChange(verb=ADD, name=name, rights=wanted))
    _print(found, output)


@command.command(epilog=_ROTATE)
@click.argument("name", type=_name)
@click.option(
    "--which",
    required=True,
    type=click.Choice((PRIMARY, SECONDARY, SWAP)),
    help="The key that is replaced by a new one, while the other one stays; swap exchanges the two.",
)
@_ENTITY
@_NAMESPACE
@remote_command(is_chosen_later=True)
def rotate(
    server: ServerChoice, name: str, which: str, entity: str | None, namespace: str | None, output: str | None
) -> None:
    """Replace one key of an access rule, and show the rule.

    The other key stays as it is.

    What was open with the replaced key ends within 5 seconds. Let clients change to the other key first, and none ends.
    """
    change = RuleChange(verb=SWAP, name=name) if which == SWAP else RuleChange(verb=ROTATE, name=name, which=which)
    with rules_of(server, namespace) as rules:
        found = rules.change(entity, change)
    _print(found, output)


@command.command(epilog=_REMOVE)
@click.argument("name", type=_name)
@click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")
@_ENTITY
@_NAMESPACE
@remote_command(has_output=False, is_chosen_later=True)
def remove(server: ServerChoice, name: str, is_sure: bool, entity: str | None, namespace: str | None) -> None:
    """Remove an access rule: both of its keys open nothing any more.

    The last rule of a namespace with the right Manage stays.
    """
    if not is_sure:
        if not sys.stdin.isatty():
            raise click.UsageError(f"Give --yes to remove the access rule {name}.")
        click.confirm(f"Remove the access rule {name}? What is open with its keys ends.", abort=True, err=True)
    with rules_of(server, namespace) as rules:
        rules.change(entity, RuleChange(verb=REMOVE, name=name))
