"""Index: finds the rules whose equalities a message fulfils, without looking at the others (Azure: topic filters).

Rules that name the same fields form a group, a hash table by the values of these fields. A group is looked at only for
messages that have its *anchor*, one of its fields: the one with the fewest groups when it was made, so that neither
rules with the same field and other values nor rules with ever new fields make a message more expensive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from duobus.rules.correlation import CASEFOLD_LENGTHS, Field, key_of, read_field
from duobus.rules.language.closures import is_exact, is_guid_like
from duobus.rules.language.tree import Compare, Constant, In, Logic, Node, Parameter, Property
from duobus.rules.system_properties import PLACES

if TYPE_CHECKING:
    from duobus.rules.message_view import MessageView


# What has to be equal for a filter to match: by that it is found in the index instead of being tried.
#
# Conditions joined by AND are looked at: ``property = constant``, or one ``property IN (constants)``. The filter itself
# is still evaluated on whatever message the index finds it for, so an equality may be left out here, never invented.

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


Entry = Any


class _Group:
    """Rules with equalities on the same fields.

    Attributes:
        fields: All of them.
        anchor: The one that a message must have for the group to be looked at.
        name: The user property that is the only field, or empty: there are more, or it is a system property.
        table: Rules by the keys of their values.
    """

    __slots__ = ("anchor", "fields", "name", "table")

    def __init__(self, fields: tuple[Field, ...], anchor: Field) -> None:
        self.fields = fields
        self.anchor = anchor
        only = fields[0]
        self.name = only if len(fields) == 1 and isinstance(only, str) else ""
        self.table: dict[object, list[Entry]] = {}

    def keys(self, equalities: Equalities) -> list[object]:
        if len(self.fields) == 1:
            return list(equalities[self.fields[0]])
        return [tuple(equalities[field][0] for field in self.fields)]

    def find(self, message: MessageView) -> list[Entry] | None:
        if len(self.fields) == 1:
            return self.table.get(key_of(read_field(message, self.fields[0])))
        return self.table.get(tuple([key_of(read_field(message, field)) for field in self.fields]))


class Index:
    """Entries by equalities."""

    __slots__ = ("_groups", "_system", "_user")

    def __init__(self) -> None:
        self._groups: dict[tuple[Field, ...], _Group] = {}
        # Groups by anchor: place of a system property, or lower-case name of a user property.
        self._system: dict[int, list[_Group]] = {}
        self._user: dict[str, list[_Group]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, equalities: Equalities, entry: Entry) -> None:
        """Keep an entry that matches only messages with these equalities; there is at least one."""
        fields = _order(equalities)
        group = self._groups.get(fields)
        if group is None:
            anchor = min(fields, key=lambda field: len(self._anchored(field)))
            group = self._groups[fields] = _Group(fields, anchor)
            if isinstance(anchor, int):
                self._system.setdefault(anchor, []).append(group)
            else:
                self._user.setdefault(anchor.lower(), []).append(group)
        for key in group.keys(equalities):
            group.table.setdefault(key, []).append(entry)

    def remove(self, equalities: Equalities, entry: Entry) -> None:
        """Forget an entry that was added with these equalities."""
        fields = _order(equalities)
        group = self._groups[fields]
        for key in group.keys(equalities):
            entries = group.table[key]
            entries.remove(entry)
            if not entries:
                del group.table[key]
        if not group.table:
            del self._groups[fields]
            by_anchor: dict[Any, list[_Group]] = self._system if isinstance(group.anchor, int) else self._user
            name = group.anchor if isinstance(group.anchor, int) else group.anchor.lower()
            by_anchor[name].remove(group)
            if not by_anchor[name]:
                del by_anchor[name]

    def find(self, message: MessageView) -> list[Entry]:
        """Return the entries that may match, each once; their sections were decoded."""
        found: list[Entry] = []
        system = message.system
        for place, groups in self._system.items():
            if system[place] is not None:
                for group in groups:
                    found += group.find(message) or ()
        anchors, user = self._user, message.user
        if anchors:
            for name in anchors if len(anchors) < len(user) else user:
                if name in anchors and name in user:
                    for group in anchors[name]:
                        # The commonest by far, without its three calls: one property, which is a text as it is.
                        value = user.get(group.name) if group.name else None
                        if type(value) is str and len(value) not in CASEFOLD_LENGTHS:
                            entries = group.table.get(value)
                        else:
                            entries = group.find(message)
                        if entries:
                            found += entries
        return found

    def _anchored(self, field: Field) -> list[_Group]:
        if isinstance(field, int):
            return self._system.get(field, [])
        return self._user.get(field.lower(), [])


def _order(equalities: Equalities) -> tuple[Field, ...]:
    return tuple(sorted(equalities, key=lambda field: (isinstance(field, str), field)))
