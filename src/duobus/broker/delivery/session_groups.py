"""Session groups: a client with many sessions gets their messages once in a loop iteration, in one batch.

What is done per link costs as much as what is done per message, where a turn has one or two for each of a thousand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from duobus.fragment.sessions.delivery_batches import take_for_sessions
from duobus.model.batches import DeliveryBatch, Mailbox

if TYPE_CHECKING:
    from duobus.broker.delivery.session_acceptor import SessionReceiver
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.message import QueuedMessage
    from duobus.fragment.sessions.sessions import SessionLock


class SessionDeliveryBatch:
    """Messages that a fragment hands to several holders of sessions at once, locked.

    Their credit counts as granted until the batch is written, or found to be no session's any more.

    Attributes:
        handle: The fragment.
        prefix: First 8 bytes of every lock token of this batch.
        first_lock: Lock counter of the first message; the others follow by one.
        messages: The messages, those of one holder next to each other.
        parts: Whose they are: (lock of the session, number of messages, when that lock ends).
    """

    __slots__ = ("first_lock", "handle", "messages", "parts", "prefix")

    def __init__(
        self,
        handle: FragmentHandle,
        prefix: bytes,
        first_lock: int,
        messages: list[QueuedMessage],
        parts: list[tuple[SessionLock, int, int]],
    ) -> None:
        self.handle = handle
        self.prefix = prefix
        self.first_lock = first_lock
        self.messages = messages
        self.parts = parts

    def batch_of(self, start: int, number: int, until_ms: int) -> DeliveryBatch:
        """The messages of one holder, from ``start`` on."""
        messages = self.messages[start : start + number]
        return DeliveryBatch(self.handle, self.prefix, self.first_lock + start, messages, until_ms)

    def behind(self, part: int, start: int) -> SessionDeliveryBatch:
        """What is left from a part on, whose first message is that at ``start``."""
        return SessionDeliveryBatch(
            self.handle, self.prefix, self.first_lock + start, self.messages[start:], self.parts[part:]
        )


class SessionGroup(Mailbox):
    """The mailbox that several holders of sessions share; it gets TurnBatches.

    Attributes:
        is_held: Its client does not read as fast: it is handed nothing until ``go_on``.
    """

    __slots__ = ("_behind", "is_held")

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False
        # Sessions of which there are messages, each once since it stays woken, by fragment.
        self._behind: dict[Fragment, list[SessionLock]] = {}

    def put_off(self, fragment: Fragment, lock: SessionLock) -> None:
        """Messages of this session became available while it is held."""
        self._behind.setdefault(fragment, []).append(lock)

    def go_on(self) -> None:
        """Take what there is of the sessions that were put off: it is more at a time, and so cheaper."""
        self.is_held = False
        behind, self._behind = self._behind, {}
        for fragment, notified in behind.items():
            notify_holders(fragment, notified)


def notify_holders(fragment: Fragment, notified: list[SessionLock]) -> None:
    """Give the holders of these sessions what there is of them, or let them take it."""
    home = cast("FragmentHandle", fragment.handle)
    if home.fragment is fragment:
        notified = hand_out_all(fragment, notified)
    else:
        # It was moved or deleted while a commit of it was under way: its sessions were told that they are lost.
        notified = [lock for lock in notified if lock.owner.group is None]
    for lock in notified:
        lock.is_notified = False
        if not lock.is_over:
            lock.owner.offer()


def hand_out_all(fragment: Fragment, notified: list[SessionLock]) -> list[SessionLock]:
    """Hand out to groups the messages of sessions that were notified, as far as the credit of each goes.

    Args:
        fragment: Where they are.
        notified: Their locks, none twice.

    Returns:
        Those whose holders are in no group: these are still to be notified.
    """
    home = cast("FragmentHandle", fragment.handle)
    # Time may have passed since: what has run out is found now, and not handed out.
    home.present()
    alone: list[SessionLock] = []
    turns: dict[SessionGroup, list[tuple[SessionLock, int, int]]] = {}
    find = turns.get
    for lock in notified:
        receiver: SessionReceiver = lock.owner  # type: ignore[assignment]
        group = receiver.group
        if group is None:
            alone.append(lock)
            continue
        if group.is_held:
            group.put_off(fragment, lock)
            continue
        asked = find(group)
        if asked is None:
            if home.of_source(lock.source_no).fragment is not fragment:
                continue
            asked = turns[group] = []
        lock.is_notified = False
        session = lock.session
        number = session.available
        wanted = receiver.wanted
        # ``sessions.available``; a member of a group was promised nothing.
        if not number or not wanted or session.returning or lock.is_over:
            continue
        if number > wanted:
            number = wanted
        receiver.wanted = wanted - number
        receiver.granted += number
        asked.append((lock, number, lock.until_ms))
    for group, asked in turns.items():
        if asked:
            _hand_out(fragment, home, group, asked)
    return alone


def _hand_out(
    fragment: Fragment, home: FragmentHandle, group: SessionGroup, asked: list[tuple[SessionLock, int, int]]
) -> None:
    source_no = asked[0][0].source_no
    first, messages = take_for_sessions(fragment, fragment.sources[source_no], asked)
    home.note_counts(fragment)
    group.ready.append(SessionDeliveryBatch(home.of_source(source_no), fragment.prefix, first, messages, asked))
    group.wake()
