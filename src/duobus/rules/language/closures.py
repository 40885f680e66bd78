"""The closures that run for each message. Every one is short, because a call is what costs here.

``message`` is a MessageView: ``user`` maps exact and lower-case names to values, ``system`` is a row of values.
"""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from duobus.rules.language.operators import COMPARISONS, calculate, equal, kind_of
from duobus.rules.like import SHORT, STEP, Pattern
from duobus.rules.values import EXACT_BELOW, EvaluationError

Run = Callable[[Any], Any]

#: Characters of long texts that are compared or copied in the time of one, at least.
AT_ONCE: Final = 4

#: A comparison with its sides exchanged.
MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}

_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


# -- properties -------------------------------------------------------------------------------------------------------


def read_user(name: str) -> Run:
    """A user property: the exact name first, then any that differs only in case."""
    low = name.lower()
    if low == name:
        return lambda message: message.user.get(low)

    def read(message: Any) -> Any:
        user = message.user
        return user[name] if name in user else user.get(low)

    return read


def read_computed(name_of: Run) -> Run:
    """``property(name)``."""

    def read(message: Any) -> Any:
        name = name_of(message)
        if name is None:
            return None
        if type(name) is not str:
            raise EvaluationError(f"property() takes a name, not {kind_of(name)}")
        if len(name) > SHORT:
            # Folding takes the most where it changes the letters.
            message.texts.spend(STEP + 20 * len(name))
        user = message.user
        return user[name] if name in user else user.get(name.lower())

    return read


# -- arithmetic -------------------------------------------------------------------------------------------------------


def chain(first: Run, rest: Sequence[tuple[str, Run]]) -> Run:
    """Several operators of one rank, from the left."""

    def run(message: Any) -> Any:
        value = first(message)
        for sign, other in rest:
            value = calculate(sign, value, other(message))
            if type(value) is str and len(value) > SHORT:
                message.texts.spend(STEP + len(value) // AT_ONCE)
        return value

    return run


# -- tests ------------------------------------------------------------------------------------------------------------


def is_guid_like(text: str) -> bool:
    """Whether a GUID may be equal to this text."""
    return len(text) == 36 and text.count("-") == 4


def is_exact(number: float) -> bool:
    """Whether comparing with this number is the same, whichever side is converted."""
    return -EXACT_BELOW < number < EXACT_BELOW


def compare_values(sign: str, left: Run, right: Run) -> Run:
    """Compare two values of any kind."""
    compare = COMPARISONS[sign]

    def run(message: Any) -> bool | None:
        one, other = left(message), right(message)
        if type(one) is str and len(one) > SHORT:
            message.texts.spend(STEP + len(one) // AT_ONCE)
        return compare(one, other)

    return run


def compare_constant(sign: str, read: Run, name: str | None, value: Any) -> Run | None:
    """Compare with a text or number that is known; None where the general way has to be gone.

    Args:
        sign: The operator.
        read: The other side.
        name: Name of the user property that the other side is, or None: it is something else.
        value: What is known.
    """
    compare = _OPERATORS[sign]
    if type(value) is str:
        general = COMPARISONS[sign]
        if sign == "=" and name is not None and name == name.lower():
            return _user_equals_text(name, value)

        def compare_text(message: Any) -> bool | None:
            found = read(message)
            if type(found) is str:
                return bool(compare(found, value))
            return None if found is None else general(found, value)

        return compare_text
    if type(value) in (int, float) and is_exact(value):
        if name is not None and name == name.lower():
            return _user_with_number(name, compare, value)

        def compare_number(message: Any) -> bool | None:
            found = read(message)
            kind = type(found)
            return bool(compare(found, value)) if kind is int or kind is float else None

        return compare_number
    return None


def _user_equals_text(name: str, value: str) -> Run:
    def run(message: Any) -> bool | None:
        found = message.user.get(name)
        if type(found) is str:
            return bool(found == value)
        return None if found is None else equal(found, value)

    return run


def _user_with_number(name: str, compare: Callable[[Any, Any], Any], value: float) -> Run:
    def run(message: Any) -> bool | None:
        found = message.user.get(name)
        kind = type(found)
        return compare(found, value) if kind is int or kind is float else None

    return run


def in_constants(read: Run, values: Sequence[Any]) -> Run | None:
    """Membership among texts only, or among numbers only; None where the general way has to be gone."""
    if all(type(value) is str and not is_guid_like(value) for value in values):
        texts = frozenset(values)

        def in_texts(message: Any) -> bool | None:
            found = read(message)
            if type(found) is str:
                return found in texts
            return False if type(found) is uuid.UUID else None

        return in_texts
    if all(type(value) in (int, float) and is_exact(value) for value in values):
        numbers = frozenset(values)

        def in_numbers(message: Any) -> bool | None:
            found = read(message)
            return found in numbers if type(found) in (int, float) else None

        return in_numbers
    return None


def in_items(read: Run, items: Sequence[Run]) -> Run:
    """``x IN (...)``: true if one is equal, else unknown if one comparison is, else false."""

    def run(message: Any) -> bool | None:
        found = read(message)
        if found is None:
            return None
        if type(found) is str and len(found) > SHORT:
            message.texts.spend((STEP + len(found) // AT_ONCE) * len(items))
        result: bool | None = False
        for item in items:
            same = equal(found, item(message))
            if same:
                return True
            if same is None:
                result = None
        return result

    return run


def like(read: Run, pattern: Pattern) -> Run:
    """LIKE with a pattern that is known."""
    matches = pattern.matches_short

    def run(message: Any) -> bool | None:
        found = read(message)
        if type(found) is not str:
            return None
        if len(found) <= SHORT:
            return matches(found)
        is_like: bool = message.texts.like(found, pattern)
        return is_like

    return run


def like_computed(read: Run, pattern_of: Run, escape_of: Run | None) -> Run:
    """LIKE with a pattern or escape character out of the message."""

    def run(message: Any) -> bool | None:
        found, pattern = read(message), pattern_of(message)
        escape = None
        if escape_of is not None:
            escape = escape_of(message)
            if escape is None:
                return None
        if pattern is None or type(found) is not str:
            return None
        if type(pattern) is not str or type(escape) not in (str, type(None)):
            raise EvaluationError("pattern and escape character of LIKE are strings")
        is_like: bool = message.texts.like_computed(found, pattern, escape)
        return is_like

    return run


def after(run: Run) -> Run:
    """Evaluate, since that may fail, and give unknown."""

    def unknown(message: Any) -> None:
        run(message)

    return unknown


# -- logic ------------------------------------------------------------------------------------------------------------


def demand_boolean(run: Run, what: str) -> Run:
    """The value, which has to be a boolean or unknown."""

    def checked(message: Any) -> bool | None:
        value = run(message)
        if value is None or value is True or value is False:
            return value
        raise EvaluationError(f"{what} is {kind_of(value)}, not a boolean")

    return checked


def negated(run: Run) -> Run:
    """NOT."""

    def invert(message: Any) -> bool | None:
        value = run(message)
        return None if value is None else not value

    return invert


def conjunction(runs: Sequence[Run]) -> Run:
    """AND with unknown; what stands behind a false operand is not evaluated."""

    def run(message: Any) -> bool | None:
        result: bool | None = True
        for operand in runs:
            value = operand(message)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return run


def disjunction(runs: Sequence[Run]) -> Run:
    """OR with unknown; what stands behind a true operand is not evaluated."""

    def run(message: Any) -> bool | None:
        result: bool | None = False
        for operand in runs:
            value = operand(message)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return run


def all_true(runs: Sequence[Run]) -> Run:
    """AND where only true counts, and no operand can fail."""
    if len(runs) == 2:
        first, second = runs
        return lambda message: first(message) and second(message)
    if len(runs) == 3:
        one, two, three = runs
        return lambda message: one(message) and two(message) and three(message)

    def run(message: Any) -> bool:
        for operand in runs:  # noqa: SIM110 - all() over a generator costs three times as much
            if not operand(message):
                return False
        return True

    return run


def any_true(runs: Sequence[Run]) -> Run:
    """OR where only true counts, and no operand can fail."""
    if len(runs) == 2:
        first, second = runs
        return lambda message: first(message) or second(message)

    def run(message: Any) -> bool:
        for operand in runs:  # noqa: SIM110 - any() over a generator costs three times as much
            if operand(message):
                return True
        return False

    return run
