"""The invariant of queues that are deleted when nobody uses them (I42)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

#: A timer that looks once a second at the earliest, and a deletion over several stores, are over after this long.
GRACE_MS: Final = 10_000


class IdleUse:
    """A use of the queue that was answered: a send, a peek, or a receiver that was open.

    Attributes:
        what: In words.
        begin_ms: When it was asked for, or the receiver opened.
        end_ms: When it was answered, or the receiver closed.
    """

    __slots__ = ("begin_ms", "end_ms", "what")

    def __init__(self, what: str, begin_ms: int, end_ms: int) -> None:
        self.what = what
        self.begin_ms = begin_ms
        self.end_ms = end_ms

    def __repr__(self) -> str:
        return f"{self.what} from {self.begin_ms} to {self.end_ms}"


class IdleHistory:
    """What happened to one queue that deletes itself.

    Attributes:
        limit_ms: For how long it may be idle.
        made_ms: When it was there.
        uses: Those that were answered with yes.
        tried_ms: When the last use was over, answered or not.
        starts: When the broker came up again: its time begins anew.
        gone_ms: When it was seen to be gone; None while it is there.
        left: What stores and catalog kept of it then, in words.
        answers: What was answered to uses after that.
        over_ms: The end of the run.
    """

    def __init__(self, limit_ms: int) -> None:
        self.limit_ms = limit_ms
        self.made_ms = 0
        self.uses: list[IdleUse] = []
        self.tried_ms = 0
        self.starts: list[int] = []
        self.gone_ms: int | None = None
        self.left: list[str] = []
        self.answers: list[str] = []
        self.over_ms = 0


def auto_delete(history: IdleHistory) -> Iterator[str]:
    """I42: a queue that was used within its window is there; one that was not goes, with all its fragments."""
    gone_ms = history.gone_ms
    for use in history.uses:
        # A use of which only the answer was late may have been before the window.
        if gone_ms is not None and use.begin_ms < gone_ms < use.begin_ms + history.limit_ms:
            yield f"deleted at {gone_ms}, {gone_ms - use.begin_ms} ms after {use!r}"
        if gone_ms is not None and use.what == RECEIVER and use.begin_ms < gone_ms < use.end_ms + history.limit_ms:
            yield f"deleted at {gone_ms}, within {history.limit_ms} ms of {use!r}"
        if gone_ms is not None and use.begin_ms > gone_ms:
            yield f"gone at {gone_ms}, and yet {use!r}"
    last_ms = max([history.made_ms, history.tried_ms, *history.starts])
    # A receiver that has gone counts from the next look on, which may be a whole window later.
    due_ms = last_ms + 2 * history.limit_ms + GRACE_MS
    if gone_ms is None and history.over_ms > due_ms:
        yield f"still there at {history.over_ms}, last used at {last_ms}"
    if gone_ms is not None and gone_ms > due_ms:
        yield f"deleted at {gone_ms} only, last used at {last_ms}"
    yield from history.left
    for answer in history.answers:
        if answer != NOT_FOUND:
            yield f"a deleted queue answers {answer}"


RECEIVER: Final = "a receiver"
NOT_FOUND: Final = "amqp:not-found"
