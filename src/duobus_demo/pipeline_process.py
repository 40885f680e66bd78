"""The pipeline of the part ``spark`` as a process, in a session of its own so that all of it can be killed at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Final

from duobus.pipeline.state_folder import StateFolder
from duobus.pipeline.status import RUNNING
from duobus.testing.server import DemoFailed

#: Options of each JVM: it lives for less than a minute.
JVM_OPTIONS: Final = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_DOCUMENTS: Final = ("shop.toml", "totals.sql", "shop_rules.py")
_STOP_S: Final = 20.0


def write_document(folder: Path, changes: dict[str, str]) -> Path:
    """Put the document of the shop and its modules into a folder.

    Args:
        folder: Where it will run.
        changes: Texts of the document to what stands in their place, such as the ports of this run.
    """
    for name in _DOCUMENTS:
        text = files("duobus_demo.documents").joinpath(name).read_text("utf-8")
        for old, new in changes.items():
            text = text.replace(old, new)
        (folder / name).write_text(text, "utf-8")
    return folder / _DOCUMENTS[0]


class PipelineProcess:
    """One run of ``duobus pipeline run --once``.

    Args:
        document: The document.
        variables: Environment variables to add.
    """

    def __init__(self, document: Path, variables: dict[str, str]) -> None:
        self._state = StateFolder(document.parent / "state")
        self._log = document.parent / "pipeline.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "duobus", "pipeline", "run", "--once", "--conf", JVM_OPTIONS, str(document)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **variables},
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def running_stages(self, names: list[str]) -> list[str]:
        """Those of some stages that run at this moment."""
        return [name for name in names if self._state.stage(name).status().get("state") == RUNNING]

    def hold(self) -> None:
        """Stop the driver, the JVM and all Python workers where they are, until ``go_on`` or ``kill``."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let all of them run again."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL for the driver, the JVM and all Python workers at once; harmless when it has ended."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def end(self, timeout_s: float = _STOP_S) -> None:
        """Wait until it has ended by itself.

        Raises:
            DemoFailed: It did not, or it failed.
        """
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"The pipeline did not end.\n{self.log_tail()}") from None
        if status:
            raise DemoFailed(f"The pipeline ended with status {status}.\n{self.log_tail()}")

    def log_tail(self, lines: int = 40) -> str:
        """The end of what it wrote."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
