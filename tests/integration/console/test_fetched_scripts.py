"""The scripts of others lie in the repository as their authors have published them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import fetch_scripts


def test_every_fetched_file_is_there_unchanged_and_listed_with_its_licence() -> None:
    assert fetch_scripts.faults() == []


def test_a_changed_and_an_unknown_file_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script, *_) = fetch_scripts.SCRIPTS
    monkeypatch.setattr(fetch_scripts, "ROOT", tmp_path)
    monkeypatch.setattr(fetch_scripts, "SCRIPTS", (script,))
    script.path.parent.mkdir(parents=True)
    script.path.write_text("alert(1)")
    (script.path.parent / "more.js").write_text("alert(2)")
    told = fetch_scripts.faults()
    assert [Path(line.split()[0]).name for line in told] == ["htmx.min.js", "README.md", "more.js"]
