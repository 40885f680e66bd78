"""``duobus rule``: manage the rules of a subscription, each a filter and perhaps an action."""

from __future__ import annotations

from typing import Any, Final

import click

from duobus.cli.entity_commands import Noun, Property, group_of
from duobus.cli.options import pair

_FILTER: Final = Property(("--filter-sql-expression",), "sql", str, "SQL filter, as in \"colour = 'red'\".")
_ACTION: Final = Property(("--action-sql-expression",), "action", str, 'What is done to a match, as in "SET a = 1".')

#: Option and its member of a correlation filter.
_CORRELATION: Final = tuple(
    Property((f"--{name.replace('_', '-')}",), name, str, f"Match messages with this {text}.")
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
_PROPERTIES: Final = Property(
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


command = group_of(
    Noun(
        name="rule",
        parents=("topic", "subscription"),
        properties=(_FILTER, _ACTION, *_CORRELATION, _PROPERTIES),
        columns=("name", "filter", "action"),
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
