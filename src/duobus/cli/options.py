"""Values of options that click does not know."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import click

from duobus.spark.options import CHOICE, CONNECTION_OPTIONS, NUMBER, SWITCH, Option


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


def instant(text: str) -> datetime:
    """Read a time in the form of ISO 8601; without a zone, the time is in UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time; write it like 2026-01-31 or 2026-01-31T12:00:00Z.") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


# Options of the data source and of jobs as options of the command line: ``maxWaitTime`` is ``--max-wait-time``.

#: Of the connection, what a command line may hold: never the connection string itself, which everybody on the machine
#: could read there.
_CONNECTION = tuple(option for option in CONNECTION_OPTIONS if not option.is_secret)


#: Under names of their own, since other commands have an ``--endpoint`` that is something else.
_RENAMED: Final = {"endpoint": "--namespace-host", "toEndpoint": "--to-namespace-host"}


def kebab(name: str) -> str:
    """The name of an option on the command line."""
    return _RENAMED.get(name) or "--" + re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def click_options(options: Iterable[Option], *, connects: bool) -> list[click.Parameter]:
    """The options of a job, then those of the connection if it has one."""
    own = list(options)
    named = {option.name for option in own}
    others = [option for option in _CONNECTION if connects and option.name not in named]
    return [_made(option) for option in (*own, *others)]


def _made(option: Option) -> click.Option:
    kind: Any = str
    if option.kind == CHOICE:
        kind = click.Choice(option.choices)
    elif option.kind == NUMBER:
        kind = click.IntRange(option.least, option.most)
    elif option.kind == SWITCH:
        kind = click.Choice(("true", "false"))
    text = option.meaning[:1].upper() + option.meaning[1:] + "."
    if option.default is not None:
        # Not click's default: what a file says must not be overruled by it.
        text += f" [default: {option.default}]"
    names = [kebab(option.name)]
    # "from" is no name that Python would take.
    names.append(re.sub(r"(?<!^)(?=[A-Z])", "_", option.name).lower() + "_")
    if option.kind == SWITCH and option.default == "false":
        # The name alone switches it on.
        return click.Option(names, type=kind, help=text, is_flag=False, flag_value="true")
    return click.Option(names, type=kind, help=text)
