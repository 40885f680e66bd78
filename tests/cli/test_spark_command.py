"""The command line of the pipeline, as far as it goes without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from duobus.cli import spark as cli
from duobus.cli.main import main
from duobus.cli.spark_options import kebab

REPLAY = ["spark", "replay", "--path", "x", "--queue", "q", "--dedupe", "original"]


def test_the_help_of_each_job_has_an_example() -> None:
    import click

    context = click.Context(cli.command)
    for name in cli.command.list_commands(context):
        result = CliRunner().invoke(main, ["spark", name, "--help"])
        assert result.exit_code == 0, result.output
        assert f"duobus spark {name}" in result.output.split("Example:")[1]


def test_without_java_it_says_where_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.shutil, "which", lambda _: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = CliRunner().invoke(main, REPLAY)
    assert result.exit_code == 1
    assert "Java 17 or 21" in result.output
    assert "apt-get install openjdk-17-jre-headless" in result.output


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == "pyspark" else object())
    result = CliRunner().invoke(main, REPLAY)
    assert result.exit_code == 1
    assert "pip install 'duobus[spark]'" in result.output


def test_a_settings_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("no toml")
    result = CliRunner().invoke(main, [*REPLAY, "--config", str(file)])
    assert result.exit_code == 1
    assert f"The file {file} is no TOML" in result.output


def test_options_are_named_as_those_of_the_data_source() -> None:
    assert kebab("maxMessagesPerSecond") == "--max-messages-per-second"


def test_a_connection_string_cannot_be_given_where_everybody_reads_it() -> None:
    assert "--connection-string-env" in CliRunner().invoke(main, ["spark", "replay", "--help"]).output
    assert CliRunner().invoke(main, [*REPLAY, "--connection-string", "x"]).exit_code == 2
