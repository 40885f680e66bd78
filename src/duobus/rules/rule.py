"""Rule: a description that was checked and compiled; and what the rules of a topic give for a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from duobus.errors import ArgumentInvalid, ServiceBusError
from duobus.model.address import check_subscription_name
from duobus.model.descriptions import RuleDescription
from duobus.model.overlay import Overlay
from duobus.rules.actions import Action
from duobus.rules.correlation import CorrelationTest, key_of, parse_correlation
from duobus.rules.language.compiler import Run, compile_filter
from duobus.rules.language.literals import parse_parameters
from duobus.rules.language.parser import parse_filter
from duobus.rules.matching.index import Equalities, equalities_of
from duobus.rules.message_view import casefold_name
from duobus.rules.system_properties import DRAWS_ID, ENVELOPE, MESSAGE_ID, READS_ANY, READS_ID

SQL: Final = "Sql"
CORRELATION: Final = "Correlation"
TRUE: Final = "True"
FALSE: Final = "False"


def _always(_: Any) -> bool:
    return True


def _never(_: Any) -> bool:
    return False


class AlteredCopy:
    """A copy of its own, which one rule with an action asks for.

    Attributes:
        source: Number of the subscription's source.
        rule_name: Of the rule.
        overlay: What it changes, ``RuleName`` included.
    """

    __slots__ = ("overlay", "rule_name", "source")

    def __init__(self, source: int, rule_name: str, overlay: Overlay) -> None:
        self.source = source
        self.rule_name = rule_name
        self.overlay = overlay


class Match:
    """What one message gives.

    Attributes:
        sources: Sources that get one plain copy each, ascending: all their matching rules without action together.
        altered: Further copies, ordered by source and within one by the order in which its rules were added.
        errors: Source to the text of its first error, or None when there was none. The message goes to that
            subscription's dead-letter queue, once, if DeadLetteringOnFilterEvaluationExceptions says so; its other
            matching rules still deliver.
    """

    __slots__ = ("altered", "errors", "sources")

    def __init__(
        self, sources: tuple[int, ...], altered: Sequence[AlteredCopy] = (), errors: dict[int, str] | None = None
    ) -> None:
        self.sources = sources
        self.altered = altered
        self.errors = errors


class Rule:
    """A compiled rule; made by ``compile_rule`` alone, and safe to share between fragments.

    Attributes:
        name: Of the rule; altered copies carry it as ``RuleName``.
        is_true: Takes every message and alters none, whatever kind of filter says so.
        is_false: Takes no message.
        has_action: Each message that it takes gives a copy of its own.
        is_correlation: Counts against the limit of correlation filters, otherwise of SQL filters (Azure: quotas).
        test: MessageView to something true when it matches.
        action: What it changes, or None.
        can_fail: ``test`` may raise EvaluationError, though all sections can be read.
        steps: Of how many parts the filter consists.
        strain: How often ``test`` and ``action`` look at all of a long text, at most (``duobus.rules.effort``).
        sections: What ``test`` and ``action`` need decoded, as bits of ``duobus.rules.system_properties``.
        reads_id: The filter looks at the message-id.
        names: Folded names of the user properties that the filter looks at; None: it may look at any.
        is_steady: The filter gives the same for all messages with the same properties and application properties.
        equalities: What a message must have to match at all; empty when nothing of the kind is known.
    """

    __slots__ = (
        "action",
        "can_fail",
        "equalities",
        "has_action",
        "is_correlation",
        "is_false",
        "is_steady",
        "is_true",
        "name",
        "names",
        "reads_id",
        "sections",
        "steps",
        "strain",
        "test",
    )

    def __init__(self, name: str, filter_type: str, action: Action | None) -> None:
        self.name = name
        self.action = action
        self.has_action = action is not None
        self.is_true = filter_type == TRUE and action is None
        self.is_false = filter_type == FALSE
        self.is_correlation = filter_type == CORRELATION
        self.test: Run = _never if self.is_false else _always
        self.can_fail = False
        self.reads_id = False
        self.names: frozenset[str] | None = frozenset()
        self.is_steady = True
        self.sections = 0 if action is None else action.sections
        self.steps = 1
        self.strain = 0 if action is None else action.strain
        self.equalities: Equalities = {}


def compile_rule(description: RuleDescription) -> Rule:
    """Check and compile a rule.

    Raises:
        ArgumentInvalid: The text is no rule; the error names the position and what was expected.
        ArgumentOutOfRange: It is one, and beyond a limit.
    """
    check_subscription_name(description.name, kind="rule")
    action = None
    try:
        if description.sql_action is not None:
            action = Action(description.sql_action, parse_parameters(description.action_parameters), description.name)
        rule = Rule(description.name, description.filter_type, action)
        if description.filter_type == SQL:
            _compile_sql(rule, description)
        elif description.filter_type == CORRELATION:
            _compile_correlation(rule, description)
        elif description.filter_type not in (TRUE, FALSE):
            raise ArgumentInvalid(
                f"{description.filter_type!r} is no filter type; the types are Sql, Correlation, True and False."
            )
    except ServiceBusError as error:
        raise type(error)(f"Rule {description.name!r}: {error}") from None
    return rule


def _compile_sql(rule: Rule, description: RuleDescription) -> None:
    if description.sql_filter is None:
        raise ArgumentInvalid("An SQL filter needs an expression; for every message use a True filter.")
    parameters = parse_parameters(description.sql_parameters)
    node = parse_filter(description.sql_filter)
    code = compile_filter(node, parameters)
    rule.test = code.run
    rule.can_fail = code.can_fail
    rule.sections |= code.sections
    rule.steps = code.steps
    rule.strain += code.strain
    rule.reads_id = bool(code.traits & READS_ID)
    rule.names = None if code.traits & READS_ANY else code.names
    rule.is_steady = not (code.traits & DRAWS_ID or code.sections & ENVELOPE)
    if not code.can_fail:
        rule.equalities = equalities_of(node, parameters)
    if code.is_constant:
        # Clients without a True filter of their own write 1=1 for it, and 1=0 for False (Azure: AMQP request-response
        # operations).
        rule.is_true = code.value is True and rule.action is None
        rule.is_false = code.value is not True


def _compile_correlation(rule: Rule, description: RuleDescription) -> None:
    fields = parse_correlation(description.correlation_filter or {})
    test = CorrelationTest(fields)
    rule.test = test
    rule.sections |= test.sections
    rule.reads_id = MESSAGE_ID in fields
    rule.names = frozenset([casefold_name(field) for field in fields if isinstance(field, str)])
    rule.equalities = {field: (key_of(value),) for field, value in fields.items()}
