"""I24: a published message has all the copies that one version of the rules gives it, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

ACCEPTED: Final = "accepted"
REFUSED: Final = "refused"
UNKNOWN: Final = "unknown"


class Published:
    """A message that was sent to the topic.

    Attributes:
        number: What names it.
        since: Index of the version of the rules in force when it was sent.
        until: Of that in force when it was answered; None when it never was.
        outcome: ACCEPTED, REFUSED or UNKNOWN.
    """

    __slots__ = ("number", "outcome", "since", "until")

    def __init__(self, number: int, since: int) -> None:
        self.number = number
        self.since = since
        self.until: int | None = None
        self.outcome = UNKNOWN


class FanoutHistory:
    """What happened in one run.

    Attributes:
        published: Every message that was sent.
        seen: (number, subscription, rule of the action or "") of every delivery.
        versions: Whether the rule that comes and goes was there, version by version.
        left: Subscription and number of messages that nobody could receive in the end.
    """

    __slots__ = ("left", "published", "seen", "versions")

    def __init__(self) -> None:
        self.published: list[Published] = []
        self.seen: list[tuple[int, str, str]] = []
        self.versions: list[bool] = []
        self.left: list[tuple[str, int]] = []


def check_fanout(history: FanoutHistory, expected: Callable[..., frozenset[tuple[str, str]]]) -> list[str]:
    """Return what is wrong, in words; ``expected(number, has_rule=...)`` gives the copies of a message."""
    problems = [f"{number} messages stay in '{name}'" for name, number in history.left]
    found: dict[int, set[tuple[str, str]]] = {}
    for number, name, rule in history.seen:
        found.setdefault(number, set()).add((name, rule))
    for message in history.published:
        copies = frozenset(found.pop(message.number, ()))
        until = message.until if message.until is not None else len(history.versions) - 1
        versions = {history.versions[index] for index in range(message.since, until + 1)}
        allowed = {expected(message.number, has_rule=version) for version in versions}
        if message.outcome == UNKNOWN:
            allowed.add(frozenset())
        elif message.outcome == REFUSED:
            allowed = {frozenset()}
        if copies not in allowed:
            wanted = " or ".join(sorted(str(sorted(one)) for one in allowed))
            problems.append(f"message {message.number} ({message.outcome}) has {sorted(copies)}, not {wanted} (I24)")
    problems += [f"message {number} was never sent" for number in found]
    return problems
