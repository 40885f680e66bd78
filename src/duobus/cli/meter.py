"""How far a long command is, on a terminal; nothing where standard error is none."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Meter:
    """A bar on standard error while it is entered."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

            self._bar = Progress(
                BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=Console(stderr=True), transient=True
            )
            self._task = self._bar.add_task("")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int, total: int) -> None:
        """Say how many bytes of how many are done."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total)
