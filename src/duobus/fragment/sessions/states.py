"""States of sessions: rows of the store, of which memory keeps where they lie (I36)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from duobus.errors import QuotaExceeded, ServiceBusError
from duobus.fragment.message import SESSION_STATE
from duobus.fragment.sessions.sessions import session_lock_lost, sessions_of
from duobus.model.metadata import MessageMetadata
from duobus.storage.interface import CommitBatch, Put, StoredMessage

if TYPE_CHECKING:
    from duobus.fragment.commands import SetSessionState
    from duobus.fragment.source import Source

#: Contract chapter 15: bytes of one state.
STATE_BYTES_MAX: Final = 256 * 1024
#: States of one source: what the service allows an entity (reliability 4.1).
STATES_MAX: Final = 1_000_000


def state_fault(source: Source, command: SetSessionState) -> ServiceBusError | None:
    """Why a state cannot be set, or None: only the holder may (I36)."""
    sessions = sessions_of(source)
    if command.lock.is_over:
        return session_lock_lost(command.lock.session_id)
    is_new = command.lock.session_id not in sessions.states
    if is_new and command.state is not None and len(sessions.states) + len(sessions.decided) >= STATES_MAX:
        return QuotaExceeded(f"There are {STATES_MAX} session states. Clear those that are not needed (set them null).")
    return None


def apply_state(source: Source, command: SetSessionState, now_ms: int, commit: CommitBatch) -> None:
    """Put the new state's row in the place of the old one's; it is seen when it is durable."""
    sessions = sessions_of(source)
    session_id = command.lock.session_id
    old = sessions.decided[session_id] if session_id in sessions.decided else sessions.states.get(session_id)
    new: tuple[int, int, int] | None = None
    if command.state is not None:
        new = (source.next_count, len(command.state), now_ms)
        special = MessageMetadata(session_id=session_id).encode()
        commit.puts.append(
            Put(source.source_key, source.next_count, now_ms, [command.state], {0: (SESSION_STATE, 0, special)})
        )
        source.next_count += 1
    if old is not None:
        commit.removed.append((source.source_key, old[0], old[0]))
    sessions.decided[session_id] = command.entry = new


def release_state(source: Source, command: SetSessionState) -> None:
    """Show the new state."""
    sessions = sessions_of(source)
    session_id = command.lock.session_id
    if sessions.decided.get(session_id) is command.entry:
        del sessions.decided[session_id]
    old = sessions.states.pop(session_id, None)
    sessions.state_bytes -= old[1] if old is not None else 0
    if command.entry is not None:
        sessions.states[session_id] = command.entry
        sessions.state_bytes += command.entry[1]


def recover_state(source: Source, row: StoredMessage) -> None:
    """Take in a state read back from the store; only where it lies is kept."""
    sessions = sessions_of(source)
    special = MessageMetadata.decode(row.special) if row.special is not None else MessageMetadata()
    sessions.states[special.session_id or ""] = (row.count, len(row.payload), row.enqueued_ms)
    sessions.state_bytes += len(row.payload)
