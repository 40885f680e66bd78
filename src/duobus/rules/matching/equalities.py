"""What has to be equal for a filter to match: by that it is found in the index instead of being tried (E.6).

Conditions joined by AND are looked at: ``property = constant``, or one ``property IN (constants)``. The filter itself
is still evaluated on whatever message the index finds it for, so an equality may be left out here, never invented.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from duobus.rules.correlation import Field, key_of
from duobus.rules.language.closures import is_exact, is_guid_like
from duobus.rules.language.tree import Compare, Constant, In, Logic, Node, Parameter, Property
from duobus.rules.system_properties import PLACES

#: Field to the keys (see ``key_of``) of which a message must have one.
Equalities = Mapping[Field, tuple[object, ...]]


def equalities_of(node: Node, parameters: Mapping[str, Any]) -> Equalities:
    """Return the equalities of a filter; empty when there are none to go by."""
    single: dict[Field, tuple[object, ...]] = {}
    several: dict[Field, tuple[object, ...]] = {}
    for part in _conjuncts(node):
        if isinstance(part, Compare) and part.sign == "=":
            left, right = part.left, part.right
            if isinstance(right, Property):
                left, right = right, left
            _note(single, left, [right], parameters)
        elif isinstance(part, In) and not part.is_negated:
            _note(several, part.value, list(part.items), parameters)
    if single:
        return single
    # Keys of several lists would have to be multiplied; the shortest one does.
    shortest = sorted(several.items(), key=lambda entry: len(entry[1]))[:1]
    return dict(shortest)


def _conjuncts(node: Node) -> Iterator[Node]:
    if isinstance(node, Logic) and node.is_and:
        for operand in node.operands:
            yield from _conjuncts(operand)
    else:
        yield node


def _note(
    found: dict[Field, tuple[object, ...]], target: Node, items: list[Node], parameters: Mapping[str, Any]
) -> None:
    if not isinstance(target, Property):
        return
    values = []
    for item in items:
        if isinstance(item, Constant):
            values.append(item.value)
        elif isinstance(item, Parameter):
            values.append(parameters.get(item.name.lower()))
        else:
            return
    if not all(map(_is_plain, values)):
        return
    field: Field = PLACES[target.name.lower()] if target.is_system else target.name
    found.setdefault(field, tuple({key_of(value): None for value in values}))


def _is_plain(value: Any) -> bool:
    """Whether values that are equal to this one have its key: exact numbers, and texts that are no GUID's."""
    if type(value) is str:
        return not is_guid_like(value)
    return type(value) is bool or (type(value) in (int, float) and is_exact(value))
