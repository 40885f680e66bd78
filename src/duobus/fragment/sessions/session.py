"""One message session: its available messages, and the lock of whoever holds it (Azure: message sessions)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from duobus.fragment.message import QueuedMessage
    from duobus.fragment.sessions.lock_owner import LockOwner

#: So many lock counters a holder's list may have before those of settled messages are struck off.
HELD_MIN: Final = 32


class Session:
    """One session that has messages or a holder.

    Attributes:
        session_id: Its name; may be empty.
        counts: Heap of the counts of its available messages; some may be outdated.
        available: How many are not.
        lock: Of its holder, or None.
        listed: The count under which it stands in the heap of free sessions; 0 when it does not.
        returning: Messages that are being abandoned: nothing newer goes out before they are back (I19).
    """

    __slots__ = ("available", "counts", "listed", "lock", "returning", "session_id")

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.counts: list[int] = []
        self.available = 0
        self.lock: SessionLock | None = None
        self.listed = 0
        self.returning = 0


class SessionLock:
    """A holder's right to one session, until it ends.

    Attributes:
        number: Of the locks of this life of the fragment.
        source_no: Where the session is.
        until_ms: End, broker time.
        held: Lock counters of the messages that the holder has, and of some that it had: see ``unsettled``.
        held_max: How many there may be before those are struck off.
        promised: Messages that receive-and-delete commands in waiting will take.
        owner: Who is told of messages and of the end.
        is_over: It was given back, ran out, or went with the fragment's memory.
        is_notified: Its owner is about to be told of messages.
    """

    __slots__ = (
        "held",
        "held_max",
        "is_notified",
        "is_over",
        "number",
        "owner",
        "promised",
        "session",
        "source_no",
        "until_ms",
    )

    def __init__(self, session: Session, source_no: int, number: int, until_ms: int, owner: LockOwner) -> None:
        self.session = session
        self.source_no = source_no
        self.number = number
        self.until_ms = until_ms
        self.owner = owner
        self.held: list[int] = []
        self.held_max = HELD_MIN
        self.promised = 0
        self.is_over = False
        self.is_notified = False

    @property
    def session_id(self) -> str:
        """Of the session."""
        return self.session.session_id

    def unsettled(self, locks: dict[int, QueuedMessage]) -> list[int]:
        """Lock counters of the messages that the holder has; ``locks`` are all that hold, and no counter comes twice.

        A settlement has no step for each holder, so those of settled messages are struck off here.
        """
        held = self.held = [number for number in self.held if number in locks]
        self.held_max = max(HELD_MIN, 2 * len(held))
        return held
