"""Where the parts of an expression stand in its text: from the first character of each to its last."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from duobus.rules.language.tree import (
    Arithmetic,
    Compare,
    Exists,
    In,
    IsNull,
    Like,
    Logic,
    NewId,
    Node,
    Not,
    Property,
    PropertyOf,
    Signed,
)

#: The tokens of a text that the parser has taken; its grammar says more than is needed here.
_TOKEN: Final = re.compile(
    r"""'(?:[^']|'')*'|\[(?:[^\]]|\]\])*\]|"(?:[^"]|"")*"|@\w+"""
    r"""|[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)?|\w+|<>|!=|<=|>=|\S"""
)


def parts_of(node: Node) -> Iterator[Node]:
    """Yield the nodes directly below a node."""
    if isinstance(node, Logic):
        yield from node.operands
    elif isinstance(node, Compare):
        yield from (node.left, node.right)
    elif isinstance(node, Arithmetic):
        yield node.first
        yield from (value for _, value in node.rest)
    elif isinstance(node, In):
        yield node.value
        yield from node.items
    elif isinstance(node, Like):
        yield from (node.value, node.pattern)
        if node.escape is not None:
            yield node.escape
    elif isinstance(node, PropertyOf):
        yield node.name
    elif isinstance(node, Exists):
        yield node.property
    elif isinstance(node, Not | Signed | IsNull):
        yield node.value


class Extents:
    """The extents of one expression's nodes. Positions are those of the parser: the first character is 1."""

    def __init__(self, text: str) -> None:
        self._spans = [found.span() for found in _TOKEN.finditer(text)]
        self._tokens = [text[start:end] for start, end in self._spans]
        self._at = {start + 1: index for index, (start, _) in enumerate(self._spans)}

    def of(self, node: Node) -> tuple[int, int]:
        """Return the positions of a node's first and last character."""
        first, last = self._balanced(*self._range(node))
        return self._spans[first][0] + 1, self._spans[last][1]

    def _range(self, node: Node) -> tuple[int, int]:
        """The first and last token of a node, without parentheses around it or at its end."""
        first = last = self._at[node.position]
        for part in parts_of(node):
            start, end = self._range(part)
            first, last = min(first, start), max(last, end)
        if isinstance(node, Property) and self._tokens[last + 1 : last + 2] == ["."]:
            last += 2
        elif isinstance(node, NewId):
            last += 1
        elif isinstance(node, IsNull):
            last = self._at[node.position] + (2 if node.is_negated else 1)
        return first, last

    def _balanced(self, first: int, last: int) -> tuple[int, int]:
        """The same with every parenthesis that is opened or closed in between, but none beyond."""
        opened = missing = 0
        for token in self._tokens[first : last + 1]:
            if token == "(":
                opened += 1
            elif token == ")":
                opened -= 1
                missing = max(missing, -opened)
        for _ in range(opened + missing):
            last = self._tokens.index(")", last + 1)
        for _ in range(missing):
            first -= 1
            while self._tokens[first] != "(":
                first -= 1
        return first, last
