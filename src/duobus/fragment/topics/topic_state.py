"""What a topic's fragment knows of its subscriptions as a whole: the rules of all, and the bytes of all copies."""

from __future__ import annotations

from duobus.rules import RuleSet


class TopicRules:
    """What all fragments of a topic share.

    Attributes:
        rules: Of all subscriptions that may get copies, by source number.
        keeping_errors: Sources whose subscriptions dead-letter what their filters fail on.
        is_partitioned: A session lives in one fragment of several.
        refuses_unmatched: A message that no subscription takes is refused (FilteringMessagesBeforePublishing).
    """

    __slots__ = ("is_partitioned", "keeping_errors", "refuses_unmatched", "rules")

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.keeping_errors: set[int] = set()
        self.is_partitioned = False
        self.refuses_unmatched = False


class TopicState:
    """What one fragment of a topic knows of its subscriptions as a whole.

    Attributes:
        shared: What all fragments of the topic share.
        stored: Bytes that the copies take up, as the store told it after the last commit.
        pending: Bytes that the commit under way adds.
    """

    __slots__ = ("pending", "shared", "stored")

    def __init__(self, shared: TopicRules, stored: int = 0) -> None:
        self.shared = shared
        self.stored = stored
        self.pending = 0

    @property
    def bytes(self) -> int:
        """Bytes that copies take up, each body counted once."""
        return self.stored + self.pending
