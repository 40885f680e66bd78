"""Write the bytecode of the tests and the archive of Spark's classes where a clone is fresh, once for all processes.

    python tools/tests_bytecode.py

Each worker of pytest-xdist imports every test. Without bytecode that takes three times as long, most of it for the
statements of assert, which pytest rewrites; six workers that start together do the same work six times. Two processes
that import half of the tests each, and run none, do it once. Beside them ``kits.spark_classes`` makes the archive.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
TESTS: Final = ROOT / "tests"
#: What one process imports: folders below ``tests`` whose imports take about as long as those of the other process.
HALVES: Final = (("unit",), ("integration", "acceptance"))
#: So many modules without bytecode are not worth two processes.
FEW: Final = 50


def without_bytecode(tests: Path) -> list[Path]:
    """The test modules of which this interpreter has no rewritten bytecode."""
    return [
        path
        for path in tests.rglob("test_*.py")
        if not any((path.parent / "__pycache__").glob(f"{path.stem}.{sys.implementation.cache_tag}-pytest-*.pyc"))
    ]


def main() -> None:
    """Write what is missing if it is much. A test that cannot be imported is the business of the run behind this."""
    classes = subprocess.Popen([sys.executable, "-m", "kits.spark_classes"], cwd=ROOT / "tests")
    if len(without_bytecode(TESTS)) > FEW:
        write()
    classes.wait()


def write() -> None:
    """Import all tests, in two processes."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq"]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [
        subprocess.Popen([*command, *(str(TESTS / name) for name in half)], cwd=ROOT, **quiet) for half in HALVES
    ]
    for process in processes:
        process.wait()


if __name__ == "__main__":
    main()
