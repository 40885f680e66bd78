"""What a job on Spark shows: a bar, plain lines or JSON lines while it runs, and tables of its groups at its end."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import click

from duobus.clock import Clock

#: Ways to show progress.
BAR: Final = "bar"
LINES: Final = "lines"
JSON: Final = "json"
NONE: Final = "none"

#: Characters of a bar.
BAR_WIDTH: Final = 24
#: Between two plain lines of one step, and between two JSON lines.
LINES_MS: Final = 10_000
JSON_MS: Final = 1_000
#: Between two looks at the tasks of Spark.
LOOK_S: Final = 0.5


class JobProgress:
    """Shows the steps of one job; each form writes to standard error, so that standard output has the summary alone.

    Args:
        job: Name of the job.
        form: ``BAR``, ``LINES``, ``JSON`` or ``NONE``.
        write: Writes text as it is.
        clock: Time.
    """

    def __init__(
        self, job: str, form: str, write: Callable[[str], None] | None = None, clock: Clock | None = None
    ) -> None:
        self._job = job
        self._form = form
        self._write = write or _to_stderr
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._length = 0
        self._step = ""
        self._figures: tuple[int | None, int | None, str] = (None, None, "")
        self._began_ms = self._clock.monotonic_ms()
        self._written_ms: int | None = None
        self._is_tasks = True

    @property
    def is_shown(self) -> bool:
        """Whether anything is written."""
        return self._form != NONE

    def tell(self, text: str) -> None:
        """Show what the job is at."""
        with self._lock:
            done = getattr(text, "done", None)
            if done is None or self._is_tasks:
                self._began_ms = self._clock.monotonic_ms()
                self._written_ms = None
            self._step, self._is_tasks = str(text), done is None
            self._figures = (done, getattr(text, "total", None), getattr(text, "unit", ""))
            self._show()

    def tasks(self, done: int, total: int) -> None:
        """Show how many tasks of the present step Spark has done, unless the job itself tells figures."""
        with self._lock:
            if self._is_tasks and self._step:
                self._figures = (done, total, "tasks")
                self._show()

    def say(self, text: str) -> None:
        """Write a sentence that stays, also where no progress is shown."""
        self.clear()
        self._write(json.dumps({"job": self._job, "said": text}) + "\n" if self._form == JSON else f"{text}\n")

    def clear(self) -> None:
        """Remove the line of a bar."""
        with self._lock:
            if self._length:
                self._write("\r" + " " * self._length + "\r")
                self._length = 0

    def _show(self) -> None:
        if self._form == NONE:
            return
        now_ms = self._clock.monotonic_ms()
        if self._form == BAR:
            text = f"{self._job}: {line_of(self._step, *self._figures, now_ms - self._began_ms, has_bar=True)}"
            self._write("\r" + text.ljust(self._length))
            self._length = len(text)
            return
        pause_ms = JSON_MS if self._form == JSON else LINES_MS
        if self._written_ms is not None and now_ms - self._written_ms < pause_ms:
            return
        self._written_ms = now_ms
        if self._form == JSON:
            done, total, unit = self._figures
            found: dict[str, Any] = {"job": self._job, "step": self._step, "seconds": (now_ms - self._began_ms) / 1000}
            figures = {"done": done, "total": total, "unit": unit or None}
            self._write(
                json.dumps(found | {name: value for name, value in figures.items() if value is not None}) + "\n"
            )
        else:
            line = line_of(self._step, *self._figures, now_ms - self._began_ms, has_bar=False)
            self._write(f"{self._job}: {line}\n")


def _to_stderr(text: str) -> None:
    click.echo(text, err=True, nl=False)


def line_of(step: str, done: int | None, total: int | None, unit: str, elapsed_ms: int, *, has_bar: bool) -> str:
    """A step with its figures: how much of how much, and how many a second."""
    if done is None:
        return step
    of = "" if total is None else f" of {max(total, done):,}"
    text = f"{done:,}{of} {unit}".rstrip()
    if unit != "tasks" and elapsed_ms >= 1_000 and done:
        text += f", {done * 1000 / elapsed_ms:,.0f} a second"
    if has_bar and total:
        filled = min(BAR_WIDTH, BAR_WIDTH * done // total)
        text = f"[{'#' * filled}{'-' * (BAR_WIDTH - filled)}] {text}"
    return f"{step} {text}"


@contextmanager
def tasks_watched(spark: Any, progress: JobProgress) -> Iterator[None]:
    """Show the tasks of Spark in the context, which a thread of its own asks for."""
    over = threading.Event()

    def watch() -> None:
        # Whatever Spark answers, through Spark Connect for instance: the job goes on without figures.
        with suppress(Exception):
            tracker = spark.sparkContext.statusTracker()
            while not over.wait(LOOK_S):
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                known = [stage for stage in stages if stage is not None]
                if known:
                    progress.tasks(*(sum(column) for column in zip(*map(_tasks_of, known), strict=True)))

    thread = threading.Thread(target=watch, name="tasks", daemon=True)
    if progress.is_shown:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if progress.is_shown:
            thread.join(LOOK_S * 4)


def _tasks_of(stage: Any) -> tuple[int, int]:
    return int(stage.numCompletedTasks), int(stage.numTasks)


class Aside:
    """A file for what Spark itself prints, so that a terminal shows the job alone.

    Args:
        job: Name of the job, which becomes part of the file's name.
    """

    def __init__(self, job: str) -> None:
        handle, name = tempfile.mkstemp(prefix=f"duobus-spark-{job}-", suffix=".log")
        os.close(handle)
        self.path = Path(name)

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Let processes that are started in the context print to the file, for as long as they live."""
        sys.stdout.flush()
        sys.stderr.flush()
        before = [os.dup(number) for number in (1, 2)]
        with self.path.open("ab") as file:
            try:
                for number in (1, 2):
                    os.dup2(file.fileno(), number)
                yield
            finally:
                for number, saved in zip((1, 2), before, strict=True):
                    os.dup2(saved, number)
                    os.close(saved)

    def end(self, say: Callable[[str], None] | None = None) -> None:
        """Remove the file; or, where somebody is to be told of it, keep what there is in it and say where."""
        if say is not None and self.path.stat().st_size:
            say(f"What Spark itself has printed is in {self.path}.")
        else:
            self.path.unlink(missing_ok=True)


def summary_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """A summary for people: a line for each member, and a table for each list of groups."""
    for name, value in summary.items():
        if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            yield f"{name}:"
            yield from table_lines(value)
        else:
            yield f"{name}: {json.dumps(value, default=str) if isinstance(value, list | dict) else value}"


def table_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table with a column for each member; numbers are at the right, and the last line has the sums of counts."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    counted = [all(type(row.get(name)) is int for row in rows) for name in names]
    if len(rows) > 1 and any(counted):
        sums = [
            f"{sum(row[name] for row in rows):,}" if is_sum else "" for name, is_sum in zip(names, counted, strict=True)
        ]
        cells.append(["total" if at == 0 and not text else text for at, text in enumerate(sums)])
    widths = [max(len(name), *(len(row[at]) for row in cells)) for at, name in enumerate(names)]
    for row in (names, *cells):
        parts = [
            text.rjust(width) if is_sum else text.ljust(width)
            for text, width, is_sum in zip(row, widths, counted, strict=True)
        ]
        yield "  " + "  ".join(parts).rstrip()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if type(value) is int:
        return f"{value:,}"
    return json.dumps(value, default=str) if isinstance(value, list | dict) else str(value)
