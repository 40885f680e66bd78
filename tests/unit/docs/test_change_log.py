"""The change log has this version, and what comes after it is collected under names that say its kind."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("added", "changed", "fixed", "removed")


def test_the_newest_release_in_the_change_log_is_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    releases = re.findall(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0][0] == version
    dates = [date for _, date in releases]
    assert dates == sorted(dates, reverse=True)


def test_a_change_since_then_has_a_name_as_its_folder_says() -> None:
    guide = (ROOT / "changes" / "README.md").read_text()
    assert all(f"- `{kind}`: " in guide for kind in KINDS)
    for path in sorted((ROOT / "changes").iterdir()):
        assert path.name == "README.md" or re.fullmatch(rf"[a-z0-9.-]+\.({'|'.join(KINDS)})\.md", path.name), path.name
