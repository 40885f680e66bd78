"""Index: finds the rules whose equalities a message fulfils, without looking at the others (HTTP contract E.6).

Rules that name the same fields form a group, a hash table by the values of these fields. A group is looked at only for
messages that have its *anchor*, one of its fields: the one with the fewest groups when it was made, so that neither
rules with the same field and other values nor rules with ever new fields make a message more expensive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duobus.rules.correlation import FOLDED_LENGTHS, Field, key_of, read_field
from duobus.rules.matching.equalities import Equalities

if TYPE_CHECKING:
    from duobus.rules.message_view import MessageView

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
        # Groups by anchor: place of a system property, or folded name of a user property.
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
                        if type(value) is str and len(value) not in FOLDED_LENGTHS:
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
