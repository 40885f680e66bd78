"""What waits for the end of a turn of the event loop, so that all that the turn reads joins it: a commit, an answer.

A server's loop (``server/turn_selector.py``) has a line of its own for this, which costs no handle, no context and no
further round of the loop. Any other loop calls it in its next round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def turn_end(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], object]:
    """Return what has a callback called once, at the end of the turn that is under way; for the loop's thread."""
    found: Callable[[Callable[[], None]], object] = getattr(loop, "call_at_turn_end", loop.call_soon)
    return found
