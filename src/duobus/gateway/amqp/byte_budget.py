"""The byte budget of a server: how much of its clients' messages it holds before a store has them.

Counted are deliveries of which frames are missing, and messages on their way to a store. Beyond the limit the
connections that hold any of it are not read, so that they cannot add more, until a quarter of it is free again; what
is on its way to a store gets there by itself. When nearly all of it is unfinished deliveries, nothing would ever get
free: then one connection at a time has the turn and is read on until its message is stored (AMQP 1.0 part 2, 2.6.14).

Messages of open transactions are *kept*: only their client, or time, lets them go on. They may fill a part of the
budget, and whoever holds nothing else is read on, so that its discharge is heard.
"""

from __future__ import annotations

from typing import Final, Protocol

DEFAULT_BYTES: Final = 256 << 20
#: The part of the budget that open transactions may fill: one in so many.
KEPT_PART: Final = 2

_NOTHING: Final = (0, 0)


class Holder(Protocol):
    """A connection that holds bytes of messages."""

    def see_to_reading(self) -> None:
        """Ask ``ByteBudget.may_read`` again, and read or do not read accordingly."""


class ByteBudget:
    """The bytes that all connections of a server hold.

    Attributes:
        limit: In bytes.
        used: In bytes. May pass the limit by what connections that held nothing brought in one read each, and by the
            message that has the turn.
        kept: The bytes of it that open transactions hold.
        is_over: The limit was passed and there is no room again yet.
        turn: Who is read on all the same.
    """

    __slots__ = ("_held", "_partial", "_resume_at", "is_over", "kept", "limit", "turn", "used")

    def __init__(self, limit: int = DEFAULT_BYTES) -> None:
        self.limit = limit
        self.used = 0
        self.kept = 0
        self.is_over = False
        self.turn: Holder | None = None
        self._resume_at = limit - limit // 4
        self._partial = 0
        # Holder to (bytes of unfinished deliveries, bytes on their way to a store), by age.
        self._held: dict[Holder, tuple[int, int]] = {}

    def may_read(self, holder: Holder) -> bool:
        """Whether a connection may be read now."""
        return not self.is_over or self.turn is holder or holder not in self._held

    def note(self, holder: Holder, partial: int, carried: int) -> None:
        """Note what a connection holds now, in bytes: of unfinished deliveries, and on their way to a store."""
        held = self._held
        partial_before, carried_before = held.get(holder, _NOTHING)
        self.used += partial + carried - partial_before - carried_before
        self._partial += partial - partial_before
        if partial or carried:
            held[holder] = (partial, carried)
        else:
            held.pop(holder, None)
        if self.is_over:
            self._note_while_over(holder, is_stored=carried_before > 0 and carried == 0)
        elif self.used > self.limit:
            self._note_excess()

    def keep(self, size: int) -> bool:
        """Count bytes of an open transaction; False, and they are not counted, when there is no room for them."""
        if self.kept + size > self.limit // KEPT_PART:
            return False
        self.kept += size
        self.used += size
        if self.used > self.limit and not self.is_over:
            self._note_excess()
        return True

    def drop(self, size: int) -> None:
        """An open transaction has given bytes up, or gone on to a store with them."""
        self.kept -= size
        self.used -= size
        if self.is_over and self.used <= self._resume_at:
            self._resume(list(self._held))

    def _note_excess(self) -> None:
        """The limit was passed."""
        self.is_over = True
        self._exempt_next()
        self._notify(list(self._held))

    def _resume(self, holders: list[Holder]) -> None:
        self.is_over = False
        self.turn = None
        self._notify(holders)

    def _note_while_over(self, holder: Holder, *, is_stored: bool) -> None:
        if self.used <= self._resume_at:
            self._resume([holder, *self._held])
            return
        if self.turn is holder and (is_stored or holder not in self._held):
            self.turn = None
            if holder in self._held:
                # It goes on with its next message after everybody else.
                self._held[holder] = self._held.pop(holder)
        if self.turn is None:
            self._exempt_next()
        self._notify([holder])

    def _exempt_next(self) -> None:
        if self._partial + self.kept <= self._resume_at:
            # Enough is on its way to a store.
            return
        self.turn = next((holder for holder, (partial, _) in self._held.items() if partial), None)
        if self.turn is not None:
            self.turn.see_to_reading()

    def _notify(self, holders: list[Holder]) -> None:
        for holder in holders:
            holder.see_to_reading()
