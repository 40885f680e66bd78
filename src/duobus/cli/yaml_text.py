"""YAML of what JSON can tell. Texts that could be taken for something else are quoted as in JSON, which YAML reads."""

from __future__ import annotations

import json
import re
from typing import Any, Final

#: Texts that mean themselves in every YAML there is: no sign with a meaning, no number, no date.
_PLAIN: Final = re.compile(r"[A-Za-z_$/][A-Za-z0-9_$/.@+-]*(?: [A-Za-z0-9_$/.@+-]+)*", re.ASCII)
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"})


def yaml_of(value: Any) -> str:
    """Return a value in the block form, without a line end behind it."""
    return "\n".join(_lines(value))


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for name, item in value.items() for line in _member(f"{_scalar(name)}:", item)]
    if isinstance(value, list) and value:
        return [line for item in value for line in _item(item)]
    return [_scalar(value)]


def _member(head: str, item: Any) -> list[str]:
    if isinstance(item, dict | list) and item:
        return [head, *(f"  {line}" for line in _lines(item))]
    return [f"{head} {_scalar(item)}"]


def _item(item: Any) -> list[str]:
    first, *others = _lines(item)
    return [f"- {first}", *(f"  {line}" for line in others)]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
