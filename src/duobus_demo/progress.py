"""How a part tells what it is doing while it runs."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Watcher:
    """Told how a part goes. This one says nothing, which is right where output is read by a program."""

    def progress(self, done: int, total: int) -> None:
        """So many of so many messages have come out."""

    def note(self, text: str) -> None:
        """Something worth a line happened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None


class ConsoleWatcher(Watcher):
    """Writes notes to standard error, and draws a progress bar there when it is a terminal.

    Args:
        name: Name of the part, beside the bar.
    """

    def __init__(self, name: str) -> None:
        console = Console(stderr=True)
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("received"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=None)

    def progress(self, done: int, total: int) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=done, total=total)

    def note(self, text: str) -> None:
        """Write a line, above the bar."""
        self._console.print(text, highlight=False, markup=False)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()
