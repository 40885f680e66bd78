"""``duobus pipeline``: check, plan, run, watch and stop a pipeline on Spark that one document declares."""

from __future__ import annotations

import os
import signal
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import click

from duobus.cli.output import NUMBER, TIME, Column, Printer, json_of
from duobus.clock import Clock
from duobus.pipeline.state_folder import PipelineBusy, StateError, StateFolder
from duobus.pipeline.status import status_of

if TYPE_CHECKING:
    from duobus.pipeline.document.model import Pipeline

_DOCUMENT: Final = click.argument("document", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_DOCUMENT_OR_STATE: Final = click.argument("document", type=click.Path(exists=True, path_type=Path))
_JSON: Final = click.option("--json", "is_json", is_flag=True, help="Print one JSON object instead of a table.")
_NO_EXTRA: Final = "This command needs Spark and the SDK: pip install 'duobus[spark]'."
_STATUS: Final = (
    Column("stage", "Stage"),
    Column("job", "Job"),
    Column("trigger", "Trigger"),
    Column("state", "State"),
    Column("batch", "Last", NUMBER),
    Column("rows", "Rows", NUMBER),
    Column("totalRows", "All rows", NUMBER),
    Column("at", "When", TIME),
    Column("lag", "Lag", NUMBER),
    Column("lagOf", "Of"),
    Column("error", "Error"),
)
_PLAN: Final = (
    Column("stage", "Stage"),
    Column("job", "Job"),
    Column("trigger", "Trigger"),
    Column("reads", "Reads"),
    Column("writes", "Writes"),
    Column("before", "After"),
    Column("next", "Next run"),
)
#: Seconds between two looks at a pipeline that was told to stop.
_LOOK_S: Final = 0.2

_EXAMPLE: Final = """
\b
Example:
  duobus pipeline validate shop.toml
  duobus pipeline run --once shop.toml
  duobus pipeline status shop.toml
"""


#: Command to lines of its example.
_EXAMPLES: Final = {
    "validate": ("duobus pipeline validate shop.toml",),
    "plan": ("duobus pipeline plan shop.toml",),
    "run": (
        "duobus pipeline run shop.toml",
        "duobus pipeline run --once shop.toml",
    ),
    "status": ("duobus pipeline status shop.toml --json",),
    "stop": ("duobus pipeline stop shop.toml",),
}


def _example_of(name: str) -> str:
    lines = "\n".join(f"  {line}" for line in _EXAMPLES[name])
    return f"\n\b\nExample:\n{lines}\n"


@click.group(name="pipeline", no_args_is_help=True, epilog=_EXAMPLE)
def command() -> None:
    """Run a pipeline on Spark that one document declares: check, plan, run, watch and stop it."""


def _checked(file: Path) -> Pipeline:
    if any(find_spec(name) is None for name in ("pyspark", "pyarrow", "azure.servicebus")):
        raise click.ClickException(_NO_EXTRA)
    from duobus.pipeline.document.model import DocumentError
    from duobus.pipeline.document.parser import read_document

    try:
        return read_document(file)
    except DocumentError as error:
        for line in str(error).splitlines():
            click.echo(line, err=True)
        faults = len(error.faults)
        raise click.ClickException(f"{faults} {'fault' if faults == 1 else 'faults'} in {file}.") from None
    except OSError as error:
        raise click.ClickException(f"The document {file} cannot be read: {error.strerror}.") from None


def _state_of(document: Path) -> Path:
    from duobus.pipeline.document.model import DocumentError
    from duobus.pipeline.document.parser import state_of

    try:
        return state_of(document)
    except DocumentError as error:
        raise click.ClickException(str(error)) from None


@command.command(name="validate", epilog=_example_of("validate"))
@_DOCUMENT
@_JSON
def validate(document: Path, is_json: bool) -> None:
    """Check a document without starting anything. Each fault is a line with its place; the exit status is 1 then."""
    pipeline = _checked(document)
    if is_json:
        click.echo(json_of({"pipeline": pipeline.name, "stages": list(pipeline.stages), "faults": []}))
    else:
        number = len(pipeline.stages)
        stages = "1 stage" if number == 1 else f"{number} stages"
        click.echo(f"{document}: the pipeline {pipeline.name!r} has {stages} and no fault.")


@command.command(name="plan", epilog=_example_of("plan"))
@_DOCUMENT
@_JSON
def plan(document: Path, is_json: bool) -> None:
    """Show what a run would do, stage by stage, in its order. Starts neither Spark nor a connection."""
    from duobus.pipeline.outlook import outlook_of

    pipeline = _checked(document)
    rows = outlook_of(pipeline, StateFolder(pipeline.state))
    if is_json:
        click.echo(json_of({"pipeline": pipeline.name, "state": str(pipeline.state), "stages": rows}, indent=2))
        return
    with Printer("table", table=_PLAN) as printer:
        printer.print({**row, "reads": ", ".join(row["reads"]), "before": ", ".join(row["before"])} for row in rows)


@command.command(name="run", epilog=_example_of("run"))
@_DOCUMENT
@click.option("--once", is_flag=True, help="Let each stage run once, whatever its trigger, and end.")
@click.option(
    "--master", help="Master of the cluster; by default that of the document, or all processors of this machine."
)
@click.option(
    "--conf", multiple=True, metavar="NAME=VALUE", help="Setting of Spark, before those of the document. Repeatable."
)
@_JSON
@click.option("--quiet", is_flag=True, help="Do not tell on standard error what the stages do.")
def run(document: Path, once: bool, master: str | None, conf: tuple[str, ...], is_json: bool, quiet: bool) -> None:
    """Run a pipeline to its end, or until Ctrl-C.

    The same command goes on where the last run ended or was killed. Stages with a period run until the pipeline is
    stopped. The exit status is 1 when a stage has failed.
    """
    from duobus.cli.commands.spark import demand_spark, new_session

    pipeline = _checked(document)
    demand_spark(needs_spark=True)
    from duobus.pipeline.execution.runner import run_pipeline

    # Workers of Python find the modules of the document as this process does.
    paths = (str(pipeline.folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    settings = (*(f"{name}={value}" for name, value in pipeline.conf.items()), *conf)

    def tell(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    try:
        found = run_pipeline(pipeline, lambda: new_session(master or pipeline.master, settings), once=once, tell=tell)
    except (PipelineBusy, StateError) as error:
        raise click.ClickException(str(error)) from None
    if is_json:
        click.echo(json_of(found))
    else:
        with Printer("table", table=_STATUS) as printer:
            printer.print(found["stages"])
    if found["signal"] is not None:
        sys.exit(128 + found["signal"])
    if found["failed"]:
        sys.exit(1)


@command.command(name="status", epilog=_example_of("status"))
@_DOCUMENT_OR_STATE
@_JSON
def status(document: Path, is_json: bool) -> None:
    """Tell of each stage its last batch, rows, when, lag and error. DOCUMENT may be the folder of the state, too."""
    folder = _state_of(document)
    found = status_of(folder)
    if found is None:
        raise click.ClickException(f"No pipeline has run with the state {folder}.")
    if is_json:
        click.echo(json_of(found, indent=2))
        return
    if found["isRunning"]:
        click.echo(f"{found['pipeline']}: run by process {found['process']} on {found['host']}, since {found['since']}")
    else:
        click.echo(f"{found['pipeline']}: not running")
    with Printer("table", table=_STATUS) as printer:
        printer.print(found["stages"])


@command.command(name="stop", epilog=_example_of("stop"))
@_DOCUMENT_OR_STATE
@click.option(
    "--wait", "wait_s", type=click.IntRange(0, 3600), default=60, show_default=True, help="Seconds to wait for its end."
)
def stop(document: Path, wait_s: int) -> None:
    """Stop a pipeline that runs on this machine.

    Each stream ends after its present batch.
    """
    state, clock = StateFolder(_state_of(document)), Clock()
    holder = state.holder()
    if holder is None:
        click.echo("The pipeline does not run.")
        return
    process, host = holder.get("process"), holder.get("host")
    if host != socket.gethostname() or not isinstance(process, int):
        raise click.ClickException(f"The pipeline is run by process {process} on {host}: stop it there.")
    os.kill(process, signal.SIGTERM)
    until_ms = clock.monotonic_ms() + wait_s * 1000
    while _is_held_by(state.holder(), process):
        if clock.monotonic_ms() >= until_ms:
            raise click.ClickException(f"The process {process} was told to stop, and has not ended within {wait_s} s.")
        Event().wait(_LOOK_S)
    click.echo("The pipeline has stopped.")


def _is_held_by(holder: dict[str, Any] | None, process: int) -> bool:
    return holder is not None and holder.get("process") == process
