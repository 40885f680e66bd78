"""The folder of a pipeline's state: its lock, its records of runs, and what is told of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit_document import parsed

from duobus.pipeline import state_folder
from duobus.pipeline.outlook import outlook_of
from duobus.pipeline.state_folder import RUNS_KEPT, StageState, StateFolder
from duobus.pipeline.status import pipelines_in, status_of
from duobus.pipeline.table_versions import behind, version_of


def commit(stage: StageState, query: str, *batches: int) -> None:
    """Leave what a streaming query has in its checkpoint."""
    (stage.checkpoint / "commits").mkdir(parents=True, exist_ok=True)
    (stage.checkpoint / "metadata").write_text(json.dumps({"id": f"{query}-0000"}))
    for batch in batches:
        (stage.checkpoint / "commits" / f"{batch}").write_text("v1\n{}")


def test_a_run_that_was_begun_is_told_from_one_that_is_done(tmp_path: Path) -> None:
    stage = StageState(tmp_path)
    assert stage.newest() == (0, {}, None)
    stage.plan(1, {"inputs": 1})
    assert stage.newest() == (1, {"inputs": 1}, None)
    stage.done(1, {"rows": 5})
    assert stage.newest() == (1, {"inputs": 1}, {"rows": 5})
    for number in range(2, RUNS_KEPT + 3):
        stage.plan(number, {})
        stage.done(number, {})
    assert len(list((tmp_path / "runs").iterdir())) == 2 * RUNS_KEPT


def test_the_version_of_a_table_is_what_its_writers_have_committed(tmp_path: Path) -> None:
    pipeline, state = parsed(tmp_path), StateFolder(tmp_path / "state")
    assert version_of(pipeline, state, "orders") == {}
    commit(state.stage("capture"), "0b5ea29b", 0, 1)
    now = version_of(pipeline, state, "orders")
    assert now == {"0b5ea29b": 1}
    assert (behind(now, {}), behind(now, {"0b5ea29b": 0}), behind(now, now)) == (2, 1, 0)
    state.stage("totals").plan(1, {"inputs": {"orders": now}, "since": None, "definition": ""})
    assert version_of(pipeline, state, "totals") == {}
    state.stage("totals").done(1, {})
    assert version_of(pipeline, state, "totals") == {"totals": 1}


def test_the_plan_tells_what_would_run_and_what_was_interrupted(tmp_path: Path) -> None:
    pipeline, state = parsed(tmp_path), StateFolder(tmp_path / "state")

    def told() -> list[str]:
        return [row["next"] for row in outlook_of(pipeline, state)]

    assert told() == ["begins", "waits for the first rows", "waits for the first rows"]
    commit(state.stage("capture"), "0b5ea29b", 3)
    assert told() == ["goes on behind batch 3", "run 1", "waits for the first rows"]
    inputs = {"orders": version_of(pipeline, state, "orders")}
    state.stage("totals").plan(1, {"inputs": inputs, "since": None, "definition": ""})
    assert told()[1] == "repeats run 1, which was interrupted"
    state.stage("totals").done(1, {})
    assert told()[1:] == ["nothing, unless its tables change before", "run 1"]
    commit(state.stage("capture"), "0b5ea29b", 4)
    assert told()[1] == "run 2, 1 new batches"


def test_a_stage_that_was_running_when_all_was_killed_is_told_as_interrupted(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "shop")
    assert status_of(state.folder) is None
    state.folder.mkdir()
    about = [{"stage": "capture", "job": "capture", "trigger": "every 10 s"}, {"stage": "../x"}]
    state.write_overview({"pipeline": "shop", "document": "/d/shop.toml", "stages": about})
    state.stage("capture").tell({"state": "running", "batch": 3, "rows": 7})
    assert pipelines_in(tmp_path) == pipelines_in(state.folder) == [state.folder]
    found = status_of(state.folder)
    assert found is not None
    (stage,) = found["stages"]
    assert (found["pipeline"], found["isRunning"], stage["state"], stage["batch"]) == ("shop", False, "interrupted", 3)
    with state.lock({}):
        told = status_of(state.folder)
        assert told is not None
        assert told["stages"][0]["state"] == "running"


def test_without_locks_of_files_a_pipeline_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_folder, "fcntl", None)
    with pytest.raises(state_folder.StateError, match="Linux and macOS"), StateFolder(tmp_path).lock({}):
        pass
    assert StateFolder(tmp_path).holder() is None
