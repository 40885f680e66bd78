"""The package of an earlier commit, out of the history that the clone holds, and servers that run that package.

A test that asks for a commit is skipped, and counted as skipped, where the clone does not hold the commit: a shallow
clone, or sources without their history.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from duobus.testing.server import ServerProcess
from tools import archives

ROOT: Final = Path(__file__).parents[2]
#: The first commit whose formats are read for ever.
FIRST: Final = "e97fde9"
#: The first commit with catalog identities in the stores, and with mark files beside them.
MARKS: Final = "9201955d"
#: A commit of the layout by rooms.
ROOMS: Final = "8b4d2a97"
#: Set by ``make upgrades``.
IS_LONG: Final = bool(os.environ.get("DUOBUS_LONG_UPGRADES"))
COMMITS: Final = (FIRST, MARKS, ROOMS) if IS_LONG else (FIRST, MARKS)


def unpack_commit(commit: str, folder: Path) -> Path:
    """Put the package of a commit into a folder; return where to import the package from."""
    try:
        archives.unpack_commit(ROOT, commit, folder, "src")
    except (FileNotFoundError, subprocess.CalledProcessError):
        # There is no Git, or no history.
        pytest.skip(f"this clone does not hold {commit}")
    return folder / "src"


def words_before(source: Path) -> list[str]:
    """What a command begins with that is to import its package from there."""
    # The bytecode is kept, whatever the environment says: the package is started several times.
    return ["env", f"PYTHONPATH={source}", "PYTHONDONTWRITEBYTECODE="]


def package_of(words: list[str]) -> Path:
    """The folder of the package that a command which begins with these words imports."""
    command = [*words, sys.executable, "-c", "import duobus; print(duobus.__file__)"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Path(found.strip()).parent


class EarlierServer(ServerProcess):
    """A server that runs the package of an earlier commit.

    Args:
        source: Where that package is imported from; see ``unpack_commit``.
        folder: As of a ServerProcess, with its options.
    """

    def __init__(self, source: Path, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self._source = source

    def _command(self, ready_file: Path) -> list[str]:
        return [*words_before(self._source), *super()._command(ready_file)]
