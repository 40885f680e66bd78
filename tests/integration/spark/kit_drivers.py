"""Drivers that are programs, each with a JVM of its own: other tests do not wait for them, and they can be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from kits.spark_start import spark_environment


def start_driver(program: str, python: Path, about: Any, *more: str) -> subprocess.Popen[str]:
    """Start a program of this folder.

    Args:
        program: Name of its file.
        python: What Spark's Python is.
        about: Its first argument, as JSON.
        more: Further arguments.

    Returns:
        The process, whose standard output is a pipe of text.
    """
    here = Path(__file__).parent
    paths = [str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, str(here / program), json.dumps(about), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={
            **os.environ,
            **spark_environment(),
            **dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(python)),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        },
    )
