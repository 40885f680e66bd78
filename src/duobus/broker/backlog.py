"""What waits for one fragment: beyond a bound it says "busy", while the other fragments go on (PE17).

Credit keeps every single sender far below the bound; reaching it means that many send to one fragment, because it is
the only one or because they have one key, and faster than its store writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duobus.broker.admission import busy
from duobus.errors import ServerBusy

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.fragment.commands import Run

#: Messages, and their bytes, that may wait for one fragment: one to two seconds of work at the rates of
#: reference/performance.md. For less than that it is better to let a sender wait. The run that passes the bound is
#: taken, so that the largest message always finds room.
FRAGMENT_MESSAGES_MAX = 50_000
FRAGMENT_BYTES_MAX = 64 << 20


def is_full(handle: FragmentHandle) -> bool:
    """Whether a fragment takes no further run for now."""
    return handle.waiting >= FRAGMENT_MESSAGES_MAX or handle.waiting_bytes >= FRAGMENT_BYTES_MAX


def admit(run: Run) -> ServerBusy | None:
    """Count a run that is about to wait, or say why it may not."""
    handle: FragmentHandle = run.handle
    waiting = handle.waiting
    if waiting >= FRAGMENT_MESSAGES_MAX or handle.waiting_bytes >= FRAGMENT_BYTES_MAX:
        return busy(f"{waiting} messages wait for fragment {handle.number} of this entity")
    number, size = run.share
    handle.waiting = waiting + number
    handle.waiting_bytes += size
    return None


def left(run: Run) -> None:
    """A run waits no longer."""
    handle: FragmentHandle = run.handle
    number, size = run.share
    handle.waiting -= number
    handle.waiting_bytes -= size
