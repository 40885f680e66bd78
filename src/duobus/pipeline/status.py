"""What a pipeline tells of its stages, from its folder alone: for the command line and for the console."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from duobus.pipeline.state_folder import StateFolder

# States of a stage.

WAITING: Final = "waiting"
RUNNING: Final = "running"
DONE: Final = "done"
UNCHANGED: Final = "unchanged"
FAILED: Final = "failed"
HELD_BACK: Final = "held back"
STOPPED: Final = "stopped"
#: A stage that was running when the process of the pipeline was killed.
INTERRUPTED: Final = "interrupted"

#: Names of what is told of each stage, in their order.
MEMBERS: Final = (
    "stage",
    "job",
    "trigger",
    "state",
    "batch",
    "rows",
    "totalRows",
    "at",
    "seconds",
    "lag",
    "lagOf",
    "error",
)


def status_of(folder: Path) -> dict[str, Any] | None:
    """All that is known of a pipeline: its name, who runs it, and its stages; None where no pipeline has run.

    Args:
        folder: Folder of its state.
    """
    state = StateFolder(folder)
    overview = state.overview()
    if overview is None:
        return None
    holder = state.holder()
    stages = []
    for about in _stages(overview):
        told = {**dict.fromkeys(MEMBERS), "state": WAITING, **about, **state.stage(str(about["stage"])).status()}
        if told["state"] == RUNNING and holder is None:
            told["state"] = INTERRUPTED
        stages.append({name: told.get(name) for name in MEMBERS})
    return {
        "pipeline": str(overview.get("pipeline", folder.name)),
        "document": overview.get("document"),
        "folder": str(folder),
        "isRunning": holder is not None,
        "process": (holder or {}).get("process"),
        "host": (holder or {}).get("host"),
        "since": (holder or {}).get("since"),
        "stages": stages,
    }


def _stages(overview: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    stages = overview.get("stages")
    for about in stages if isinstance(stages, list) else ():
        # A name with a slash would be a folder elsewhere.
        if isinstance(about, dict) and isinstance(name := about.get("stage"), str) and "/" not in name:
            yield about


def pipelines_in(folder: Path) -> list[Path]:
    """Folders of states: the folder itself, or those in it and in the folders of that."""
    if StateFolder(folder).overview() is not None:
        return [folder]
    try:
        return sorted(
            {path.parent for pattern in ("*/pipeline.json", "*/*/pipeline.json") for path in folder.glob(pattern)}
        )
    except OSError:
        return []
