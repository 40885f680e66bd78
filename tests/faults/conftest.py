"""The tests with faulty disks, frozen processes and silent connections."""

import sys
from pathlib import Path

# The frame-level client of the conformance checks.
sys.path.append(str(Path(__file__).resolve().parents[1] / "conformance"))
