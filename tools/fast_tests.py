"""Run the unit tests, and keep how long they took: ``test_fast_s`` in ``.build/house.json``.

    python tools/fast_tests.py -n 2

What follows are options of pytest. Tests that are marked as slow are left out, and the simulations run about SEEDS
seeds and one planted bug of each world. Only the time of a run in which every test passed is kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
HOUSE: Final = ROOT / ".build" / "house.json"
SEEDS: Final = 5
#: What the unit tests may take on two cores.
LIMIT_S: Final = 90.0


def keep(seconds: float, house: Path = HOUSE) -> None:
    """Write the figure beside those that the tests themselves have written there."""
    record: dict[str, Any] = json.loads(house.read_text("utf-8")) if house.is_file() else {}
    record["test_fast_s"] = round(seconds, 1)
    house.parent.mkdir(exist_ok=True)
    house.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def main(options: list[str]) -> int:
    """Run them; pytest's own exit code."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *options, "tests/unit"]
    code = subprocess.run(command, cwd=ROOT, env=os.environ | {"DUOBUS_SEEDS": str(SEEDS)}, check=False).returncode
    seconds = time.monotonic() - begun
    if code == 0:
        keep(seconds)
    print(
        f"The unit tests took {seconds:.0f} s; on two cores they shall take at most {LIMIT_S:.0f} s.", file=sys.stderr
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
