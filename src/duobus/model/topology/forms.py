"""Entities and rules as plain forms: properties by the names that commands print, durations as ISO 8601 texts."""

from __future__ import annotations

from typing import Any

from duobus.model.descriptions import QueueDescription, RuleDescription, SubscriptionDescription, TopicDescription
from duobus.model.durations import format_duration
from duobus.model.properties import Form, Surface, properties_of

Described = QueueDescription | TopicDescription | SubscriptionDescription


def described(kind: str, about: Described, given: Surface, *, has_unset: bool = False) -> dict[str, Any]:
    """Name and properties of an entity, as far as they can be given on a surface.

    A property that is not set is left out, or with ``has_unset`` is None.
    """
    found: dict[str, Any] = {"name": about.name}
    for item in properties_of(kind, given):
        value: Any = getattr(about, item.field)
        if item.form is Form.MESSAGE_SIZE:
            value = value // 1024
        elif item.form is Form.DURATION or (item.form is Form.FINITE and value is not None):
            value = format_duration(value)
        if value is not None or has_unset:
            found[item.json_name] = value
    return found


def rule_described(rule: RuleDescription) -> dict[str, Any]:
    """A rule of a subscription."""
    condition: dict[str, Any] = {"type": rule.filter_type.lower()}
    if rule.sql_filter is not None:
        condition["sqlExpression"] = rule.sql_filter
    if rule.sql_parameters:
        condition["parameters"] = {name: [value.type, value.value] for name, value in rule.sql_parameters.items()}
    for name, value in (rule.correlation_filter or {}).items():
        condition[name[0].lower() + name[1:]] = value
    found: dict[str, Any] = {"name": rule.name, "filter": condition}
    if rule.sql_action is not None:
        found["action"] = {"sqlExpression": rule.sql_action}
        if rule.action_parameters:
            found["action"]["parameters"] = {
                name: [value.type, value.value] for name, value in rule.action_parameters.items()
            }
    return found
