"""From what a namespace has to what a document asks for: the steps between them, each of which can be shown or done.

Entities come before what forwards to them: they are made without their targets, which are set when all are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from duobus.model.properties import PROPERTIES, Surface
from duobus.model.properties import Form as ValueForm
from duobus.model.relay.description import RELAY, REQUIRES_CLIENT_AUTHORIZATION

CREATE: Final = "create"
UPDATE: Final = "update"
DELETE: Final = "delete"
CONFLICT: Final = "conflict"

#: What an entity keeps from its creation to its end.
FIXED: Final = frozenset(
    (
        *(item.json_name for item in PROPERTIES if item.is_fixed and Surface.SDK in item.given),
        REQUIRES_CLIENT_AUTHORIZATION,
    )
)
FORWARDS: Final = tuple(item.json_name for item in PROPERTIES if item.form is ValueForm.TARGET)

_INNER: Final = frozenset({"subscriptions", "rules", "name"})
#: Values that mean that nothing is set.
_UNSET: Final[tuple[Any, ...]] = (None, "", [])

Form = Mapping[str, Any]


class Step:
    """One change.

    Attributes:
        operation: CREATE, UPDATE, DELETE; CONFLICT is one that cannot be made.
        kind: queue, topic, subscription, rule or relay.
        names: Of the entity, from its topic down.
        changes: Property to [as it is, as it is to be].
        form: What it is to be.
    """

    __slots__ = ("changes", "form", "kind", "names", "operation")

    def __init__(self, operation: str, kind: str, names: Sequence[str], form: Form, changes: dict[str, Any]) -> None:
        self.operation = operation
        self.kind = kind
        self.names = tuple(names)
        self.form = form
        self.changes = changes

    def record(self) -> dict[str, Any]:
        """What is told of it; keys are masked."""
        changes = {
            name: ["***", "***"] if name == "authorizationRules" else list(values)
            for name, values in self.changes.items()
        }
        return {"operation": self.operation, "kind": self.kind, "path": "/".join(self.names), "changes": changes}


class TopologyChanges:
    """The steps from one document to another."""

    def __init__(self, present: Form, wanted: Form, *, prunes: bool) -> None:
        self._present = present
        self._wanted = wanted
        self._prunes = prunes

    def steps(self) -> Iterator[Step]:
        """In the order in which they can be made."""
        late: list[Step] = []
        for kind in ("queue", "topic"):
            yield from self._level(kind, (), self._present, self._wanted, late)
        yield from late
        # A queue whose path lies below that of a relay can only be made before the relay.
        yield from self._level(RELAY, (), self._present, self._wanted, [])
        if self._prunes:
            for kind in ("queue", "topic"):
                yield from _missing(kind, (), self._present, self._wanted)
            # A document of a namespace without relays, of Azure perhaps, says nothing about relays.
            if "relays" in self._wanted:
                yield from _missing(RELAY, (), self._present, self._wanted)

    def _level(
        self, kind: str, parents: tuple[str, ...], present: Form, wanted: Form, late: list[Step]
    ) -> Iterator[Step]:
        there = _by_name(present.get(kind + "s"))
        for form in wanted.get(kind + "s") or ():
            names = (*parents, form["name"])
            old = there.get(form["name"].lower())
            if old is None:
                given = {name: [None, value] for name, value in form.items() if name not in _INNER}
                yield Step(CREATE, kind, names, form, given)
                targets: dict[str, Any] = {name: [None, form[name]] for name in FORWARDS if form.get(name)}
                if targets:
                    late.append(Step(UPDATE, kind, names, form, targets))
                # What comes with a subscription that has none of its own.
                old = {"rules": [{"name": "$Default"}]} if kind == "subscription" else {}
            else:
                yield from _differing(kind, names, old, form, late)
            if kind == "topic":
                yield from self._level("subscription", names, old, form, late)
                if self._prunes:
                    yield from _missing("subscription", names, old, form)
            elif kind == "subscription" and "rules" in form:
                yield from self._rules(names, old, form, is_new=form["name"].lower() not in there)

    def _rules(self, names: tuple[str, ...], old: Form, form: Form, *, is_new: bool) -> Iterator[Step]:
        there = _by_name(old.get("rules"))
        for rule in form["rules"]:
            found = there.get(rule["name"].lower())
            if found is None:
                given = {name: [None, rule[name]] for name in ("filter", "action") if rule.get(name)}
                yield Step(CREATE, "rule", (*names, rule["name"]), rule, given)
                continue
            was = {"filter": {"type": "true"}, **found}
            changes = {
                name: [was.get(name), rule.get(name)]
                for name in ("filter", "action")
                if (was.get(name) or None) != (rule.get(name) or None)
            }
            if changes:
                yield Step(UPDATE, "rule", (*names, rule["name"]), rule, changes)
        if is_new or self._prunes:
            yield from _missing("rule", names, old, form)


def _differing(kind: str, names: tuple[str, ...], old: Form, form: Form, late: list[Step]) -> Iterator[Step]:
    changes = {
        name: [old.get(name), value]
        for name, value in form.items()
        if name not in _INNER and not _is_same(old.get(name), value)
    }
    fixed = {name: changes.pop(name) for name in FIXED if name in changes}
    if fixed:
        yield Step(CONFLICT, kind, names, form, fixed)
    targets: dict[str, Any] = {name: changes.pop(name) for name in FORWARDS if name in changes}
    if changes:
        yield Step(UPDATE, kind, names, form, changes)
    if targets:
        late.append(Step(UPDATE, kind, names, form, targets))


def _is_same(one: Any, other: Any) -> bool:
    return bool(one == other) or (one in _UNSET and other in _UNSET) or (one is None and other is False)


def _missing(kind: str, parents: tuple[str, ...], present: Form, wanted: Form) -> Iterator[Step]:
    asked = _by_name(wanted.get(kind + "s"))
    for name, form in _by_name(present.get(kind + "s")).items():
        if name not in asked:
            yield Step(DELETE, kind, (*parents, form["name"]), form, {})


def _by_name(forms: Any) -> dict[str, Form]:
    return {form["name"].lower(): form for form in forms or ()}
