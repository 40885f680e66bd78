"""Completion of the shell, texts in YAML, and what trust prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from duobus.cli.main import main
from duobus.cli.output import json_of, yaml_of


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_the_command(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert f"_DUOBUS_COMPLETE={shell}_complete" in result.output


def test_another_shell_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("duobus qu", ["queue"]),
        ("duobus queue cr", ["create"]),
        ("duobus queue list --output ", ["table", "json", "jsonl", "yaml", "tsv"]),
        ("duobus queue update q --status Act", ["Active"]),
    ],
)
def test_commands_options_and_values_are_completed(words: str, expected: list[str]) -> None:
    environment = os.environ | {
        "_DUOBUS_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - (not words.endswith(" "))),
    }
    code = "from duobus.cli.main import main; main(prog_name='duobus')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1, "b": None, "c": True}, "a: 1\nb: null\nc: true"),
        ({"a": {"b": ["x", {"c": 1.5, "d": []}]}}, "a:\n  b:\n    - x\n    - c: 1.5\n      d: []"),
        ([], "[]"),
        ([[1, 2], {}], "- - 1\n  - 2\n- {}"),
        ({"name": "\u00fcber \U0001f4e6 \u4f60"}, "name: \u00fcber \U0001f4e6 \u4f60"),
        ("\u202eright to left", '"\\u202eright to left"'),
        ("plain text", "plain text"),
        *((odd, f"'{odd}'") for odd in ("no", "y", "1", "-", "a: b", "a #b", "", "2026-01-02", "* x", "true", "P1D: ")),
        ("line\nbreak", '"line\\nbreak"'),
        ("\u00fc\x1b", '"\u00fc\\e"'),
    ],
)
def test_what_json_can_tell_is_told_in_yaml(value: Any, text: str) -> None:
    assert yaml_of(value) == text
    assert yaml.safe_load(text) == value


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_what_is_printed_is_read_back_and_moves_no_cursor(value: Any) -> None:
    for read, text in ((yaml.safe_load, yaml_of({"value": value})), (json.loads, json_of({"value": value}))):
        assert read(text) == {"value": value}
        assert not set(text) & {chr(code) for code in (*range(10), *range(11, 32), *range(127, 160), 0x202E)}


def test_the_page_about_tls_has_the_lines_that_trust_prints(tmp_path: Path) -> None:
    authority = tmp_path / "bus" / "tls" / "ca.pem"
    authority.parent.mkdir(parents=True)
    authority.write_text("")
    printed = CliRunner().invoke(main, ["trust", "--data", str(tmp_path / "bus")]).output
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "tls.md").read_text()
    block = page.split("## Two lines for each language")[1].split("```sh\n")[1].split("```")[0]
    assert block == printed.replace(str(authority.resolve()), "bus/tls/ca.pem")
