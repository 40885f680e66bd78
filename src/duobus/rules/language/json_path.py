"""Conditions on a JSON body: ``$.order.lines[*].price > 10``.

A path of names and indexes, ``[*]`` for any element or member; behind it nothing (the place exists), or a comparison
with a JSON literal. Several conditions are joined with ``&&``. Numbers are compared with numbers and text with text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from duobus.errors import ArgumentInvalid

#: Longest text of conditions, and most conditions in it.
TEXT_LENGTH_MAX: Final = 1_024
CONDITIONS_MAX: Final = 16
#: Places in one body that one condition looks at: a path with several ``[*]`` may name very many.
PLACES_MAX: Final = 10_000

#: Any element of a list, any member of an object.
_EVERY: Final = object()

_STEP: Final = re.compile(
    r"""\.(?P<name>[^\W\d][\w-]*)|\[(?P<index>\d{1,9})\]|(?P<every>\[\*\]|\.\*)"""
    r"""|\[(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]"""
)
_OPERATOR: Final = re.compile(r"\s*(==|=|!=|<>|<=|>=|<|>)\s*")
_AND: Final = re.compile(r"\s*&&\s*")
_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}
_DECODER: Final = json.JSONDecoder()


class _Condition:
    __slots__ = ("literal", "operator", "steps")

    def __init__(self, steps: list[Any], operator: str | None, literal: Any) -> None:
        self.steps = steps
        self.operator = operator
        self.literal = literal

    def holds(self, document: Any) -> bool:
        left = [PLACES_MAX]
        found = _places(document, self.steps, 0, left)
        if self.operator is None:
            return next(found, _EVERY) is not _EVERY
        return any(_compares(place, self.operator, self.literal) for place in found)


class JsonCondition:
    """Compiled conditions; ``holds`` tells whether a body fulfils all of them."""

    __slots__ = ("_conditions",)

    def __init__(self, text: str) -> None:
        """Compile them.

        Raises:
            ArgumentInvalid: The text is no condition; the error says where.
        """
        if len(text) > TEXT_LENGTH_MAX:
            raise ArgumentInvalid(f"The JSON condition has {len(text)} characters; at most {TEXT_LENGTH_MAX} may be.")
        self._conditions: list[_Condition] = []
        pos = 0
        while True:
            condition, pos = _condition(text, pos)
            self._conditions.append(condition)
            joined = _AND.match(text, pos)
            if joined is None:
                break
            pos = joined.end()
        if text[pos:].strip():
            raise _fault(text, pos, "'&&' or the end is expected")
        if len(self._conditions) > CONDITIONS_MAX:
            raise ArgumentInvalid(f"At most {CONDITIONS_MAX} JSON conditions are allowed.")

    def holds(self, body: bytes | str) -> bool:
        """Whether a body is JSON and fulfils every condition."""
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return False
        return all(condition.holds(document) for condition in self._conditions)


def _condition(text: str, pos: int) -> tuple[_Condition, int]:
    while text[pos : pos + 1].isspace():
        pos += 1
    if text[pos : pos + 1] != "$":
        raise _fault(text, pos, "'$' is expected")
    pos += 1
    steps: list[Any] = []
    while (match := _STEP.match(text, pos)) is not None:
        steps.append(_step(match, text, pos))
        pos = match.end()
    operator = _OPERATOR.match(text, pos)
    if operator is None:
        return _Condition(steps, None, None), pos
    literal, pos = _literal(text, operator.end())
    sign = operator[1]
    if sign in _COMPARISONS and not isinstance(literal, int | float | str):
        raise _fault(text, operator.start(), f"'{sign}' compares with numbers and text only")
    return _Condition(steps, {"==": "=", "<>": "!="}.get(sign, sign), literal), pos


def _step(match: re.Match[str], text: str, pos: int) -> Any:
    if match["every"] is not None:
        return _EVERY
    if match["name"] is not None:
        return match["name"]
    if match["index"] is not None:
        return int(match["index"])
    return _quoted(match["quoted"], text, pos)


def _quoted(quoted: str, text: str, pos: int) -> str:
    if quoted[0] == "'":
        quoted = '"' + quoted[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
    try:
        found = json.loads(quoted)
    except ValueError:
        raise _fault(text, pos, "the text in quotes has a wrong escape") from None
    assert isinstance(found, str)
    return found


def _literal(text: str, pos: int) -> tuple[Any, int]:
    single = re.compile(r"'(?:[^'\\]|\\.)*'").match(text, pos)
    if single is not None:
        return _quoted(single[0], text, pos), single.end()
    try:
        return _DECODER.raw_decode(text, pos)
    except (ValueError, RecursionError):
        raise _fault(text, pos, "a text in quotes, a number, true, false or null is expected") from None


def _fault(text: str, pos: int, what: str) -> ArgumentInvalid:
    return ArgumentInvalid(f"JSON condition, position {pos + 1}: {what}, not {text[pos : pos + 20]!r}.")


def _places(document: Any, steps: list[Any], depth: int, left: list[int]) -> Iterator[Any]:
    if left[0] <= 0:
        return
    left[0] -= 1
    if depth == len(steps):
        yield document
        return
    step = steps[depth]
    if step is _EVERY:
        inside = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
        for item in inside:
            yield from _places(item, steps, depth + 1, left)
    elif isinstance(step, int):
        if isinstance(document, list) and step < len(document):
            yield from _places(document[step], steps, depth + 1, left)
    elif isinstance(document, dict) and step in document:
        yield from _places(document[step], steps, depth + 1, left)


def _compares(value: Any, operator: str, literal: Any) -> bool:
    is_equal = value == literal and isinstance(value, bool) == isinstance(literal, bool)
    if operator in ("=", "!="):
        return is_equal is (operator == "=")
    if isinstance(value, bool) or isinstance(literal, bool):
        return False
    if isinstance(value, str) != isinstance(literal, str) or not isinstance(value, int | float | str):
        return False
    return _COMPARISONS[operator](value, literal)
