"""Doubts: messages that an earlier life of their fragment has sent on, perhaps (I14).

Between stores a forward is two commits, and what is between them is in no record of the origin. A new life knows
only that everything it found may be at the destination already. Sending it again is safe, for the ledger knows it;
letting it expire is not: it would be a dead letter here and a message there. So what a source that forwards has found
expires only when the destination has told which messages of this origin its ledger holds (``lane.py`` asks). The answer
is final: what an earlier life sent is taken in or void by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from duobus.fragment.message import ACTIVE

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.message import Slot
    from duobus.fragment.source import Source

#: How often it is looked whether what stands at the front in doubt has been taken from there.
LOOK_MS: Final = 1_000


def begin(source: Source) -> None:
    """A source has been found in a store."""
    source.doubt_below = source.next_count if source.settings.forwards else 0


def holds(source: Source, count: int) -> bool:
    """Whether a message may not expire, since it may be at its destination, or is."""
    return count < source.doubt_below or count in source.elsewhere


def withheld(fragment: Fragment, source: Source, slot: Slot, now_ms: int) -> bool:
    """Whether a message would have expired if that could be; it is not sent on either until that is known."""
    return slot.count < source.doubt_below and fragment.lapsed(source, slot, now_ms)


def settle(fragment: Fragment, source: Source, taken: Iterable[int], now_ms: int | None = None) -> None:
    """The destination has these messages, and none of the others of an earlier life, nor will it get them from there.

    ``now_ms``: with it, only what has run out of life is looked at again.
    """
    below, source.doubt_below = source.doubt_below, 0
    still = (count for count in taken if count in source.by_count or source.is_cold(count))
    source.elsewhere = {count for count in still if count < below}
    for slot in source.by_count.values():
        if slot.count >= below or slot.state != ACTIVE or slot.lock or slot.count in source.elsewhere:
            continue
        if now_ms is None or fragment.lapsed(source, slot, now_ms):
            # Its entry in the index was used up while it was held.
            slot.expires_ms = 0
            fragment.index_expiry(source, slot, always=True)
    fragment.deadline = 0


def settings_changed(fragment: Fragment, source: Source) -> None:
    """A source that forwards no more holds nothing."""
    if (source.doubt_below or source.elsewhere) and not source.settings.forwards:
        source.doubt_below = source.next_count
        settle(fragment, source, ())
