"""SessionService: what there is for those who hold sessions of a fragment (Azure: message sessions).

None of it but a state needs a commit: locks of sessions live in memory, like those of messages.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from duobus.broker.delivery.session_groups import notify_holders
from duobus.errors import InternalError, MessageNotFound, StoreUnavailable
from duobus.fragment.message import MAIN
from duobus.fragment.receive import TakeAndRemove
from duobus.fragment.sessions import sessions
from duobus.fragment.sessions.lock_owner import LockOwner
from duobus.fragment.sessions.sessions import SessionLock, session_lock_lost
from duobus.fragment.settlement import SettleBatch
from duobus.model.batches import DeliveryBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duobus.broker.delivery.session_acceptor import SessionReceiver
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.fragment.fragment import Fragment


class SessionService:
    """The sessions of one fragment."""

    __slots__ = ("_handle",)

    def __init__(self, handle: FragmentHandle) -> None:
        self._handle = handle

    def accept(self, source_no: int, session_id: str, owner: LockOwner) -> SessionLock | None:
        """Lock a session by name; None when somebody has it.

        Raises:
            StoreUnavailable: The fragment is away.
        """
        fragment, now_ms = self._handle.present()
        lock = sessions.accept(fragment, fragment.sources[source_no], session_id, owner, now_ms)
        if fragment.ended:
            # Its former holder, whose lock had run out, hears of it before the new one does.
            notify_holders_of(fragment)
        self._handle.note_deadline(fragment)
        return lock

    def age_of_next(self, source_no: int) -> tuple[int, int, str] | None:
        """When the oldest message of the free sessions was enqueued, its count, and its session; None without one."""
        handle = self._handle
        if handle.fragment is None:
            return None
        fragment, _ = handle.present()
        source = fragment.sources[source_no]
        found = source.sessions.next_free(source) if source.sessions is not None else None
        return None if found is None else (found[1].enqueued_ms, found[1].count, found[0].session_id)

    def renew(self, lock: SessionLock) -> int:
        """Renew a session's lock and return its new end.

        Raises:
            SessionLockLost: It is over.
        """
        handle = self._handle
        if not lock.is_over or handle.fragment is not None:
            fragment, now_ms = handle.present()
            source, was_over = fragment.sources.get(lock.source_no), lock.is_over
            until_ms = None if source is None else sessions.renew(fragment, source, lock, now_ms)
            if until_ms is not None:
                if was_over:
                    # There may be messages by now.
                    handle.follow_up(fragment, [])
                return until_ms
        raise session_lock_lost(lock.session_id)

    def release(self, lock: SessionLock, *, counted: bool) -> None:
        """Give a session back, with all messages that its holder has; one that is over is no error."""
        handle = self._handle
        if handle.fragment is None:
            return
        if lock.is_over:
            source = handle.fragment.sources.get(lock.source_no)
            if source is not None and source.sessions is not None:
                source.sessions.let_go(lock.session_id, lock)
        else:
            try:
                fragment, now_ms = handle.present()
            except StoreUnavailable:
                # The store has another owner by now: there the session is free since it was taken over.
                return
            handle.follow_up(fragment, sessions.release(fragment, lock, now_ms, counted=counted))

    def take(self, lock: SessionLock, credit: int, receiver: SessionReceiver) -> None:
        """Hand out up to ``credit`` messages; the answer goes to ``receiver.deliver``, now or later."""
        handle = self._handle
        if lock.is_over or handle.fragment is None:
            receiver.deliver(DeliveryBatch(handle, b"", 0, [], 0), credit)
        elif receiver.removing:
            lock.promised += credit
            handle.submit(TakeAndRemove(handle, lock.source_no, MAIN, credit, receiver, lock))
        else:
            try:
                fragment, _ = handle.present()
            except StoreUnavailable:
                receiver.deliver(DeliveryBatch(handle, b"", 0, [], 0), credit)
                return
            first, messages = sessions.take(fragment, lock, credit)
            handle.note_counts(fragment)
            receiver.deliver(DeliveryBatch(handle, fragment.prefix, first, messages, lock.until_ms), credit)

    def hand_out(self, lock: SessionLock) -> None:
        """Hand out to the group of a session's holder what there is: the one way of all that goes there, in order."""
        try:
            fragment, _ = self._handle.present()
        except StoreUnavailable:
            return
        if not lock.is_notified and not lock.is_over:
            # Else it is about to be told.
            lock.is_notified = True
            notify_holders(fragment, [lock])

    def claim(self, command: SettleBatch) -> None:
        """A holder settles: what it settles is taken out of its lock now, so that closing the link cannot undo it."""
        fragment, _ = self._handle.present()
        command.claim(fragment)

    def lock_deferred(self, lock: SessionLock, counts: Sequence[int]) -> DeliveryBatch:
        """Lock deferred messages of a session by number, all or none.

        Raises:
            SessionLockLost: The session is not held any more.
            MessageNotFound: One of them is not deferred, or belongs to another session.
        """
        handle = self._handle
        fragment, now_ms = handle.present()
        try:
            first, messages, until_ms = sessions.lock_deferred(fragment, lock, counts, now_ms)
        except MessageNotFound:
            # What has run out of life goes now that it was asked for.
            handle.present()
            raise
        handle.note_counts(fragment)
        return DeliveryBatch(handle, fragment.prefix, first, messages, until_ms)

    async def state(self, lock: SessionLock) -> bytes | None:
        """The durable state of a session that is held, read from the store; None when it has none.

        Raises:
            SessionLockLost: It is not held any more.
            InternalError: The store has the state's row no more, or it is damaged.
        """
        handle = self._handle
        broker = handle.broker
        before: tuple[int, int, int] | None = None
        while True:
            if lock.is_over:
                raise session_lock_lost(lock.session_id)
            fragment, _ = handle.present()
            if lock.is_over:
                continue
            source = fragment.sources[lock.source_no]
            entry = source.sessions.states.get(lock.session_id) if source.sessions is not None else None
            if entry is None:
                return None
            if entry == before:
                # The store does not have what it was told to keep: it has reported that (I57).
                raise InternalError(f"The state of the session '{lock.session_id}' cannot be read. Set it anew.")
            rows = await broker.use(partial(broker.store.load, source.source_key, entry[0], 1))
            if rows and rows[0].count == entry[0]:
                return rows[0].payload
            # Replaced while it was read: what replaced it is known by now.
            before = entry


def notify_holders_of(fragment: Fragment) -> None:
    """Tell the holders of sessions what happened to them since the last time."""
    while fragment.ended or fragment.notified:
        ended, fragment.ended = fragment.ended, []
        notified, fragment.notified = fragment.notified, []
        for lock in ended:
            lock.owner.lost()
        if notified:
            notify_holders(fragment, notified)


__all__ = ["SessionService", "notify_holders_of"]
