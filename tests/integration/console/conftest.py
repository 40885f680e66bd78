"""Each test of the console has a state folder of its own, and none has that of the user who runs the tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs over dead letters are kept there by the port of their namespace, which the system gives out again."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
