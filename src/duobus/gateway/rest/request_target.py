"""What a request asks for: its target taken apart once, before anything is routed or compared.

The raw text is decoded once and split on slashes after that: Python sends ``/a%2Fb`` for the queue ``a/b`` (rule 0.12).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

from duobus.errors import ArgumentInvalid
from duobus.model.address import decode_percent, strip_authority

#: Longest target, query included: the longest path with every character percent-encoded, and a filter.
TARGET_LENGTH_MAX: Final = 8_192
#: Scripts ask for the same few addresses again and again: so many that came last are kept, unless they are longer.
KEPT_TARGETS: Final = 1024
KEPT_LENGTH_MAX: Final = 512
#: Parameters of one query; real ones have four.
PARAMETERS_MAX: Final = 32
#: What a Host header may hold: it comes back in answers.
HOST: Final = re.compile(r"(?:[A-Za-z0-9._~-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5}){0,2}")


class MethodUnknown(ArgumentInvalid):
    """The method means nothing for this address. Use one that the text names."""

    http_status = 405


class Target:
    """A request target.

    Attributes:
        segments: Decoded segments of the path in the client's spelling.
        lower: The same in lower case, by which everything is compared.
        raw: Lower-case segments before decoding: what some clients sign (Azure: shared access signatures).
        query: Lower-case name to decoded value of each parameter; of repeated ones the last.
    """

    __slots__ = ("lower", "query", "raw", "segments")

    def __init__(self, segments: tuple[str, ...], raw: tuple[str, ...], query: Mapping[str, str]) -> None:
        self.segments = segments
        self.lower = tuple(segment.lower() for segment in segments)
        self.raw = raw
        # Several requests may share it.
        self.query = MappingProxyType(dict(query))


def parse_target(text: str) -> Target:
    """Return what a request target means.

    Raises:
        ArgumentInvalid: It is too long, not UTF-8, or its path tries something: an empty segment, ``.``, ``..``, a
            backslash or a control character.
    """
    return _kept_target(text) if len(text) <= KEPT_LENGTH_MAX else _parse_target(text)


def _parse_target(text: str) -> Target:
    if len(text) > TARGET_LENGTH_MAX:
        raise ArgumentInvalid(f"The address has {len(text)} characters; at most {TARGET_LENGTH_MAX} are allowed.")
    path, _, query = text.partition("?")
    if not path.startswith("/"):
        path = "/" + strip_authority(path)
    plain = decode_percent(path.partition("#")[0], "address")
    if any(character < " " or character in "\x7f\\" for character in plain):
        raise ArgumentInvalid("The address holds a control character or a backslash.")
    # One slash at the end is what legacy clients send.
    segments = tuple(plain[1:].removesuffix("/").split("/")) if plain.strip("/") else ()
    if any(segment in {"", ".", ".."} for segment in segments):
        raise ArgumentInvalid("The address holds an empty segment, '.' or '..'.")
    raw = tuple(path.lower()[1:].removesuffix("/").split("/"))
    return Target(segments, raw, _parameters(query))


_kept_target: Final = lru_cache(KEPT_TARGETS)(_parse_target)


def _parameters(text: str) -> dict[str, str]:
    parts = [part for part in text.split("&") if part]
    if len(parts) > PARAMETERS_MAX:
        raise ArgumentInvalid(f"The query has {len(parts)} parameters; at most {PARAMETERS_MAX} are allowed.")
    found = {}
    for part in parts:
        name, _, value = part.partition("=")
        found[_decoded(name).lower()] = _decoded(value)
    return found


def _decoded(text: str) -> str:
    try:
        return unquote(text.replace("+", " "), errors="strict")
    except UnicodeDecodeError:
        raise ArgumentInvalid("The query is not UTF-8.") from None
