"""JSON and YAML as commands print them: UTF-8, and without what moves the cursor or recolours a terminal."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import yaml

#: Signs that a terminal may act on instead of showing them; those below U+0020 are escaped by both writers.
_UNPRINTABLE: Final = re.compile("[\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
#: Words that other readers of YAML take for true and false.
_BOOLEANS: Final = ("y", "Y", "n", "N")


def json_of(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, in which letters of all languages stand for themselves."""
    return _escaped(json.dumps(value, indent=indent, ensure_ascii=False))


def yaml_of(value: Any) -> str:
    """Return a value as YAML in the block form, without a line end behind it."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, allow_unicode=True, sort_keys=False, default_flow_style=False, width=1 << 30
    )
    return _escaped(text.removesuffix("...\n").removesuffix("\n"))


def _escaped(text: str) -> str:
    return _UNPRINTABLE.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


class _Dumper(yaml.SafeDumper):
    """Indents lists below their name, and quotes what ``_escaped`` may have to escape."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = '"' if _UNPRINTABLE.search(value) or "\n" in value else "'" if value in _BOOLEANS else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)


_Dumper.add_representer(str, _text)
