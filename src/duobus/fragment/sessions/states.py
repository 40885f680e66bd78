"""States of sessions: rows of the store, of which memory keeps where they lie (I36)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from duobus.errors import QuotaExceeded, ServiceBusError
from duobus.fragment.commands import Command
from duobus.fragment.message import SESSION_STATE
from duobus.fragment.sessions.sessions import session_lock_lost, sessions_of
from duobus.model.batches import Mailbox
from duobus.model.metadata import MessageMetadata
from duobus.storage.interface import CommitBatch, Put, StoredMessage

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.sessions.session import SessionLock
    from duobus.fragment.source import Source

#: Bytes of one state.
STATE_BYTES_MAX: Final = 256 * 1024
#: States of one source: what the service allows an entity.
STATES_MAX: Final = 1_000_000


class SetSessionState(Command):
    """Set or clear (None) the state of a session that is held.

    Attributes:
        entry: After apply: (count of the row, bytes, time) of the new state; None: cleared.
    """

    __slots__ = ("entry", "lock", "state")

    def __init__(self, handle: Any, lock: SessionLock, state: bytes | None, reply: Mailbox) -> None:
        super().__init__(handle, lock.source_no, reply)
        self.lock = lock
        self.state = state
        self.entry: tuple[int, int, int] | None = None

    def check(self, fragment: Fragment, source: Source, now_ms: int) -> ServiceBusError | None:
        """Say why the state cannot be set, or None: only the holder may (I36)."""
        sessions = sessions_of(source)
        if self.lock.is_over:
            return session_lock_lost(self.lock.session_id)
        is_new = self.lock.session_id not in sessions.states
        if is_new and self.state is not None and len(sessions.states) + len(sessions.decided) >= STATES_MAX:
            text = f"There are {STATES_MAX} session states. Clear those that are not needed (set them null)."
            return QuotaExceeded(text)
        return None

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Put the new state's row in the place of the old one's; it is seen when it is durable."""
        sessions = sessions_of(source)
        session_id = self.lock.session_id
        old = sessions.decided[session_id] if session_id in sessions.decided else sessions.states.get(session_id)
        new: tuple[int, int, int] | None = None
        if self.state is not None:
            new = (source.next_count, len(self.state), now_ms)
            metadata = MessageMetadata(session_id=session_id).encode()
            commit.puts.append(
                Put(source.source_key, source.next_count, now_ms, [self.state], {0: (SESSION_STATE, 0, metadata)})
            )
            source.next_count += 1
        if old is not None:
            commit.removed.append((source.source_key, old[0], old[0]))
        sessions.decided[session_id] = self.entry = new

    def release(self, fragment: Fragment, source: Source, now_ms: int) -> None:
        """Show the new state."""
        sessions = sessions_of(source)
        session_id = self.lock.session_id
        if sessions.decided.get(session_id) is self.entry:
            del sessions.decided[session_id]
        old = sessions.states.pop(session_id, None)
        sessions.state_bytes -= old[1] if old is not None else 0
        if self.entry is not None:
            sessions.states[session_id] = self.entry
            sessions.state_bytes += self.entry[1]


def recover_state(source: Source, row: StoredMessage) -> None:
    """Take in a state read back from the store; only where it lies is kept."""
    sessions = sessions_of(source)
    metadata = MessageMetadata.decode(row.metadata) if row.metadata is not None else MessageMetadata()
    sessions.states[metadata.session_id or ""] = (row.count, len(row.payload), row.enqueued_ms)
    sessions.state_bytes += len(row.payload)
