"""Which stage of a pipeline is due, in virtual time."""

from __future__ import annotations

from duobus.pipeline.schedule import RETRY_MS, Planned, Schedule

CAPTURE = Planned("capture", 10_000, is_streaming=True)
REPORT = Planned("report", None, ("capture",), ("capture",))
ALERT = Planned("alert", None, ("report",), ("report",))


def finish(schedule: Schedule, name: str, now_ms: int = 0, *, is_good: bool = True, is_new: bool = True) -> None:
    schedule.started(name)
    schedule.ended(name, now_ms, is_good=is_good, is_new=is_new)


def test_once_each_stage_runs_behind_those_before_it_and_then_all_is_over() -> None:
    schedule = Schedule([CAPTURE, REPORT, ALERT], once=True)
    for name in ("capture", "report", "alert"):
        assert schedule.due(0) == [name]
        schedule.started(name)
        assert schedule.due(0) == []
        assert not schedule.is_over
        schedule.ended(name, 0, is_good=True, is_new=False)
    assert schedule.is_over


def test_once_a_failure_holds_back_what_comes_after_it_and_nothing_else() -> None:
    schedule = Schedule([CAPTURE, REPORT, ALERT, Planned("other")], once=True)
    assert schedule.due(0) == ["capture", "other"]
    finish(schedule, "capture", is_good=False)
    assert schedule.due(0) == ["other"]
    finish(schedule, "other")
    assert schedule.is_over
    assert schedule.held_back() == ["report", "alert"]


def test_a_stream_that_goes_on_lets_run_what_comes_after_it_with_each_batch() -> None:
    schedule = Schedule([CAPTURE, REPORT, ALERT], once=False)
    assert schedule.due(0) == ["capture", "report"]
    schedule.started("capture")
    finish(schedule, "report", is_new=False)
    assert schedule.due(0) == ["alert"]
    finish(schedule, "alert")
    assert schedule.due(99_999) == []
    schedule.advanced("capture")
    assert schedule.due(0) == ["report"]
    finish(schedule, "report")
    assert schedule.due(0) == ["alert"]
    assert not schedule.is_over


def test_a_period_begins_anew_when_its_run_is_over() -> None:
    schedule = Schedule([Planned("usage", 5_000)], once=False)
    assert schedule.due(0) == ["usage"]
    finish(schedule, "usage", 1_000)
    assert schedule.due(5_999) == []
    assert schedule.due(6_000) == ["usage"]
    assert not schedule.is_over


def test_what_failed_in_a_pipeline_that_goes_on_is_tried_again() -> None:
    schedule = Schedule([CAPTURE, REPORT], once=False)
    schedule.started("capture")
    finish(schedule, "report", is_good=False)
    assert schedule.due(RETRY_MS - 1) == []
    assert schedule.due(RETRY_MS) == ["report"]
    schedule.ended("capture", RETRY_MS, is_good=False, is_new=False)
    assert "capture" in schedule.due(RETRY_MS + 10_000)


def test_what_was_interrupted_is_finished_first_the_last_of_the_pipeline_before_the_others() -> None:
    schedule = Schedule([CAPTURE, REPORT, ALERT], once=True, unfinished=["report", "alert"])
    order = []
    while not schedule.is_over:
        (name,) = schedule.due(0)
        order.append(name)
        finish(schedule, name)
    assert order == ["alert", "report", "capture", "report", "alert"]


def test_what_cannot_be_finished_fails_and_holds_back_the_rest_behind_it() -> None:
    schedule = Schedule([Planned("report"), ALERT], once=True, unfinished=["report"])
    assert schedule.due(0) == ["report"]
    finish(schedule, "report", is_good=False)
    assert schedule.is_over
    assert schedule.held_back() == ["alert"]
