"""The part ``rate``: a rate without kills, and the end of what the command prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from duobus.cli.main import main
from duobus_demo.scenarios import rate


@pytest.mark.slow
def test_the_demonstration_ends_in_a_table_a_rate_and_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate, "MESSAGES", 300)
    monkeypatch.setattr(rate, "WARM_UP", 30)
    done = CliRunner().invoke(main, ["demo", "--part", "rate", "--keep", str(tmp_path)])
    assert done.exit_code == 0, done.output
    head, row, told, last = done.stdout.splitlines()
    assert head.split()[0] == "part"
    assert row.split()[:3] == ["rate", "330", "330"]
    assert "messages a second while nothing was killed" in told
    assert last == "PASSED: 330 messages received, none lost, altered or wrongly delivered."


def test_a_demonstration_that_cannot_be_finished_says_so_last(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    done = CliRunner().invoke(main, ["demo", "--part", "rate", "--keep", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stdout.splitlines() == ["FAILED: not all parts were played to their end."]
    assert "is not empty" in done.stderr
