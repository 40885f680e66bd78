"""Turns of the interpreter: how long a thread that computes keeps it while another waits for it (decision 0039).

It is one setting for all threads of the process, so only a server changes it (``set_switch_interval``); where the
broker is part of somebody else's program, and in the simulation, which has one thread, it stays as it is.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from duobus.storage.interface import CommitBatch

#: The event loop and the store threads hand the interpreter to each other often: at the default of 5 ms a thread
#: that computes stops a store's commit for that long at every statement.
TURN_S: Final = 0.0002
#: While a commit of many pieces is prepared and written. Each turn costs some microseconds to hand over, so that small
#: commits are slower with it (A100 by a seventh).
SHORT_TURN_S: Final = 0.00002
#: Pieces of a commit's removals from which on it has much to do in Python: holders of sessions settle single messages.
PIECES_MIN: Final = 100


class _ShortSwitchInterval:
    def __enter__(self) -> None:
        sys.setswitchinterval(SHORT_TURN_S)

    def __exit__(self, *_: object) -> None:
        sys.setswitchinterval(TURN_S)


_SHORT: Final = _ShortSwitchInterval()
_AS_IT_IS: Final = nullcontext()


def set_switch_interval() -> None:
    """Set the turns of this process, which is a server."""
    sys.setswitchinterval(TURN_S)


def switch_interval_for(batch: CommitBatch) -> AbstractContextManager[None]:
    """In which turns the thread that commits and the event loop compute while this is committed."""
    if len(batch.removed) < PIECES_MIN or round(sys.getswitchinterval() / TURN_S, 3) != 1:
        return _AS_IT_IS
    return _SHORT
