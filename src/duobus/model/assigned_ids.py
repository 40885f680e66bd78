"""Ids for messages that come without one (decision 0051)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final

from duobus.codec import scan, with_made_id
from duobus.codec.sections import DATA, FRONT_SIZE_MAX, find_section
from duobus.errors import ArgumentInvalid

#: Digits of the random part, 80 bits, and of the number behind it, 48 bits: 32 together.
_RANDOM_DIGITS: Final = 20


class MessageIds:
    """Gives out ids that no other message has, in this namespace or in any other.

    An id is a random number of 80 bits, which each object draws when it is first used, and a count behind it. Every
    life of a server draws its own, so that one which goes on from an older backup repeats no id. Nothing is stored but
    the ids themselves.

    Args:
        new_uuid: Draws random UUIDs of version 4.
    """

    __slots__ = ("_count", "_new_uuid", "_prefix")

    def __init__(self, new_uuid: Callable[[], uuid.UUID]) -> None:
        self._new_uuid = new_uuid
        self._prefix = b""
        self._count = 0

    def next(self) -> bytes:
        """Return a new id: 32 hexadecimal digits."""
        if not self._count:
            digits = self._new_uuid().hex
            # Without the digits that say that it is a random UUID.
            self._prefix = (digits[:12] + digits[-(_RANDOM_DIGITS - 12) :]).encode()
        self._count += 1
        return b"%b%012x" % (self._prefix, self._count)

    def named(self, message: bytes) -> bytes:
        """Return a message with an id: as it is when it has one, else with a new one.

        Raises:
            ArgumentInvalid: Its properties become too large by that.
            DecodeError: The message is malformed.
        """
        found = scan(message)
        if found.message_id is not None:
            return message
        return message[: found.bare] + self.name(message, found.bare)

    def name(self, payload: bytes, bare: int) -> bytes:
        """Return the bare message at an offset, which has no id, with a new one.

        Raises:
            ArgumentInvalid: Its properties become so large by that, that nobody could read it any more.
        """
        named = with_made_id(payload, bare, self.next())
        if len(named) > FRONT_SIZE_MAX and find_section(named, DATA)[0] > FRONT_SIZE_MAX:
            raise ArgumentInvalid(
                f"The message is not taken: its properties have more than {FRONT_SIZE_MAX} bytes together with the "
                "message id that it gets. Put large contents into the body."
            )
        return named
