"""Trying a rule on a message: whether it matches, what each part of it evaluated to, and what it changes.

Nothing here is any rule's own: a trial compiles what it is given, and one of an existing rule uses that as it is. What
a trial may cost is bounded as for a rule: by the length of its text, and by ``duobus.rules.effort`` for long values.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from duobus.errors import ArgumentInvalid, ServiceBusError
from duobus.model.descriptions import RuleDescription
from duobus.model.metadata import MessageMetadata
from duobus.model.overlay import Overlay
from duobus.rules.actions import Action
from duobus.rules.correlation import correlates, parse_correlation, read_field
from duobus.rules.effort import EffortExceeded
from duobus.rules.language.compiler import Compiler
from duobus.rules.language.extents import Extents, parts_of
from duobus.rules.language.literals import parse_parameters, typed_value
from duobus.rules.language.parser import parse_filter
from duobus.rules.language.tree import (
    Arithmetic,
    Compare,
    Constant,
    Exists,
    In,
    IsNull,
    Like,
    Logic,
    NewId,
    Node,
    Not,
    Parameter,
    Property,
    PropertyOf,
    Signed,
)
from duobus.rules.message_view import MessageView
from duobus.rules.rule import CORRELATION, SQL, Rule, compile_rule
from duobus.rules.system_properties import APPLICATION_SECTION, ENVELOPE, PLACES, PROPERTIES_SECTION
from duobus.rules.values import EvaluationError

#: Parts of an expression that a trial tells; its text allows some 500.
TERMS_MAX: Final = 1_000
#: Characters of a text that a trial shows of a value.
TEXT_SHOWN_MAX: Final = 1_024

_POSITION: Final = re.compile(r"at position (\d+)")
_EVERYTHING: Final = PROPERTIES_SECTION | APPLICATION_SECTION | ENVELOPE
_SYSTEM_NAMES: Final = {place: name for name, place in PLACES.items() if name != "subject"}
_UNKNOWN: Final = "unknown"
_KINDS: Final = {
    Arithmetic: "arithmetic",
    Compare: "comparison",
    Exists: "exists",
    In: "in",
    IsNull: "is null",
    Like: "like",
    NewId: "function",
    Not: "not",
    Parameter: "parameter",
    Property: "property",
    PropertyOf: "function",
    Signed: "sign",
}


class Mistake(NamedTuple):
    """Why a text is no rule.

    Attributes:
        part: ``filter`` or ``action``.
        position: Where in its text, from 1 on; None where the mistake has no place.
        text: What is wrong.
    """

    part: str
    position: int | None
    text: str


class Term(NamedTuple):
    """What a part of a filter evaluated to.

    Attributes:
        kind: Of the part: ``comparison``, ``and``, ``property`` and so on; ``equality`` in a correlation filter.
        start: Position of its first character in the filter, from 1 on; None in a correlation filter.
        end: Position of its last character.
        text: The part itself.
        type: Of the value: ``boolean``, ``string``, ``long`` and so on; ``unknown`` when there is none.
        value: As JSON has it.
        error: Why there is no value.
    """

    kind: str
    start: int | None
    end: int | None
    text: str
    type: str
    value: Any
    error: str | None = None


class Trial(NamedTuple):
    """What came of it.

    Attributes:
        matches: None when the rule has a mistake, or fails on this message.
        error: Why its filter fails on this message.
        terms: Of the filter, in the order of their places.
        overlay: What the action changes; None without one, or where the rule does not match.
        action_error: Why the action fails.
        mistake: Why it is no rule.
    """

    matches: bool | None
    error: str | None = None
    terms: tuple[Term, ...] = ()
    overlay: Overlay | None = None
    action_error: str | None = None
    mistake: Mistake | None = None


def try_description(
    description: RuleDescription,
    payload: bytes,
    metadata: MessageMetadata | None,
    *,
    enqueued_ms: int,
    new_id: Callable[[], uuid.UUID],
) -> Trial:
    """Try a rule that nobody has made yet on a message."""
    mistake = _mistake_in(description)
    if mistake is not None:
        return Trial(None, mistake=mistake)
    trial = try_rule(compile_rule(description), view_of(payload, metadata, enqueued_ms, new_id))
    # A view of its own: what the parts cost is not to fail the rule.
    view = view_of(payload, metadata, enqueued_ms, new_id)
    return trial._replace(terms=tuple(_terms(description, view)))


def try_rule(rule: Rule, view: MessageView) -> Trial:
    """Try a compiled rule on a message, without its terms; rules that share a view share what they may cost."""
    try:
        view.need(rule.sections)
        matches = bool(rule.test(view))
    except (EvaluationError, EffortExceeded) as error:
        return Trial(None, error=f"Rule {rule.name!r} cannot be evaluated: {error}.")
    if rule.action is None or not matches:
        return Trial(matches)
    try:
        return Trial(matches, overlay=rule.action.apply(view))
    except (EvaluationError, EffortExceeded) as error:
        return Trial(matches, action_error=f"Rule {rule.name!r} cannot be evaluated: {error}.")


def view_of(
    payload: bytes, metadata: MessageMetadata | None, enqueued_ms: int, new_id: Callable[[], uuid.UUID]
) -> MessageView:
    """Return a message as rules see it."""
    view = MessageView(payload, metadata, enqueued_ms)
    view.new_id = new_id
    return view


def _mistake_in(description: RuleDescription) -> Mistake | None:
    """The first mistake of a rule, its filter before its action."""
    try:
        compile_rule(_without_action(description))
    except ServiceBusError as error:
        return _mistake("filter", error)
    if description.sql_action is None:
        return None
    try:
        Action(description.sql_action, parse_parameters(description.action_parameters), description.name)
    except ServiceBusError as error:
        return _mistake("action", error)
    return None


def _without_action(description: RuleDescription) -> RuleDescription:
    return RuleDescription(
        name=description.name,
        filter_type=description.filter_type,
        sql_filter=description.sql_filter,
        correlation_filter=description.correlation_filter,
        sql_parameters=description.sql_parameters,
    )


def _mistake(part: str, error: ServiceBusError) -> Mistake:
    found = _POSITION.search(str(error))
    return Mistake(part, None if found is None else int(found[1]), str(error))


def _terms(description: RuleDescription, view: MessageView) -> Iterator[Term]:
    try:
        view.need(_EVERYTHING)
    except EvaluationError:
        # The rule has told that.
        return
    if description.filter_type == CORRELATION:
        for field, wanted in parse_correlation(description.correlation_filter or {}).items():
            found = read_field(view, field)
            name = _SYSTEM_NAMES[field] if isinstance(field, int) else field
            yield _term("equality", (None, None), name, found is not None and correlates(wanted, found))
    elif description.filter_type == SQL:
        yield from _terms_of_sql(description, view)


def _terms_of_sql(description: RuleDescription, view: MessageView) -> Iterator[Term]:
    text = description.sql_filter or ""
    compiler, extents = Compiler(parse_parameters(description.sql_parameters)), Extents(text)
    placed = sorted(
        ((extents.of(node), node) for node in _nodes(parse_filter(text))), key=lambda one: (one[0][0], -one[0][1])
    )
    for (start, end), node in placed[:TERMS_MAX]:
        kind, part = _kind_of(node), text[start - 1 : end]
        try:
            yield _term(kind, (start, end), part, compiler.value(node).run(view))
        except (EvaluationError, EffortExceeded) as error:
            yield Term(kind, start, end, part, _UNKNOWN, None, str(error))


def _kind_of(node: Node) -> str:
    if isinstance(node, Logic):
        return "and" if node.is_and else "or"
    return _KINDS[type(node)]


def _nodes(node: Node) -> Iterator[Node]:
    """A node and all below it but constants, which tell nothing."""
    if not isinstance(node, Constant):
        yield node
        for part in parts_of(node):
            yield from _nodes(part)


def _term(kind: str, place: tuple[int | None, int | None], text: str, value: Any) -> Term:
    name, shown = _shown(value)
    return Term(kind, *place, text, name, shown)


def _shown(value: Any) -> tuple[str, Any]:
    """The type of a value, and the value as JSON has it."""
    if value is None:
        return _UNKNOWN, None
    try:
        typed = typed_value(value)
    except ArgumentInvalid:
        return "other", None
    if type(value) is bool or type(value) is int or (type(value) is float and value - value == 0):
        return typed.type, value
    return typed.type, typed.value[:TEXT_SHOWN_MAX]
