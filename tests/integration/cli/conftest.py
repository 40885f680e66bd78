"""What tests of several commands use."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["plain", "journal"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that the test starts write commits to SQLite, or to journals first (decision 0059).

    It has to come before a fixture that starts a server, as those of ``usefixtures`` do.
    """
    monkeypatch.setenv("DUOBUS_JOURNAL", "1" if request.param == "journal" else "0")
