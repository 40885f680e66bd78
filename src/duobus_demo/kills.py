"""Killing a broker at a moment that proves something: with work on its way, for certain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from duobus.clock import Clock
from duobus.testing.server import DEFAULT_OPTIONS, DemoFailed, ServerProcess
from duobus_demo.clients import silence_sdk_logs
from duobus_demo.run_state import RunState

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


def kill_failures(kills: list[dict[str, Any]], wanted: int, sends_min: int, held_min: int, held: str) -> list[str]:
    """Return what is wrong with the kills of a result, one sentence each.

    Args:
        kills: As the part has recorded them.
        wanted: How many there had to be.
        sends_min: Unsettled sends that each had to meet.
        held_min: The same of what receivers hold.
        held: What that is called.
    """
    failures = [] if len(kills) == wanted else [f"{len(kills)} kills instead of {wanted}."]
    for number, kill in enumerate(kills, 1):
        if kill["unsettled_sends"] < sends_min or kill["locks_held"] < held_min:
            failures.append(
                f"Kill {number} did not meet its conditions: {kill['unsettled_sends']} sends unsettled, at least "
                f"{sends_min} needed; {kill['locks_held']} {held} held, at least {held_min} needed."
            )
    return failures


def play_with_server(
    folder: Path,
    config: Mapping[str, Any],
    clock: Clock,
    play: Callable[[ServerProcess], dict[str, Any]],
    options: Sequence[str] = DEFAULT_OPTIONS,
) -> dict[str, Any]:
    """Play a part against a broker of its own in ``folder``; return the result's members.

    ``options``: of ``duobus serve``.

    Raises:
        DemoFailed: It could not be finished; the text ends with the broker's last words.
    """
    silence_sdk_logs()
    server = ServerProcess(folder, config=config, arguments=options, clock=clock)
    try:
        with server:
            return play(server)
    except DemoFailed as error:
        raise DemoFailed(f"{error}\nThe end of the broker's log:\n{server.log_tail()}") from error
