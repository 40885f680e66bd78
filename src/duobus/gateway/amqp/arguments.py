"""What a client says in the map of a request or an attach, of the kind that it should be."""

from __future__ import annotations

from typing import Any, TypeVar

from duobus.codec import Array
from duobus.errors import ArgumentInvalid

_Kind = TypeVar("_Kind")


def demand(value: object, kind: type[_Kind], text: str) -> _Kind:
    """The value, which is of this kind.

    Raises:
        ArgumentInvalid: It is of another one; in the words of ``text``.
    """
    if not isinstance(value, kind):
        raise ArgumentInvalid(text)
    return value


def is_integer(value: object) -> bool:
    """Whether a value is an integer of any width; a boolean is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def integer_of(body: dict[Any, Any], name: str, default: int | None) -> int:
    """An integer of a request.

    Raises:
        ArgumentInvalid: It is none; or it is missing, where there is no default.
    """
    value: Any = body.get(name, default)
    if not is_integer(value):
        raise ArgumentInvalid(f"'{name}' must be an integer.")
    return int(value)


def text_of(body: dict[Any, Any], name: str) -> str | None:
    """A string of a request, or None when it is missing.

    Raises:
        ArgumentInvalid: It is something else.
    """
    value = body.get(name)
    # A symbol is a str of the codec's own, which the store does not know.
    return None if value is None else str(demand(value, str, f"'{name}' must be a string."))


def map_of(value: object) -> dict[Any, Any]:
    """The value if it is a map, else an empty one."""
    return value if isinstance(value, dict) else {}


def items_of(value: object) -> list[Any]:
    """The items of an array or a list; none of anything else."""
    items = value.items if isinstance(value, Array) else value
    return items if isinstance(items, list) else []
