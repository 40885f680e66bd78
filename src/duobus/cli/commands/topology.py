"""``duobus topology``: all entities of a namespace out of it, and into another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click

from duobus.cli.output import Commands, Printer, json_of
from duobus.cli.remote import Remote, is_duobus, operate, remote_command
from duobus.cli.topology.execution import make
from duobus.console.namespace.sdk_forms import entity_form, rule_form
from duobus.errors import ConfigurationError
from duobus.model.relay.description import relay_document
from duobus.model.topology.changes import TopologyChanges
from duobus.model.topology.document import NAMESPACE, document, parse_document, to_config, with_parameters

_COLUMNS: Final = ("operation", "kind", "path", "changes")
#: Bytes of a file that is imported: 10,000 entities with all their properties are some 5 MiB.
FILE_BYTES_MAX: Final = 32 << 20

_EXPORT: Final = """
\b
Example:
  duobus topology export > namespace.json
  duobus topology export --format config > Config.json
"""

_IMPORT: Final = """
\b
Example:
  duobus topology import namespace.json --dry-run
  duobus topology import Config.json
"""


@click.group(name="topology", cls=Commands, no_args_is_help=True)
def command() -> None:
    """Export and import all entities of a namespace."""


@command.command(epilog=_EXPORT)
@click.option(
    "--format",
    "form",
    type=click.Choice(("topology", "config")),
    default="topology",
    show_default=True,
    help="The document that import reads, or the emulator's Config.json.",
)
@click.option("--namespace", default=NAMESPACE, show_default=True, help="Name of the namespace in a Config.json.")
@click.option("--with-keys", is_flag=True, help="Export access rules, too, with their keys.")
@remote_command(has_output=False)
def export(remote: Remote, form: str, namespace: str, with_keys: bool) -> None:
    """Write queues, topics, subscriptions, rules and relays to standard output, as one JSON document."""
    with remote.administration("namespace") as client:
        found = read_topology(client, remote, with_keys=with_keys)
    if form == "config":
        for where in with_parameters(found):
            click.echo(f"The parameters of the rule {where} have no place in a Config.json.", err=True)
    click.echo(json_of(to_config(found, namespace) if form == "config" else found, indent=2))


def read_topology(client: Any, remote: Remote, *, with_keys: bool) -> dict[str, Any]:
    """Everything that a namespace has."""
    queues = [entity_form("queue", queue, with_keys=with_keys) for queue in client.list_queues()]
    topics = []
    for topic in client.list_topics():
        form = entity_form("topic", topic, with_keys=with_keys)
        form["subscriptions"] = sorted(_subscriptions(client, topic.name), key=lambda one: str(one["name"]).lower())
        topics.append(form)
    return document(queues, topics, read_relays(remote, with_keys=with_keys))


def read_relays(remote: Remote, *, with_keys: bool) -> list[dict[str, Any]] | None:
    """The relays of a duobus; None for a namespace of Azure or of the emulator, which has none."""
    if not is_duobus(remote):
        return None
    return [relay_document(form) for form in operate(remote, "GET", "relays", {"keys": str(with_keys).lower()})]


def _subscriptions(client: Any, topic: str) -> Iterator[dict[str, Any]]:
    for subscription in client.list_subscriptions(topic):
        form = entity_form("subscription", subscription, with_keys=False)
        rules = [rule_form(rule) for rule in client.list_rules(topic, subscription.name)]
        yield form | {"rules": sorted(rules, key=lambda rule: str(rule["name"]).lower())}


@command.command(name="import", epilog=_IMPORT)
@click.argument("file", type=click.File("rb"))
@click.option("--namespace", help="Which namespace of a Config.json.")
@click.option("--prune", is_flag=True, help="Delete what the file does not have, with all that is in it.")
@click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask, with --prune.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@remote_command()
def import_(
    remote: Remote,
    output: str | None,
    file: Any,
    namespace: str | None,
    prune: bool,
    is_sure: bool,
    dry_run: bool,
) -> None:
    """Make a namespace as a file describes it; a second run changes nothing. - reads standard input."""
    if prune and not is_sure and not dry_run:
        raise click.UsageError("Give --yes to delete what the file does not have, or --dry-run.")
    wanted = _read(file, namespace)
    with remote.administration("namespace") as client, Printer(output, _COLUMNS) as printer:
        plan = TopologyChanges(read_topology(client, remote, with_keys=True), wanted, prunes=prune)
        counts = {"create": 0, "update": 0, "delete": 0, "conflict": 0}
        try:
            for step in plan.steps():
                if not dry_run:
                    make(step, client, remote)
                printer.print([step.record()])
                counts[step.operation] += 1
        except BaseException:
            if not dry_run:
                click.echo(f"Done before the failure: {_told(counts)}.", err=True)
            raise
    conflicts = counts["conflict"]
    click.echo(f"{'Would do' if dry_run else 'Done'}: {_told(counts)}. Left: {conflicts}.", err=True)
    if conflicts:
        raise SystemExit(7)


def _told(counts: dict[str, int]) -> str:
    return ", ".join(f"{operation} {number}" for operation, number in counts.items() if operation != "conflict")


def _read(file: Any, namespace: str | None) -> dict[str, Any]:
    data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise click.ClickException(f"The file is larger than {FILE_BYTES_MAX} bytes.")
    try:
        wanted, warnings = parse_document(data, namespace)
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from None
    for warning in warnings:
        click.echo(warning, err=True)
    return wanted
