"""RuleSet: all rules of one topic, matched against a message in one pass (HTTP contract E.1)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from duobus.model.overlay import Overlay
from duobus.rules.message import MessageView
from duobus.rules.rule import Rule


class AlteredCopy:
    """A copy of its own, which one rule with an action asks for.

    Attributes:
        source: Number of the subscription's source.
        rule_name: Of the rule.
        overlay: What it changes, ``RuleName`` included.
    """

    __slots__ = ("overlay", "rule_name", "source")

    def __init__(self, source: int, rule_name: str, overlay: Overlay) -> None:
        self.source = source
        self.rule_name = rule_name
        self.overlay = overlay


class Match:
    """What one message gives.

    Attributes:
        sources: Sources that get one plain copy each, ascending: all their matching rules without action together.
        altered: Further copies, ordered by source and within one by the order in which its rules were added.
        errors: Source to the text of its first error, or None when there was none. The message goes to that
            subscription's dead-letter queue, once, if DeadLetteringOnFilterEvaluationExceptions says so; its other
            matching rules still deliver (E.4).
    """

    __slots__ = ("altered", "errors", "sources")

    def __init__(
        self, sources: Sequence[int], altered: Sequence[AlteredCopy] = (), errors: dict[int, str] | None = None
    ) -> None:
        self.sources = sources
        self.altered = altered
        self.errors = errors


class RuleSet:
    """The rules of all subscriptions of a topic that may receive, by source.

    It is changed rule by rule, at a cost that does not depend on how many there are. A message is matched against
    what it holds at that moment (I24: one committed version).

    Args:
        subscriptions: Source number to its rules; a source without rules gets nothing.
        new_id: Gives ``newid()`` its values.
    """

    __slots__ = ("_new_id", "_rules", "_trivial")

    def __init__(
        self, subscriptions: Mapping[int, Iterable[Rule]] | None = None, *, new_id: Callable[[], uuid.UUID]
    ) -> None:
        self._new_id = new_id
        self._rules: dict[int, dict[str, Rule]] = {}
        self._trivial: tuple[int, ...] | None = None
        for source, rules in (subscriptions or {}).items():
            self.put(source, rules)

    @property
    def trivial(self) -> tuple[int, ...] | None:
        """All sources, ascending, when each has one true filter without action and nothing else; otherwise None.

        Then every message gives each of them one plain copy, and nobody has to look at it.
        """
        if all(len(rules) == 1 and next(iter(rules.values())).is_true for rules in self._rules.values()):
            return tuple(sorted(self._rules))
        return None

    def put(self, source: int, rules: Iterable[Rule] = ()) -> None:
        """Give a source these rules and no others; a source that is not known yet is added."""
        self._rules[source] = {rule.name.lower(): rule for rule in rules}

    def drop(self, source: int) -> None:
        """Take a source out: its subscription is gone, or may not receive now."""
        self._rules.pop(source, None)

    def add(self, source: int, rule: Rule) -> None:
        """Give a source one more rule, in the place of one of the same name."""
        self._rules[source][rule.name.lower()] = rule

    def remove(self, source: int, name: str) -> None:
        """Take a rule from a source; nothing happens when there is none of this name."""
        self._rules[source].pop(name.lower(), None)

    def match(self, message: MessageView) -> Match:
        """Evaluate all rules on a message. Whatever the message holds, nothing is raised."""
        return Match(sorted(source for source, rules in self._rules.items() if rules))
