"""``duobus queue``, ``topic``, ``subscription``, ``rule`` and ``namespace``: entities, a table of properties each."""

from __future__ import annotations

from typing import Any, Final

import click

from duobus.cli.entity_commands import Noun, PropertyOption, group_of, options_of
from duobus.cli.options import pair
from duobus.cli.output import ALARM, BYTES, FLAG, NUMBER, SQL, Column, Commands, Printer
from duobus.cli.purge_command import purge_command
from duobus.cli.remote import Remote, remote_command
from duobus.console.namespace.sdk_forms import camel, plain
from duobus.model.properties import QUEUE, SUBSCRIPTION, TOPIC

_NAME: Final = Column("name", "name")
_STATUS: Final = Column("status", "status")
_ACTIVE: Final = Column("activeMessageCount", "active", NUMBER)
_DEAD: Final = Column("deadLetterMessageCount", "dead", ALARM)
_SCHEDULED: Final = Column("scheduledMessageCount", "scheduled", NUMBER)
_SIZE: Final = Column("sizeInBytes", "size", BYTES)
_PARTITIONED: Final = Column("enablePartitioning", "parts", FLAG)
_SESSIONS: Final = Column("requiresSession", "sessions", FLAG)
_LOCK: Final = Column("lockDuration", "lock")
_DELIVERIES: Final = Column("maxDeliveryCount", "tries", NUMBER)

queue = group_of(
    Noun(
        name=QUEUE,
        parents=(),
        properties=options_of(QUEUE),
        columns=(
            "name",
            "status",
            "enablePartitioning",
            "requiresSession",
            "lockDuration",
            "maxDeliveryCount",
            "activeMessageCount",
            "deadLetterMessageCount",
            "scheduledMessageCount",
            "sizeInBytes",
        ),
        table=(_NAME, _STATUS, _ACTIVE, _DEAD, _SCHEDULED, _SIZE, _PARTITIONED, _SESSIONS),
        examples={
            "create": "orders --lock-duration PT1M",
            "show": "orders",
            "list": "-o table",
            "update": "orders --lock-duration PT2M --max-delivery-count 5",
            "delete": "orders --yes",
        },
    )
)
queue.add_command(purge_command(QUEUE, (), "orders --before 2026-01-31 --yes"))


# ``duobus namespace``: what a namespace says of itself.

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


@click.group(name="namespace", cls=Commands, no_args_is_help=True)
def namespace() -> None:
    """Show the namespace."""


@namespace.command(name="show", epilog=_SHOW)
@remote_command()
def show(remote: Remote, output: str | None) -> None:
    """Show name, tier and times of the namespace; any good key or token is enough."""
    with remote.administration("namespace") as client:
        found = client.get_namespace_properties()
        record: dict[str, Any] = {camel(name): plain(getattr(found, name, None)) for name in _MEMBERS}
    with Printer(output, is_one=True) as printer:
        printer.print([{name: value for name, value in record.items() if value is not None}])


# ``duobus rule``: manage the rules of a subscription, each a filter and perhaps an action.

_FILTER: Final = PropertyOption(("--filter-sql-expression",), "sql", str, "SQL filter, as in \"colour = 'red'\".")
_ACTION: Final = PropertyOption(
    ("--action-sql-expression",), "action", str, 'What is done to a match, as in "SET a = 1".'
)

#: Option and its member of a correlation filter.
_CORRELATION: Final = tuple(
    PropertyOption((f"--{name.replace('_', '-')}",), name, str, f"Match messages with this {text}.")
    for name, text in (
        ("correlation_id", "correlation id"),
        ("message_id", "message id"),
        ("to", "address"),
        ("reply_to", "address to reply to"),
        ("label", "subject"),
        ("session_id", "session id"),
        ("reply_to_session_id", "session id to reply to"),
        ("content_type", "content type"),
    )
)
_PROPERTIES: Final = PropertyOption(
    ("--correlation-filter-property",), "properties", pair, "Match this property, NAME=TEXT. Repeatable.", is_many=True
)


def _converted(given: dict[str, Any]) -> dict[str, Any]:
    """The SDK's filter and action."""
    try:
        from azure.servicebus.management import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter
    except ImportError as error:
        raise click.ClickException("This command needs the SDK: pip install 'duobus[ha]'") from error
    found: dict[str, Any] = {}
    action, sql = given.pop("action", None), given.pop("sql", None)
    if sql is not None and given:
        raise click.UsageError(
            "A rule has one filter: give --filter-sql-expression or what a correlation filter matches."
        )
    if "properties" in given:
        given["properties"] = dict(given["properties"])
    if sql is not None:
        found["filter"] = SqlRuleFilter(sql)
    elif given:
        found["filter"] = CorrelationRuleFilter(**given)
    if action is not None:
        found["action"] = SqlRuleAction(action)
    return found


rule = group_of(
    Noun(
        name="rule",
        parents=("topic", "subscription"),
        properties=(_FILTER, _ACTION, *_CORRELATION, _PROPERTIES),
        columns=("name", "filter", "action"),
        table=(_NAME, Column("filter", "filter", SQL), Column("action", "action", SQL)),
        examples={
            "create": 'prices alerts steep --filter-sql-expression "change > 5"',
            "show": "prices alerts steep",
            "list": "prices alerts",
            "update": "prices alerts steep --action-sql-expression \"SET sys.Label = 'steep'\"",
            "delete": "prices alerts steep --yes",
        },
        convert=_converted,
    )
)


# ``duobus subscription``: manage the subscriptions of a topic.

subscription = group_of(
    Noun(
        name=SUBSCRIPTION,
        parents=("topic",),
        properties=options_of(SUBSCRIPTION),
        columns=(
            "name",
            "status",
            "requiresSession",
            "lockDuration",
            "maxDeliveryCount",
            "activeMessageCount",
            "deadLetterMessageCount",
        ),
        table=(_NAME, _STATUS, _ACTIVE, _DEAD, _SESSIONS, _LOCK, _DELIVERIES),
        examples={
            "create": "prices alerts --lock-duration 90s",
            "show": "prices alerts",
            "list": "prices",
            "update": "prices alerts --max-delivery-count 5",
            "delete": "prices alerts --yes",
        },
    )
)
subscription.add_command(purge_command(SUBSCRIPTION, ("topic",), "prices alerts --dead-letters --yes"))


# ``duobus topic``: manage topics.

topic = group_of(
    Noun(
        name=TOPIC,
        parents=(),
        properties=options_of(TOPIC),
        columns=(
            "name",
            "status",
            "enablePartitioning",
            "defaultMessageTimeToLive",
            "subscriptionCount",
            "scheduledMessageCount",
            "sizeInBytes",
        ),
        table=(
            _NAME,
            _STATUS,
            Column("subscriptionCount", "subscriptions", NUMBER),
            _SCHEDULED,
            _SIZE,
            _PARTITIONED,
        ),
        examples={
            "create": "prices --default-message-time-to-live 1d",
            "show": "prices",
            "list": "-o table",
            "update": "prices --default-message-time-to-live 1d",
            "delete": "prices --yes",
        },
    )
)
