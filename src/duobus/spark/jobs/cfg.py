"""Settings of jobs: named as in ``OPTIONS``, values as text or as in TOML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from duobus.spark.errors import OptionError
from duobus.spark.options import Option, Parsed, parse


def settings(cfg: Mapping[str, Any], known: Iterable[Option]) -> Parsed:
    """Check settings.

    Raises:
        OptionError: One is unknown or wrong.
    """
    return parse({name: text_of(value) for name, value in cfg.items() if value is not None}, known)


def needed(parsed: Parsed, name: str) -> Any:
    """A setting that a job cannot do without.

    Raises:
        OptionError: It is missing.
    """
    if parsed[name] is None:
        raise OptionError(f"The option '{name}' is needed here.")
    return parsed[name]


def text_of(value: Any) -> str:
    """A value as the options of the data source are written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
