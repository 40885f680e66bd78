"""What a run of a pipeline would do, stage by stage, told from the folder of its state without Spark."""

from __future__ import annotations

from typing import Any

from duobus.pipeline.document.model import Pipeline, Stage
from duobus.pipeline.state_folder import StateFolder
from duobus.pipeline.table_versions import behind, newest_batch, version_of


def outlook_of(pipeline: Pipeline, state: StateFolder) -> list[dict[str, Any]]:
    """A row for each stage, in the order in which they run."""
    return [
        {
            "stage": stage.name,
            "job": stage.kind.value,
            "trigger": stage.trigger,
            "reads": _read_by(pipeline, stage),
            "writes": _written_by(pipeline, stage),
            "before": list(pipeline.before(stage)),
            "next": _next(pipeline, state, stage),
        }
        for stage in pipeline.stages.values()
    ]


def _read_by(pipeline: Pipeline, stage: Stage) -> list[str]:
    sources = (f"{'/'.join(pipeline.sources[name].entities)} ({pipeline.sources[name].mode})" for name in stage.sources)
    return [*sources, *(f"table {name}" for name in stage.tables)]


def _written_by(pipeline: Pipeline, stage: Stage) -> str | None:
    if pipeline.table_of(stage) is not None:
        return f"table {stage.writes}"
    sink = pipeline.sink_of(stage)
    return None if sink is None else sink.target


def _next(pipeline: Pipeline, state: StateFolder, stage: Stage) -> str:
    own = state.stage(stage.name)
    if stage.is_streaming:
        batch = newest_batch(own)
        return "begins" if batch is None else f"goes on behind batch {batch}"
    number, plan, result = own.newest()
    if number and result is None:
        return f"repeats run {number}, which was interrupted"
    inputs = {name: version_of(pipeline, state, name) for name in stage.tables}
    if not all(inputs.values()):
        return "waits for the first rows"
    late = sum(behind(version, plan.get("inputs", {}).get(name, {})) for name, version in inputs.items())
    if not number:
        return "run 1"
    if stage.tables and not late:
        return "nothing, unless its tables change before"
    return f"run {number + 1}" + (f", {late} new batches" if late else "")
