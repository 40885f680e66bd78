"""The threads of one run: started together, stopped together, and none of them fails in silence."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from duobus.testing.server import DemoFailed
from duobus_demo.run_state import RunState

#: Workers end within a receive call of being told to; a connection that hangs may cost the SDK its own time-out.
STOP_TIMEOUT_S = 30.0


class WorkerThreads:
    """Workers by name. As a context manager it starts them, and stops them whatever happens.

    Args:
        run: What the workers share.
        jobs: Name and body of each.
    """

    def __init__(self, run: RunState, jobs: Iterable[tuple[str, Callable[[], None]]]) -> None:
        self._run = run
        # Daemons: a worker that hangs in the SDK must not keep the process from ending with its report.
        self._threads = [
            threading.Thread(target=self._guarded, args=(name, job), name=name, daemon=True) for name, job in jobs
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run.stopping.set()
        # After a failure the report matters more than an orderly end.
        until_ms = self._run.clock.monotonic_ms() + int(1000 * (STOP_TIMEOUT_S if value is None else 2.0))
        for thread in self._threads:
            thread.join(max(0.0, (until_ms - self._run.clock.monotonic_ms()) / 1000))
        hanging = [thread.name for thread in self._threads if thread.is_alive()]
        if hanging and value is None:
            raise DemoFailed(f"Still busy {STOP_TIMEOUT_S:g} s after the end of the run: {', '.join(hanging)}.")

    def _guarded(self, name: str, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - reported by whoever waits for this run
            self._run.fail(name, error)
