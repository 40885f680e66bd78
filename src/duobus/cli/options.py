"""Values of options that click does not know."""

from __future__ import annotations

import json
from typing import Any

import click


def pair(text: str) -> tuple[str, Any]:
    """Read ``NAME=TEXT``, or ``NAME:=VALUE`` with a number, true or false in JSON's way of writing."""
    name, sign, value = text.partition("=")
    if not sign or name in {"", ":"}:
        raise click.BadParameter(f"{text!r} is not of the form NAME=TEXT or NAME:=VALUE.")
    if not name.endswith(":"):
        return name, value
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, bool | int | float):
        raise click.BadParameter(f"{value!r} is neither a number nor true or false.")
    return name[:-1], found
