"""Rule: a description that was checked and compiled."""

from __future__ import annotations

from duobus.model.description import RuleDescription


class Rule:
    """A compiled rule; made by ``compile_rule`` alone, and safe to share between fragments.

    Attributes:
        name: Of the rule; altered copies carry it as ``RuleName``.
        is_true: Takes every message and alters none.
        has_action: Each message that it takes gives a copy of its own.
        is_correlation: Counts against the limit of correlation filters, otherwise of SQL filters (E.7).
    """

    __slots__ = ("description", "has_action", "is_correlation", "is_true", "name")

    def __init__(self, description: RuleDescription) -> None:
        self.description = description
        self.name = description.name
        self.has_action = description.sql_action is not None
        self.is_true = description.filter_type == "True" and not self.has_action
        self.is_correlation = description.filter_type == "Correlation"


def compile_rule(description: RuleDescription) -> Rule:
    """Check and compile a rule.

    Raises:
        ArgumentInvalid: The text is no rule; the error names the position and what was expected.
        ArgumentOutOfRange: It is one, and beyond a limit.
    """
    return Rule(description)
