"""Which entity a path of the console means: a queue or topic, a subscription of a topic, or a rule of that."""

from __future__ import annotations

from typing import Final, NamedTuple

SUBSCRIPTIONS: Final = "Subscriptions"
RULES: Final = "Rules"


class EntityPath(NamedTuple):
    """A path, taken apart.

    Attributes:
        parent: Path of the queue or topic itself.
        subscription: Name of the subscription; None for a queue or topic.
        rule: Name of the rule; None for everything else.
    """

    parent: str
    subscription: str | None = None
    rule: str | None = None

    @property
    def text(self) -> str:
        """The path as addresses have it: ``topic/Subscriptions/subscription/Rules/rule``."""
        found = self.parent
        if self.subscription is not None:
            found += f"/{SUBSCRIPTIONS}/{self.subscription}"
        if self.rule is not None:
            found += f"/{RULES}/{self.rule}"
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the SDK's methods take, from the topic down."""
        return tuple(name for name in self if name is not None)

    @property
    def name(self) -> str:
        """The last of the names."""
        return self.names[-1]


def parse_path(text: str) -> EntityPath:
    """Take a path apart; what cannot be a subscription or rule is the path of a queue or topic."""
    segments = text.split("/")
    low = [segment.lower() for segment in segments]
    if SUBSCRIPTIONS.lower() not in low[1:-1]:
        return EntityPath(text)
    at = low.index(SUBSCRIPTIONS.lower(), 1)
    parent, rest = "/".join(segments[:at]), segments[at + 1 :]
    if len(rest) == 1:
        return EntityPath(parent, rest[0])
    if len(rest) == 3 and rest[1].lower() == RULES.lower():
        return EntityPath(parent, rest[0], rest[2])
    return EntityPath(text)
