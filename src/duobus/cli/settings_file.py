"""The settings file of ``duobus serve``: its options in TOML, under the names that they have on the command line.

Which keys there are, and what each may hold, is read from the options themselves, so that a new option is a new key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from duobus.errors import ConfigurationError

#: Options that say where the settings are and what is done with them; these stand on the command line alone.
OWN_OPTIONS: Final = frozenset({"settings", "check-config"})

#: In the context of the command: the file, and what is wrong with it.
_FILE: Final = "duobus.settings_file"
_FAULTS: Final = "duobus.settings_faults"

_OPTION: Final = re.compile(r"--([a-z][a-z-]*)")

_Value = TypeVar("_Value")


def keys_of(command: click.Command) -> dict[str, click.Option]:
    """Return every key that the settings file of a command may have, with its option."""
    named = {option.opts[0].removeprefix("--"): option for option in command.params if isinstance(option, click.Option)}
    return {key: option for key, option in named.items() if key not in OWN_OPTIONS and option.expose_value}


def take_settings(context: click.Context, _option: click.Parameter, path: Path | None) -> None:
    """Let what a settings file says be the defaults of the command; the callback of the option that names the file.

    What is wrong is kept for ``GivenOptions``: ``--check-config`` goes on after a fault and looks for others.
    """
    if path is None or context.resilient_parsing:
        return
    faults: list[str] = []
    context.meta[_FILE], context.meta[_FAULTS] = path, faults
    try:
        with path.open("rb") as file:
            members = tomllib.load(file)
    except OSError as error:
        faults.append(f"The settings {path} cannot be read: {error.strerror}.")
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        faults.append(f"{path}: this is no TOML: {error}.")
        return
    keys = keys_of(context.command)
    values: dict[str, Any] = {}
    for key, member in members.items():
        option = keys.get(key)
        try:
            if option is None:
                raise ConfigurationError(_unknown(key, keys))
            assert option.name is not None
            values[option.name] = _value(key, member, option, context, path.parent)
        except ConfigurationError as error:
            faults.append(f"{path}: {error}")
    context.default_map = values


def _unknown(key: str, keys: Mapping[str, click.Option]) -> str:
    if key in OWN_OPTIONS:
        return f"the key {key!r} has no place in a settings file; give --{key} on the command line."
    near = get_close_matches(key.lower().replace("_", "-").lstrip("-"), keys, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "duobus serve --help lists the options."
    return f"the key {key!r} is no option of duobus serve; {hint}"


def _value(key: str, member: object, option: click.Option, context: click.Context, folder: Path) -> Any:
    if not option.multiple:
        return _single(key, member, option, context, folder)
    if not isinstance(member, list):
        raise ConfigurationError(f"{key!r} has to be a list of texts, not {_named(member)}.")
    return [_single(key, entry, option, context, folder) for entry in member]


def _single(key: str, member: object, option: click.Option, context: click.Context, folder: Path) -> Any:
    """One value as the command line would have given it; a relative path is one beside the settings file."""
    kind, needed = _kind(option)
    # Python's true is an integer; TOML tells the two apart.
    if not isinstance(member, kind) or (isinstance(member, bool) and kind is not bool):
        raise ConfigurationError(f"{key!r} has to be {needed}, not {_named(member)}.")
    value = str(folder / str(member)) if isinstance(option.type, click.Path) else member
    try:
        option.type.convert(value, option, context)
    except click.BadParameter as error:
        raise ConfigurationError(f"{key!r} has a wrong value: {error.message}") from error
    return value


def _kind(option: click.Option) -> tuple[type | tuple[type, ...], str]:
    if option.is_flag:
        return bool, "true or false"
    if isinstance(option.type, click.types.IntParamType):
        return int, "a whole number"
    if isinstance(option.type, click.types.FloatParamType):
        return (int, float), "a number"
    return str, "a list of texts" if option.multiple else "text"


def _named(member: object) -> str:
    if isinstance(member, bool):
        return str(member).lower()
    names = {str: "text", int: "a whole number", float: "a number", list: "a list", dict: "a table"}
    return names.get(type(member), "a time")


class GivenOptions:
    """The options of one run as the command line and the settings file gave them, and what is wrong with these.

    Args:
        context: Of the command, after it was parsed.

    Attributes:
        file: The settings file, or None.
        faults: One sentence for each fault of the settings file, and of values that ``read`` has refused.
    """

    def __init__(self, context: click.Context) -> None:
        self.file: Path | None = context.meta.get(_FILE)
        self.faults: list[str] = list(context.meta.get(_FAULTS, ()))
        self._from_file = [
            key
            for key, option in keys_of(context.command).items()
            if context.get_parameter_source(option.name or "") == ParameterSource.DEFAULT_MAP
        ]

    @property
    def from_file(self) -> tuple[str, ...]:
        """The keys whose values the settings file gave, in the order of the options."""
        return tuple(self._from_file)

    def read(self, key: str, take: Callable[[], _Value], otherwise: _Value) -> _Value:
        """Return what ``take`` makes of the value of an option; if it refuses, note the fault and return the other."""
        try:
            return take()
        except ConfigurationError as error:
            self.faults.append(f"{self.file}: {key!r}: {error}" if key in self._from_file else str(error))
            return otherwise

    def told(self, text: str) -> str:
        """Return the text of an error, with the place of those of its options that the settings file gave."""
        named = [key for key in dict.fromkeys(_OPTION.findall(text)) if key in self._from_file]
        return f"{text} ({self.file} gives {' and '.join(named)}.)" if named else text

    def demand(self) -> None:
        """Refuse the options if something is wrong.

        Raises:
            ConfigurationError: The text has a line for each fault.
        """
        if self.faults:
            raise ConfigurationError("\n".join(self.faults))
