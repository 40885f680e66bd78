"""What a process that runs tests tells the one that prints."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kits.few_reports import TOLD_FROM_S, is_shown, tell_less


def report(when: str, outcome: str = "passed", duration: float = 0.0, sections: tuple[Any, ...] = ()) -> dict[str, Any]:
    return {"data": {"when": when, "outcome": outcome, "duration": duration, "sections": list(sections)}}


@pytest.mark.parametrize(
    ("event", "data"),
    [
        ("testreport", report("call")),
        ("testreport", report("call", "failed")),
        ("testreport", report("setup", "failed")),
        ("testreport", report("setup", "skipped")),
        ("testreport", report("teardown", "failed")),
        ("testreport", report("setup", duration=TOLD_FROM_S)),
        ("testreport", report("teardown", sections=(("Captured stdout teardown", "said"),))),
        ("logfinish", {"nodeid": "a"}),
        ("runtest_protocol_complete", {"item_index": 1}),
        ("warning_recorded", {"nodeid": "a"}),
        ("collectreport", report("collect", "failed")),
        ("workerfinished", {}),
    ],
)
def test_what_is_printed_or_counted_is_told(event: str, data: dict[str, Any]) -> None:
    assert is_shown(event, data)


@pytest.mark.parametrize(
    ("event", "data"),
    [("testreport", report("setup")), ("testreport", report("teardown")), ("logstart", {"nodeid": "a"})],
)
def test_what_nobody_sees_is_not_told(event: str, data: dict[str, Any]) -> None:
    assert not is_shown(event, data)


class WorkerInteractor:
    """As pytest-xdist calls it."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def sendevent(self, name: str, **_data: Any) -> None:
        self.sent.append(name)


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"verbose": 0}, ["logfinish"]),
        ({"verbose": -1}, ["logfinish"]),
        ({"verbose": 1}, ["logstart", "logfinish"]),
        ({"verbose": 0, "xmlpath": "report.xml"}, ["logstart", "logfinish"]),
    ],
)
def test_who_wants_to_see_each_test_or_a_report_is_told_everything(options: dict[str, Any], sent: list[str]) -> None:
    interactor = WorkerInteractor()
    plugins = SimpleNamespace(get_plugins=lambda: [object(), interactor])
    tell_less(SimpleNamespace(pluginmanager=plugins, getoption=lambda name, default=None: options.get(name, default)))  # type: ignore[arg-type]
    for name in ("logstart", "logfinish"):
        interactor.sendevent(name, nodeid="a")
    assert interactor.sent == sent
