"""What a job on Spark shows on a terminal, in a log and to programs."""

from __future__ import annotations

import json
import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from duobus.cli.job_progress import (
    BAR,
    JSON,
    JSON_MS,
    LINES,
    LINES_MS,
    NONE,
    Aside,
    JobProgress,
    line_of,
    summary_lines,
    tasks_watched,
)
from duobus.spark.jobs.progress import Step, described


class StandingClock:
    """A clock that a test moves."""

    at_ms = 0

    def monotonic_ms(self) -> int:
        return self.at_ms


def shown(form: str) -> tuple[JobProgress, list[str], StandingClock]:
    written: list[str] = []
    clock = StandingClock()
    return JobProgress("capture", form, written.append, clock), written, clock  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("figures", "line"),
    [
        ((None, None, "", 5_000), "sending"),
        ((50, 200, "messages", 10_000), "sending [######------------------] 50 of 200 messages, 5 a second"),
        # More came than there were at first.
        ((300, 200, "messages", 500), "sending [########################] 300 of 300 messages"),
        ((1_234, None, "messages", 1_000), "sending 1,234 messages, 1,234 a second"),
        ((1, 4, "tasks", 10_000), "sending [######------------------] 1 of 4 tasks"),
    ],
)
def test_a_line_has_a_bar_where_the_total_is_known_and_a_rate_of_what_is_counted(
    figures: tuple[Any, Any, str, int], line: str
) -> None:
    assert line_of("sending", *figures, has_bar=True) == line


def test_a_terminal_has_one_line_that_is_written_over_and_removed() -> None:
    progress, written, clock = shown(BAR)
    progress.tell("starting Spark")
    progress.tell(Step("batch 1:", 0, 40))
    clock.at_ms += 2_000
    progress.tell(Step("batch 1:", 20, 40))
    progress.clear()
    assert [text.strip() for text in written[:3]] == [
        "capture: starting Spark",
        "capture: batch 1: [------------------------] 0 of 40 messages",
        "capture: batch 1: [############------------] 20 of 40 messages, 10 a second",
    ]
    assert written[3] == "\r" + " " * len(written[2].strip("\r")) + "\r"


def test_elsewhere_each_step_has_a_line_and_its_figures_another_one_now_and_then() -> None:
    progress, written, clock = shown(LINES)
    progress.tell("counting")
    progress.tell("sending")
    progress.tasks(0, 4)
    clock.at_ms += LINES_MS - 1
    progress.tasks(1, 4)
    clock.at_ms += 1
    progress.tasks(2, 4)
    progress.clear()
    assert written == ["capture: counting\n", "capture: sending\n", "capture: sending 2 of 4 tasks\n"]


def test_for_programs_each_line_is_a_json_object() -> None:
    progress, written, clock = shown(JSON)
    progress.tell("sending")
    clock.at_ms += JSON_MS
    progress.tasks(1, 4)
    assert [json.loads(line) for line in written] == [
        {"job": "capture", "step": "sending", "seconds": 0.0},
        {"job": "capture", "step": "sending", "seconds": 1.0, "done": 1, "total": 4, "unit": "tasks"},
    ]


def test_figures_of_the_job_itself_are_not_replaced_by_tasks() -> None:
    progress, written, _ = shown(BAR)
    progress.tell(Step("batch 1:", 5))
    progress.tasks(1, 4)
    assert len(written) == 1


def test_nothing_is_written_where_nothing_is_to_be_shown() -> None:
    progress, written, _ = shown(NONE)
    progress.tell("sending")
    progress.clear()
    assert written == []


def test_tasks_are_asked_of_spark_and_a_spark_that_tells_none_ends_nothing() -> None:
    progress, written, _ = shown(BAR)
    progress.tell("sending")
    asked = threading.Event()

    def stage(_: int) -> Any:
        asked.set()
        return SimpleNamespace(numCompletedTasks=3, numTasks=4)

    tracker = SimpleNamespace(getActiveStageIds=lambda: [7], getStageInfo=stage)
    with tasks_watched(SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker)), progress):
        assert asked.wait(10)
    assert "3 of 4 tasks" in written[-1]
    with tasks_watched(SimpleNamespace(), progress):
        pass


def test_groups_of_a_summary_are_a_table_with_sums() -> None:
    summary = {
        "job": "replay",
        "warnings": [],
        "groups": [
            {"entity": "orders", "to": "q", "messages": 1_200, "cost": "0.5"},
            {"entity": "returns", "to": "q", "messages": 3, "cost": None},
        ],
    }
    assert list(summary_lines(summary)) == [
        "job: replay",
        "warnings: []",
        "groups:",
        "  entity   to  messages  cost",
        "  orders   q      1,200  0.5",
        "  returns  q          3",
        "  total           1,203",
    ]


def test_what_a_child_prints_goes_aside_and_is_told_of_only_when_it_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    for say in (said.append, None):
        aside = Aside("capture")
        with aside.taking():
            # As a process does that is started here: it has these two from its parent.
            os.write(1, b"a ")
            os.write(2, b"b")
        os.write(2, b"c")
        assert aside.path.read_text() == "a b"
        aside.end(say)
        assert aside.path.exists() == (say is not None)
        assert tuple(capfd.readouterr()) == ("", "c")
        aside.path.unlink(missing_ok=True)
    assert len(said) == 1
    assert said[0].startswith("What Spark itself has printed is in /")


@pytest.mark.parametrize(
    ("form", "line"),
    [
        (NONE, "Stopped.\n"),
        (LINES, "Stopped.\n"),
        (JSON, '{"job": "capture", "said": "Stopped."}\n'),
    ],
)
def test_a_sentence_that_stays_is_written_in_every_form(form: str, line: str) -> None:
    progress, written, _ = shown(form)
    progress.say("Stopped.")
    assert written == [line]


def test_steps_are_the_description_of_what_spark_does_and_the_callers_own_comes_back() -> None:
    class Context:
        def __init__(self) -> None:
            self.properties: dict[str, Any] = {"spark.job.description": "mine"}

        def getLocalProperty(self, name: str) -> Any:  # noqa: N802 - Spark's names
            return self.properties.get(name)

        def setLocalProperty(self, name: str, value: Any) -> None:  # noqa: N802
            self.properties[name] = value

        def setJobGroup(self, group: str, text: str) -> None:  # noqa: N802
            self.properties |= {"spark.jobGroup.id": group, "spark.job.description": text}

        def setJobDescription(self, text: str) -> None:  # noqa: N802
            self.properties["spark.job.description"] = text

    context, seen = Context(), []

    @described("replay")
    def run(spark: Any, cfg: Any, tell: Any = None) -> dict[str, Any]:
        tell("sending")
        seen.append(dict(spark.sparkContext.properties))
        return {}

    told: list[str] = []
    run(SimpleNamespace(sparkContext=context), {}, told.append)
    assert told == ["sending"]
    assert seen == [{"spark.jobGroup.id": "duobus replay", "spark.job.description": "duobus replay: sending"}]
    assert context.properties["spark.job.description"] == "mine"
    assert context.properties["spark.jobGroup.id"] is None
