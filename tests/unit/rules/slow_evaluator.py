"""The language once more, written from the description of the language alone: generated trees, their text, their value.

Trees are tuples; nothing here is shared with the engine, and nothing here is quick.
"""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "B", "c", "x y", "gone")


class SlowError(Exception):
    pass


# -- trees ------------------------------------------------------------------------------------------------------------

INTEGERS = st.integers(0, 9) | st.sampled_from([2**31, 2**53 + 1, 2**63 - 1])
TEXTS = st.text("abA%_'1", max_size=3)
CONSTANTS = st.one_of(
    INTEGERS, st.sampled_from([0.0, 0.5, 1.0, 2.5, 1e300, 9007199254740992.0]), TEXTS, st.booleans(), st.none()
)
VALUES = CONSTANTS | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-0.5, math.inf, b"raw"])
PROPERTIES = st.dictionaries(st.sampled_from(["a", "b", "B", "C", "c", "X y"]), VALUES, max_size=4)

_leaf = st.one_of(
    st.tuples(st.just("constant"), CONSTANTS),
    st.tuples(st.just("name"), st.sampled_from(NAMES)),
    st.tuples(st.just("name"), st.sampled_from(NAMES)),
)


def _sums(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.just("calculate"), st.sampled_from("+-*/%"), inner, inner),
        st.tuples(st.just("sign"), st.sampled_from("+-"), inner),
        st.tuples(st.just("property"), st.tuples(st.just("constant"), st.sampled_from(NAMES))),
        st.tuples(st.just("property"), inner.filter(lambda tree: tree[0] not in ("constant", "sign"))),
    )


LISTED_TEXTS = st.lists(st.tuples(st.just("constant"), TEXTS), min_size=1, max_size=3)
SUMS = st.recursive(_leaf, _sums, max_leaves=3)
_test = st.one_of(
    st.tuples(st.just("compare"), st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="]), SUMS, SUMS),
    st.tuples(st.just("compare"), st.just("="), st.tuples(st.just("name"), st.sampled_from(NAMES)), _leaf),
    st.tuples(st.just("in"), SUMS, st.lists(SUMS, min_size=1, max_size=3), st.booleans()),
    st.tuples(st.just("in"), SUMS, LISTED_TEXTS, st.booleans()),
    st.tuples(st.just("like"), SUMS, TEXTS, st.booleans()),
    st.tuples(st.just("null"), SUMS, st.booleans()),
    st.tuples(st.just("exists"), st.sampled_from(NAMES)),
    SUMS,
)


def _conditions(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=4)),
        st.tuples(st.just("compare"), st.just("="), inner, inner),
    )


TREES = st.recursive(_test, _conditions, max_leaves=6)

# -- text -------------------------------------------------------------------------------------------------------------

_RANKS = {"or": 0, "and": 1, "not": 2, "compare": 3, "in": 3, "like": 3, "null": 3, "exists": 3, "sign": 6}


def _rank(tree: Any) -> int:
    if tree[0] == "calculate":
        return 4 if tree[1] in "+-" else 5
    return _RANKS.get(tree[0], 7)


def _name(name: str) -> str:
    return name if name.isalnum() else f"[{name}]"


def _constant(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).upper().replace("NONE", "NULL")
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value).replace("e+", "E")


def text_of(tree: Any, rank: int = 0) -> str:
    """The text, with parentheses only where the ranks of E.3 ask for them."""
    if _rank(tree) < rank:
        return f"({text_of(tree)})"
    match tree:
        case ("constant", value):
            return _constant(value)
        case ("name", name):
            return _name(name)
        case ("calculate", sign, left, right):
            own = _rank(tree)
            return f"{text_of(left, own)} {sign} {text_of(right, own + 1)}"
        case ("sign", sign, value):
            return f"{sign}{text_of(value, 6)}"
        case ("property", name):
            return f"property({text_of(name, 4)})"
        case ("compare", sign, left, right):
            return f"{text_of(left, 4)} {sign} {text_of(right, 4)}"
        case ("in", value, items, negated):
            listed = ", ".join(text_of(item, 4) for item in items)
            return f"{text_of(value, 4)}{' NOT' if negated else ''} IN ({listed})"
        case ("like", value, pattern, negated):
            return f"{text_of(value, 4)}{' NOT' if negated else ''} LIKE {_constant(pattern)}"
        case ("null", value, negated):
            return f"{text_of(value, 4)} IS{' NOT' if negated else ''} NULL"
        case ("exists", name):
            return f"EXISTS({_name(name)})"
        case ("not", value):
            return f"NOT {text_of(value, 2)}"
        case (word, operands):
            return f" {word.upper()} ".join(text_of(operand, _rank(tree) + 1) for operand in operands)
    raise AssertionError(tree)


# -- value ------------------------------------------------------------------------------------------------------------


def _lookup(properties: dict[str, Any], name: str) -> tuple[bool, Any]:
    if name in properties:
        return True, properties[name]
    for other, value in properties.items():
        if other.lower() == name.lower():
            return True, value
    return False, None


def _class(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return {int: "number", float: "number", str: "text"}.get(type(value), "other")


def _compare(sign: str, left: Any, right: Any) -> Any:
    kinds = {_class(left), _class(right)}
    if left is None or right is None or len(kinds) > 1 or kinds == {"other"}:
        return None
    if kinds == {"boolean"} and sign not in ("=", "<>", "!="):
        return None
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    return {
        "=": left == right,
        "<>": left != right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[sign]


def _whole(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise SlowError("overflow")
    return value


def _calculate_whole(sign: str, left: int, right: int) -> int:
    if sign in "/%" and right == 0:
        raise SlowError("division by zero")
    if sign == "/":
        return _whole(abs(left) // abs(right) * (-1 if (left < 0) != (right < 0) else 1))
    if sign == "%":
        return _whole(abs(left) % abs(right) * (-1 if left < 0 else 1))
    return _whole({"+": left + right, "-": left - right, "*": left * right}[sign])


def _calculate_double(sign: str, left: float, right: float) -> float:
    if sign == "/":
        if right == 0:
            if left == 0 or math.isnan(left):
                return math.nan
            return math.inf if (left > 0) == (math.copysign(1, right) > 0) else -math.inf
        return left / right
    if sign == "%":
        return math.nan if right == 0 or math.isinf(left) else math.fmod(left, right)
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


def _calculate(sign: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    kinds = (_class(left), _class(right))
    if kinds == ("text", "text") and sign == "+":
        return left + right
    if kinds != ("number", "number"):
        raise SlowError("kinds")
    if isinstance(left, int) and isinstance(right, int):
        return _calculate_whole(sign, left, right)
    return _calculate_double(sign, float(left), float(right))


def _like(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(_like(text[index:], pattern[1:]) for index in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and _like(text[1:], pattern[1:])


def _boolean(value: Any) -> Any:
    if value is not None and not isinstance(value, bool):
        raise SlowError("no boolean")
    return value


def _not(value: Any) -> Any:
    return None if value is None else not value


def _in(value: Any, items: list[Any], properties: dict[str, Any]) -> Any:
    if value is None:
        return None
    result: bool | None = False
    for item in items:
        same = _compare("=", value, evaluate(item, properties))
        if same:
            return True
        if same is None:
            result = None
    return result


def evaluate(tree: Any, properties: dict[str, Any]) -> Any:
    """The value of a tree; SlowError where E.4 asks for an error."""
    match tree:
        case ("constant", value):
            return value
        case ("name", name):
            return _lookup(properties, name)[1]
        case ("calculate", sign, left, right):
            return _calculate(sign, evaluate(left, properties), evaluate(right, properties))
        case ("sign", sign, operand):
            value = evaluate(operand, properties)
            if value is None:
                return None
            if _class(value) != "number":
                raise SlowError("kinds")
            if sign == "+":
                return value
            return _whole(-value) if isinstance(value, int) else -value
        case ("property", operand):
            name = evaluate(operand, properties)
            if name is not None and not isinstance(name, str):
                raise SlowError("no name")
            return None if name is None else _lookup(properties, name)[1]
        case ("compare", sign, left, right):
            return _compare(sign, evaluate(left, properties), evaluate(right, properties))
        case ("in", operand, items, negated):
            found = _in(evaluate(operand, properties), items, properties)
            return _not(found) if negated else found
        case ("like", operand, pattern, negated):
            value = evaluate(operand, properties)
            found = _like(value, pattern) if isinstance(value, str) else None
            return _not(found) if negated else found
        case ("null", operand, negated):
            return (evaluate(operand, properties) is None) != negated
        case ("exists", name):
            return _lookup(properties, name)[0]
        case ("not", operand):
            return _not(_boolean(evaluate(operand, properties)))
        case (word, operands):
            decisive = word == "or"
            unknown = False
            for operand in operands:
                value = _boolean(evaluate(operand, properties))
                if value is decisive:
                    return decisive
                unknown = unknown or value is None
            return None if unknown else not decisive
    raise AssertionError(tree)


def verdict_of(tree: Any, properties: dict[str, Any]) -> str:
    try:
        return {True: "T", False: "F", None: "U"}[_boolean(evaluate(tree, properties))]
    except SlowError:
        return "E"
