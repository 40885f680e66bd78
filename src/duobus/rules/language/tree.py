"""The tree of a parsed filter or action. Every node knows its place in the text and how deep it is."""

from __future__ import annotations

from typing import Any

import msgspec


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """Parent of all nodes.

    Attributes:
        position: Where it starts, or where its operator stands; the first character is 1.
        depth: Levels of nodes in it, itself included.
    """

    position: int
    depth: int = 1


class Constant(Node, frozen=True, kw_only=True):
    """A literal."""

    value: Any


class Parameter(Node, frozen=True, kw_only=True):
    """``@name``; the name is without the ``@``."""

    name: str


class Property(Node, frozen=True, kw_only=True):
    """A property; ``is_system`` for ``sys.``."""

    name: str
    is_system: bool


class NewId(Node, frozen=True, kw_only=True):
    """``newid()``."""


class PropertyOf(Node, frozen=True, kw_only=True):
    """``property(name)``: a user property whose name is computed."""

    name: Node


class Signed(Node, frozen=True, kw_only=True):
    """``-value`` or ``+value``."""

    sign: str
    value: Node


class Arithmetic(Node, frozen=True, kw_only=True):
    """``first sign value sign value ...``, from the left; all signs are of the same rank."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


class Compare(Node, frozen=True, kw_only=True):
    """``left sign right``."""

    sign: str
    left: Node
    right: Node


class In(Node, frozen=True, kw_only=True):
    """``value [NOT] IN (items)``."""

    value: Node
    items: tuple[Node, ...]
    is_negated: bool


class Like(Node, frozen=True, kw_only=True):
    """``value [NOT] LIKE pattern [ESCAPE escape]``."""

    value: Node
    pattern: Node
    escape: Node | None
    is_negated: bool


class IsNull(Node, frozen=True, kw_only=True):
    """``value IS [NOT] NULL``."""

    value: Node
    is_negated: bool


class Exists(Node, frozen=True, kw_only=True):
    """``EXISTS(property)``."""

    property: Property


class Not(Node, frozen=True, kw_only=True):
    """``NOT value``."""

    value: Node


class Logic(Node, frozen=True, kw_only=True):
    """Operands joined by AND or by OR."""

    is_and: bool
    operands: tuple[Node, ...]


class SetStatement(Node, frozen=True, kw_only=True):
    """``SET property = value``."""

    property: Property
    value: Node


class RemoveStatement(Node, frozen=True, kw_only=True):
    """``REMOVE property``."""

    property: Property
