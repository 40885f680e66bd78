"""A rule set that counts the messages which it looks at."""

from __future__ import annotations

import uuid

from duobus.rules import Match, MessageView, Rule, RuleSet


class Counting(RuleSet):
    """Counts the messages that were looked at."""

    __slots__ = ("looks",)

    def match(self, message: MessageView) -> Match:
        self.looks += 1
        return super().match(message)


def counting(*rules: Rule) -> Counting:
    """One with a source for each rule."""
    found = Counting({number: [one] for number, one in enumerate(rules, 1)}, new_id=lambda: uuid.UUID(int=1))
    found.looks = 0
    return found
