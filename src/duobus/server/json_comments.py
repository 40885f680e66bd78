"""JSON with comments and trailing commas, as the emulator's sample file has them (HTTP contract D.1).

Both are replaced by blanks of the same length, so that the standard parser reads the rest and its line and column
in an error are the file's own.
"""

from __future__ import annotations

import json
import re

from duobus.errors import ConfigurationError

# A string, a comment, or a comma that only blanks and comments part from the closing bracket. The groups are atomic:
# a comment ends at its first "*/" for good, else two comments could be taken for one with a value inside.
_TOKENS = re.compile(
    r'"(?:[^"\\\n]|\\.)*+"|//[^\n]*|(?>/\*.*?\*/)|,(?=(?>\s+|//[^\n]*|/\*.*?\*/)*+[\]}])',
    re.DOTALL,
)


def parse_json_with_comments(text: str) -> object:
    """Return the value that ``text`` describes.

    Raises:
        ConfigurationError: It is no JSON, an object names a member twice, or it is nested too deeply. The text
            names line and column.
    """
    plain = _TOKENS.sub(_blank, text)
    try:
        value: object = json.loads(plain, object_pairs_hook=_members, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"line {error.lineno}, column {error.colno}: {error.msg}.") from None
    except RecursionError:
        raise ConfigurationError("The configuration is nested too deeply.") from None
    except ValueError as error:
        # Python refuses to read numbers of thousands of digits.
        raise ConfigurationError(f"{error}.") from None
    return value


def _blank(match: re.Match[str]) -> str:
    token = match[0]
    if token[0] == '"':
        return token
    return "".join(character if character == "\n" else " " for character in token)


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"The member {twice!r} stands twice in one object.")
    return found


def _no_number(name: str) -> object:
    raise ConfigurationError(f"{name} is no JSON number.")
