"""The time of the unit tests is kept beside what they have written themselves."""

from __future__ import annotations

import json
from pathlib import Path

from tools.fast_tests import keep


def test_the_time_is_kept_and_what_others_wrote_stays(tmp_path: Path) -> None:
    house = tmp_path / ".build" / "house.json"
    keep(81.26, house)
    house.write_text(json.dumps(json.loads(house.read_text()) | {"walk_files": 36}))
    keep(79.0, house)

    assert json.loads(house.read_text()) == {"test_fast_s": 79.0, "walk_files": 36}
