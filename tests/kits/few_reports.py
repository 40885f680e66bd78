"""What a process that runs tests tells the one that prints: what is shown, and nothing of the rest.

A process of pytest-xdist sends six events for each test: that it begins, how its set-up, the test and its end went,
that it is over, and that the next may come. Python packs and unpacks each of them, which costs a millisecond of
processor time for each of twelve thousand tests. A set-up or an end that passed is shown nowhere, unless it took long;
nor is the beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

#: A set-up or end that took so long, in seconds, is told: it stands among the slowest (``--durations``).
TOLD_FROM_S: Final = 0.1


def is_shown(event: str, data: dict[str, Any]) -> bool:
    """Whether an event is printed or counted."""
    if event == "logstart":
        return False
    report = data.get("data", {})
    if event != "testreport" or report["when"] == "call" or report["outcome"] != "passed":
        return True
    return bool(report["duration"] >= TOLD_FROM_S or report["sections"])


def tell_less(config: pytest.Config) -> None:
    """In a process that runs tests, unless somebody wants to see each of them or a report is written."""
    interactor = next(
        (one for one in config.pluginmanager.get_plugins() if type(one).__name__ == "WorkerInteractor"), None
    )
    if interactor is None or config.getoption("verbose") > 0 or config.getoption("xmlpath", None):
        return
    send: Callable[..., None] = interactor.sendevent

    def send_shown(name: str, **data: Any) -> None:
        if is_shown(name, data):
            send(name, **data)

    interactor.sendevent = send_shown
