"""``--console`` where the packages of the console, or some of them, are not installed."""

from __future__ import annotations

import importlib.util

import pytest

from duobus.errors import ConfigurationError
from duobus.server import console_process


@pytest.mark.parametrize("missing", ["jinja2", "azure", "azure.servicebus"])
def test_the_command_that_installs_what_is_missing_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> object:
        if name.startswith(f"{missing}."):
            raise ModuleNotFoundError(f"No module named {missing!r}")
        return None if name == missing else importlib.util.find_spec(name)

    monkeypatch.setattr(console_process, "find_spec", find)
    with pytest.raises(ConfigurationError, match=r"pip install 'duobus\[console\]'"):
        console_process.demand_console()
