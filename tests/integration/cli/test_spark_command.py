"""The command line of the pipeline, as far as it goes without Spark."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from duobus.cli.commands import spark as cli
from duobus.cli.job_progress import NONE, JobProgress
from duobus.cli.main import main
from duobus.cli.options import kebab
from duobus.spark.jobs.interruption import WAS_STOPPED
from duobus.spark.jobs.job import JobError

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


def test_the_python_of_the_workers_is_that_of_the_command_where_nobody_has_named_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    monkeypatch.setattr(cli, "_NEEDED", ())
    monkeypatch.setattr(cli.shutil, "which", lambda _: "/usr/bin/java")
    monkeypatch.setenv(names[0], "./env/bin/python")
    monkeypatch.setenv(names[1], "")
    cli.demand_spark(needs_spark=True)
    assert [os.environ[name] for name in names] == ["./env/bin/python", sys.executable]


def home_taken(monkeypatch: pytest.MonkeyPatch, caches: Path, python: str = sys.executable) -> Path | None:
    """The home of Spark that a session on this machine begins from, where none is set."""
    pytest.importorskip("pyspark")
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
    monkeypatch.setenv("PYSPARK_PYTHON", python)
    # Set first, so that it is as before in the end.
    monkeypatch.setenv("SPARK_HOME", "")
    cli._take_quick_home()
    return Path(os.environ["SPARK_HOME"]) if os.environ["SPARK_HOME"] else None


def test_on_one_machine_spark_begins_from_a_home_without_the_archive_of_its_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = home_taken(monkeypatch, tmp_path)
    assert home is not None
    assert home.is_relative_to(tmp_path)
    assert (home / "bin" / "spark-submit").exists()
    assert (home / "jars").is_dir()
    assert not (home / "python").exists()
    # Made before, or by another process.
    assert home_taken(monkeypatch, tmp_path) == home


def test_a_home_that_is_set_or_cannot_be_made_or_does_not_go_with_the_python_is_left_to_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert home_taken(monkeypatch, tmp_path, python="/opt/other/bin/python") is None
    (tmp_path / "a-file").touch()
    assert home_taken(monkeypatch, tmp_path / "a-file") is None
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    cli._take_quick_home()
    assert os.environ["SPARK_HOME"] == "/opt/spark"


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


CAPTURE = ["spark", "capture", "--connection-string-env", "BUS", "--queue", "q", "--path", "x", "--checkpoint", "y"]


def no_spark(*_: object, **__: object) -> None:
    raise AssertionError("Spark was started")


def test_a_wrong_option_is_told_before_spark_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "demand_spark", lambda needs_spark: None)
    monkeypatch.setattr(cli, "new_session", no_spark)
    result = CliRunner().invoke(main, [*CAPTURE, "--max-wait-time", "soon"])
    assert result.exit_code == 1
    assert result.output == (
        "Error: The option 'maxWaitTime' is 'soon'; it has to be a duration like 500ms, 30s, 5m or 1h.\n"
    )


def test_an_address_where_nobody_listens_is_told_before_spark_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "demand_spark", lambda needs_spark: None)
    monkeypatch.setattr(cli, "new_session", no_spark)
    monkeypatch.setattr("duobus.spark.connection.REACH_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    text = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
    monkeypatch.setenv("BUS", text)
    result = CliRunner().invoke(main, CAPTURE)
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: Nobody answers at 127.0.0.1:{port}, the address that")


class FakeSpark:
    """A session that has nothing to do."""

    streams = SimpleNamespace(active=[])
    sparkContext = SimpleNamespace(cancelAllJobs=lambda: None)  # noqa: N815 - Spark's name
    is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("fails", [True, False])
def test_a_job_that_a_signal_stops_has_one_summary(signum: signal.Signals, status: int, fails: bool) -> None:
    spark = FakeSpark()

    def run(*_: object) -> dict[str, object]:
        signal.raise_signal(signum)
        if fails:
            raise JobError("Job 3 cancelled because SparkContext was shut down")
        return {"job": "capture", "messages": 7}

    job = SimpleNamespace(__name__="duobus.spark.jobs.capture", run=run)
    summary, found = cli._with_spark(job, {}, JobProgress("capture", NONE), lambda: spark)
    WAS_STOPPED.clear()
    assert found == status
    assert summary == {"job": "capture", **({} if fails else {"messages": 7}), "interrupted": True}
    assert spark.is_stopped


def test_every_job_on_spark_keeps_a_table_of_its_runs() -> None:
    """SP7."""
    for name in ("capture", "compact", "deadletters", "reconcile", "replay", "syphon", "usage"):
        assert "--runs-path" in CliRunner().invoke(main, ["spark", name, "--help"]).output
