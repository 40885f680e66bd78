"""Killing a broker at a moment that proves something: with work on its way, for certain."""

from __future__ import annotations

from collections.abc import Callable

from duobus.demo.errors import DemoFailed
from duobus.demo.run_state import RunState
from duobus.demo.server_process import ServerProcess

_FREEZE_S = 0.15
_ATTEMPTS = 20
_WAIT_S = 10.0


def freeze_in_the_middle(run: RunState, server: ServerProcess, is_busy: Callable[[], bool]) -> None:
    """Stop the broker at a moment when ``is_busy`` says so, for certain.

    An answer can be on its way when a send is counted as unsettled. A frozen broker sends none, so what is unsettled a
    moment later is unsettled for good.

    Raises:
        DemoFailed: There was no such moment.
    """
    for _attempt in range(_ATTEMPTS):
        run.wait_until(is_busy, _WAIT_S, "a send is on its way")
        server.freeze()
        run.stopping.wait(_FREEZE_S)
        if is_busy():
            return
        server.thaw()
    raise DemoFailed("No send was unsettled at any moment that was tried for the kill.")
