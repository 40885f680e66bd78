"""Outlets: whoever holds many sessions is told of their messages once a turn, and given them in one batch.

What is done per link costs as much as what is done per message, where a turn has one or two for each of a thousand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duobus.broker.fragment.session_turns import take_turn
from duobus.model.columns import Mailbox

if TYPE_CHECKING:
    from duobus.broker.accepting import SessionReceiver
    from duobus.broker.fragment.fragment import Fragment
    from duobus.broker.fragment.sessions import SessionLock
    from duobus.broker.fragment.slot import Slot
    from duobus.broker.handle import FragmentHandle


class TurnBatch:
    """Messages that a fragment hands to several holders of sessions at once, locked.

    Their credit counts as lent until the batch is written, or found to be nobody's any more.

    Attributes:
        handle: The fragment.
        prefix: First 8 bytes of every lock token of this batch.
        first_lock: Lock counter of the first message; the others follow by one.
        slots: The messages, those of one holder next to each other.
        parts: Whose they are: (lock of the session, number of messages, when that lock ends).
    """

    __slots__ = ("first_lock", "handle", "parts", "prefix", "slots")

    def __init__(
        self,
        handle: FragmentHandle,
        prefix: bytes,
        first_lock: int,
        slots: list[Slot],
        parts: list[tuple[SessionLock, int, int]],
    ) -> None:
        self.handle = handle
        self.prefix = prefix
        self.first_lock = first_lock
        self.slots = slots
        self.parts = parts


class Outlet(Mailbox):
    """The mailbox that several holders of sessions share; it gets TurnBatches."""

    __slots__ = ()


def hand_out_all(fragment: Fragment, woken: list[SessionLock]) -> list[SessionLock]:
    """Give outlets what there is of their sessions that were woken, as far as the credit of each goes.

    Returns:
        Those whose holders share no outlet: they are still to be told.
    """
    home: FragmentHandle = fragment.handle  # type: ignore[assignment]
    # Else it was moved or deleted while a commit of it was under way: its sessions were told that they are lost.
    is_there = home.fragment is fragment
    if is_there:
        # Time may have passed since: what has run out is found now, and not handed out.
        home.broker.present(home)
    alone: list[SessionLock] = []
    turns: dict[Outlet, list[tuple[SessionLock, int, int]]] = {}
    find = turns.get
    for lock in woken:
        receiver: SessionReceiver = lock.owner  # type: ignore[assignment]
        outlet = receiver.outlet
        if outlet is None:
            alone.append(lock)
            continue
        asked = find(outlet)
        if asked is None:
            if not is_there or home.part(lock.source_no).fragment is not fragment:
                continue
            asked = turns[outlet] = []
        lock.is_woken = False
        session = lock.session
        number = session.available
        wanted = receiver.wanted
        # ``sessions.available``; nobody who shares an outlet was promised anything.
        if not number or not wanted or session.returning or lock.is_over:
            continue
        if number > wanted:
            number = wanted
        receiver.wanted = wanted - number
        receiver.lent += number
        asked.append((lock, number, lock.until_ms))
    for outlet, asked in turns.items():
        if asked:
            _hand_out(fragment, home, outlet, asked)
    return alone


def _hand_out(
    fragment: Fragment, home: FragmentHandle, outlet: Outlet, asked: list[tuple[SessionLock, int, int]]
) -> None:
    source_no = asked[0][0].source_no
    first, slots = take_turn(fragment, fragment.sources[source_no], asked)
    home.broker.note_touched(fragment)
    outlet.ready.append(TurnBatch(home.part(source_no), fragment.prefix, first, slots, asked))
    outlet.wake()
