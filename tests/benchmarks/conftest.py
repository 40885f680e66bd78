"""Make `benchmarks`, which is not installed, importable from the root of the project."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
