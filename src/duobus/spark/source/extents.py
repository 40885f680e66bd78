"""Where the messages of an entity begin and end, found by peeking at single messages.

Numbers are never guessed: an end is the number of a message that was peeked at, so that no message that gets its number
later is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from duobus.spark.offsets import COUNT_BITS, COUNT_MASK

#: The first message with a number of at least this one; None: there is none.
At = Callable[[int], Any]

#: Sequence numbers are signed.
_NUMBER_MAX: Final = (1 << 63) - 1


class Extent(NamedTuple):
    """The messages of one fragment.

    Attributes:
        fragment: Number of the fragment.
        first: Number of the first message.
        last: Number of the last message.
    """

    fragment: int
    first: int
    last: int


def extents(at: At, start: int = 1) -> list[Extent]:
    """Find the fragments that hold messages, from a number on."""
    found: list[Extent] = []
    number = start
    while number <= _NUMBER_MAX:
        message = at(number)
        if message is None:
            break
        first = message.sequence_number
        fragment = first >> COUNT_BITS
        found.append(Extent(fragment, first, last_until(at, first, fragment << COUNT_BITS | COUNT_MASK)))
        number = (fragment + 1) << COUNT_BITS
    return found


def last_until(at: At, known: int, bound: int) -> int:
    """Return the largest number of a message that is at most ``bound``; ``known`` is the number of a message."""

    def seen(number: int) -> int | None:
        message = at(number)
        found = bound + 1 if message is None else int(message.sequence_number)
        return found if found <= bound else None

    low, high, step = known, bound, 1
    while low < high:
        found = seen(min(low + step, high))
        if found is None:
            high = min(low + step, high) - 1
            break
        low, step = found, step * 2
    while low < high:
        middle = (low + high + 1) // 2
        found = seen(middle)
        if found is None:
            high = middle - 1
        else:
            low = found
    return low


def first_since(at: At, extent: Extent, since_ms: int) -> int:
    """Return the first number of messages enqueued at or after an instant; beyond the last number if there is none.

    Within a fragment numbers are given in the order of enqueuing.
    """
    low, high = extent.first, extent.last + 1
    while low < high:
        middle = (low + high) // 2
        message = at(middle)
        number = extent.last + 1 if message is None else message.sequence_number
        if number > extent.last or _enqueued_ms(message) >= since_ms:
            high = middle
        else:
            low = number + 1
    return low


def _enqueued_ms(message: Any) -> int:
    return int(message.enqueued_time_utc.timestamp() * 1000)


def cut(first: int, last: int, parts: int) -> list[tuple[int, int]]:
    """Divide a range of numbers, ends included, into a number of ranges of about the same length."""
    size = -(-(last - first + 1) // max(parts, 1))
    return [(low, min(low + size - 1, last)) for low in range(first, last + 1, max(size, 1))]
