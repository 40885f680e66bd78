"""First deliveries of a source with sessions, which are not read in order of count: what rides of them in a commit.

A queue without sessions hands out in order of count, so its mark, the highest count delivered, speaks of everything
below. Here the mark is the last count up to which everything was delivered or is gone (decision 0018). Where all
sessions are held and read, the mark keeps up with what comes, and no first delivery needs a record of its own. A
message that nobody wants holds the mark up; then each delivery above it is written with the next commit, as a
redelivery is.
"""

from __future__ import annotations

from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from duobus.fragment.message import ACTIVE, QueuedMessage

if TYPE_CHECKING:
    from duobus.fragment.source import Source

#: Counts that the mark passes in one commit: a millisecond. Whoever held it up may have done so for millions.
STEPS_MAX: Final = 10_000


_COUNT: Final = attrgetter("count")
_DELIVERIES: Final = attrgetter("deliveries")


class FirstDeliveries:
    """What was handed out since the last commit, while the mark keeps up.

    Attributes:
        given: The messages of each turn.
    """

    __slots__ = ("_is_level", "_offered", "_released", "given")

    def __init__(self) -> None:
        self.given: list[list[QueuedMessage]] = []
        self._is_level = False
        # Every count below was assigned in a commit that is durable by now, so that its message is known, or gone.
        self._released = 0
        # ... and was so when the commit before this one began, so that there was time to hand it out.
        self._offered = 0

    def note(self, source: Source, messages: list[QueuedMessage]) -> None:
        """Messages were handed out, some of them perhaps not for the first time."""
        if self._is_level:
            self.given.append(messages)
        else:
            source.touched.update([(message.count, message) for message in messages])

    def advance(self, source: Source) -> None:
        """A commit takes the source's row along: move the mark, and leave to ``touched`` what lies above it."""
        top = self._move(source)
        mark = source.highest_delivered
        for messages in self.given:
            if top <= mark and not any(map(_DELIVERIES, messages)):
                continue
            # What is settled by this very commit is written, too, and then removed: it is rare.
            source.touched.update(
                [(message.count, message) for message in messages if message.count > mark or message.deliveries]
            )
        self.given = []

    def _move(self, source: Source) -> int:
        """Move the mark; return the highest count that was handed out since it was moved last."""
        offered, released = self._offered, self._released
        self._offered, self._released = released, source.next_count
        found = source.by_count
        mark = source.highest_delivered
        if not found:
            mark = max(mark, released - 1)
        # Where all sessions are read what was handed out is what came next, whole: no look at each. One of them that
        # was given back meanwhile was handed out, too.
        given: set[int] = set()
        for messages in self.given:
            given.update(map(_COUNT, messages))
        top = max(given, default=0)
        if given and top == mark + len(given) and min(given) == mark + 1:
            mark = min(mark + len(given), released - 1)
        for count in range(mark + 1, min(released, mark + 1 + STEPS_MAX)):
            message = found.get(count)
            if message is not None and message.lock <= 0 and not message.deliveries and message.state == ACTIVE:
                break
            mark = count
        source.highest_delivered = mark
        self._is_level = mark + 1 >= offered
        return top


def changed_counts(source: Source, room: int) -> list[int]:
    """The counts of up to ``room`` messages whose delivery counts ride in this commit, which takes the source along."""
    if source.sessions is not None:
        source.firsts.advance(source)
    touched = source.touched
    return list(touched) if len(touched) <= room else list(islice(touched, room))
