"""``duobus spark``: the jobs of the pipeline, on a session of Spark that this process starts.

Each job is a module of ``duobus.spark.jobs`` that anybody may call or submit to a cluster; here it gets its settings
from options and a file, tells its progress on a terminal, and prints its summary.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import click

from duobus.cli.job_progress import BAR, JSON, LINES, NONE, Aside, JobProgress, summary_lines, tasks_watched
from duobus.cli.options import click_options

#: Job to module, whose ``OPTIONS``, ``HELP``, ``EXAMPLE`` and ``run`` make the command, and its line in the help.
_JOBS: Final = {
    "capture": ("duobus.spark.jobs.capture", "Write the messages of entities to Parquet, Delta or Iceberg."),
    "compact": (
        "duobus.spark.jobs.compact",
        "Collect metering files in one table; make few files of captured messages.",
    ),
    "deadletters": ("duobus.spark.jobs.deadletters", "Tell why messages died; resubmit and delete chosen ones."),
    "reconcile": ("duobus.spark.jobs.reconcile", "Make one of two captured namespaces, and tell how they differ."),
    "release": ("duobus.spark.jobs.release", "Free the messages that a stopped query has claimed."),
    "replay": ("duobus.spark.jobs.replay", "Send captured messages to an entity."),
    "sweep": ("duobus.spark.jobs.sweep", "Find deferred messages that no checkpoint names."),
    "syphon": ("duobus.spark.jobs.syphon", "Drain backlog queues into the entities that messages were meant for."),
    "usage": ("duobus.spark.jobs.usage", "Compute operations, bytes and cost out of metering."),
}
#: What some of them are about; without it they are not offered.
_PARTS: Final = {"release": "duobus.spark.recovery", "sweep": "duobus.spark.recovery"}

#: Jobs that need no Spark where their tables are small, and the module that does each of them then.
_LOCAL: Final = {"usage": "duobus.spark.jobs.local.usage"}
#: What Spark looks for in its home, beside the archive of its Python.
_OF_THE_HOME: Final = ("bin", "conf", "jars", "sbin")
#: Packages of the extra.
_NEEDED: Final = ("pyspark", "pyarrow", "azure.servicebus")

_NO_JAVA: Final = (
    "Spark needs Java 17 or 21, and there is no 'java' on the PATH and no JAVA_HOME. On Debian and Ubuntu: "
    "apt-get install openjdk-17-jre-headless. Elsewhere: https://adoptium.net, then set JAVA_HOME."
)
_NO_EXTRA: Final = "This command needs Spark and the SDK: pip install 'duobus[spark]'."


def _is_there(module: str) -> bool:
    return find_spec(module) is not None


class _Jobs(click.Group):
    """Makes the command of a job when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(name for name, (module, _) in _JOBS.items() if _is_there(_PARTS.get(name, module)))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        return _command(cmd_name, import_module(_JOBS[cmd_name][0]))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _JOBS[name][1]) for name in self.list_commands(ctx)])


@click.group(name="spark", cls=_Jobs, no_args_is_help=True)
def command() -> None:
    """Jobs over entities on Spark: capture, replay, triage of dead letters, large backlogs."""


def _command(name: str, job: Any) -> click.Command:
    def run(**given: Any) -> None:
        _run(job, given)

    run.__doc__ = job.HELP
    epilog = f"\b\nExample:\n  {job.EXAMPLE.replace(' --', chr(10) + '    --')}"
    made = click.command(name=name, epilog=epilog, help=job.HELP)(run)
    made.params += [*click_options(job.OPTIONS, connects=getattr(job, "CONNECTS", False)), *_shared()]
    if not getattr(job, "NEEDS_SPARK", True):
        made.params = [option for option in made.params if option.name not in ("master", "conf", "runs_path")]
    return made


def _shared() -> list[click.Option]:
    return [
        click.Option(
            ["--config"],
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="TOML file with settings, named as the options of the data source; options given here win.",
        ),
        click.Option(
            ["--master"], help="Master of the cluster; by default SPARK_MASTER, or all processors of this machine."
        ),
        click.Option(["--conf"], multiple=True, metavar="NAME=VALUE", help="Setting of Spark. Repeatable."),
        click.Option(["--runs-path"], help="Parquet table that gets one row for each run of a job."),
        click.Option(
            ["--json", "is_json"],
            is_flag=True,
            help="Print the summary as one JSON object, and progress as a JSON object a line.",
        ),
        click.Option(["--no-progress"], is_flag=True, help="Do not show progress."),
    ]


def _run(job: Any, given: dict[str, Any]) -> None:
    config, master, conf = given.pop("config"), given.pop("master", None), given.pop("conf", ())
    is_json, no_progress = given.pop("is_json"), given.pop("no_progress")
    names = {option.name.lower(): option.name for option in job.OPTIONS}
    settings = {} if config is None else _file(config)
    settings |= {names.get(name, name): value for name, value in _camel(given).items() if value is not None}
    name = job.__name__.rpartition(".")[2]
    local = _local(name, settings, master, conf)
    needs_spark = local is None and (
        job.needs_spark(settings) if hasattr(job, "needs_spark") else getattr(job, "NEEDS_SPARK", True)
    )
    demand_spark(needs_spark=needs_spark)
    form = NONE if no_progress else JSON if is_json else BAR if sys.stderr.isatty() else LINES
    progress = JobProgress(name, form)
    _check(job, settings)
    if needs_spark:
        progress.tell("starting Spark")
        with _aside(name, progress) as aside:
            summary, status = _with_spark(job, settings, progress, lambda: new_session(master, conf, aside))
    else:
        summary, status = _called(local or job, None, settings, progress), 0
    _print(summary, is_json)
    if status:
        sys.exit(status)


def _local(name: str, settings: Mapping[str, Any], master: str | None, conf: tuple[str, ...]) -> Any:
    """The module that does a job faster than Spark would, unless something asks for Spark; None: there is none."""
    from duobus.spark.errors import OptionError

    if name not in _LOCAL or master is not None or conf or "SPARK_MASTER" in os.environ:
        return None
    if any(find_spec(needed) is None for needed in _NEEDED):
        return None
    module = import_module(_LOCAL[name])
    try:
        return module if module.needs_no_spark(settings) else None
    except OptionError as error:
        raise click.ClickException(_masked(str(error))) from None


@contextmanager
def _aside(name: str, progress: JobProgress) -> Iterator[Aside]:
    """What Spark prints goes to a file, which stays when the job has failed."""
    aside = Aside(name)
    try:
        yield aside
    except BaseException:
        aside.end(progress.say)
        raise
    aside.end()


def _check(job: Any, settings: Mapping[str, Any]) -> None:
    """Refuse what is wrong before Spark is started, which takes longer than all that is checked here."""
    from duobus.spark.connection import demand_reachable, place_of
    from duobus.spark.errors import AddressError, OptionError
    from duobus.spark.jobs.job import RUNS_PATH
    from duobus.spark.jobs.job import settings as checked
    from duobus.spark.options import CONNECTION_OPTIONS

    connects = getattr(job, "CONNECTS", False)
    try:
        parsed = checked(settings, (*(CONNECTION_OPTIONS if connects else ()), *job.OPTIONS, RUNS_PATH))
        if connects:
            demand_reachable(place_of(parsed))
    except (OptionError, AddressError) as error:
        raise click.ClickException(_masked(str(error))) from None


def _with_spark(
    job: Any, settings: Mapping[str, Any], progress: JobProgress, make: Callable[[], Any]
) -> tuple[dict[str, Any], int]:
    """Call a job on a session that lives as long; its summary, and the exit status: 0, or 128 and the signal's number.

    A job that a signal has stopped tells what it came to, as any other.
    """
    from duobus.spark.jobs.interruption import Stopping

    name = job.__name__.rpartition(".")[2]
    spark = _started(name, make)
    stopping = Stopping(spark)
    try:
        with stopping.watching(), tasks_watched(spark, progress):
            summary = _called(job, spark, settings, progress)
    except click.ClickException:
        if stopping.signum is None:
            raise
        # What was cancelled has failed, for no other reason.
        summary = {"job": name}
    finally:
        _ended(spark)
    if stopping.signum is None:
        return summary, 0
    progress.say("The job was stopped. The same command goes on where it was.")
    return {**summary, "interrupted": True}, 128 + stopping.signum


def _started(name: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except KeyboardInterrupt:
        # The connection to the JVM is in the middle of an answer; nothing was begun, so nothing has to be ended.
        click.echo(f"duobus spark {name} was interrupted before it began.", err=True)
        sys.stderr.flush()
        os._exit(128 + signal.SIGINT)


def _ended(spark: Any) -> None:
    # From here on a signal would only leave the JVM in the middle of its end.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    spark.stop()
    signal.signal(signal.SIGINT, before)


def _called(job: Any, spark: Any, settings: Mapping[str, Any], progress: JobProgress) -> dict[str, Any]:
    from duobus.spark.errors import AddressError, CheckpointError, DataLoss, EntityError, OptionError
    from duobus.spark.jobs.job import JobError, cause_of, spark_errors

    try:
        summary: dict[str, Any] = job.run(spark, settings, progress.tell)
    except (OptionError, JobError, AddressError, EntityError, CheckpointError, DataLoss) as error:
        progress.clear()
        raise click.ClickException(_masked(str(error))) from None
    except spark_errors() as error:
        progress.clear()
        raise click.ClickException(_masked(cause_of(error))) from None
    finally:
        progress.clear()
    return summary


def _camel(given: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in given.items():
        first, *others = name.rstrip("_").split("_")
        found[first + "".join(part.title() for part in others)] = value
    return found


def _file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.ClickException(f"The file {path} is no TOML: {error}") from None


def demand_spark(*, needs_spark: bool) -> None:
    """Check what Spark needs, and tell it which Python its workers are to use."""
    if any(find_spec(name) is None for name in _NEEDED):
        raise click.ClickException(_NO_EXTRA)
    if not needs_spark:
        return
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        raise click.ClickException(_NO_JAVA)
    # Without it Spark takes the first python3 on the PATH, which need not have what this one has. Where the variables
    # are set they stay, because the executors of a cluster may have their Python elsewhere.
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if not os.environ.get(name):
            os.environ[name] = sys.executable


def new_session(master: str | None, conf: tuple[str, ...], aside: Aside | None = None) -> Any:
    """Start a session of Spark; ``conf`` has settings of the form ``NAME=VALUE``, ``aside`` takes Spark's own words."""
    from pyspark.sql import SparkSession

    from duobus.spark.jobs.job import spark_errors

    place = master or os.environ.get("SPARK_MASTER") or "local[*]"
    if place.startswith("local") and not place.startswith("local-cluster"):
        _take_quick_home()
    builder: Any = SparkSession.builder
    builder = builder.appName("duobus").master(place)
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.ui.showConsoleProgress", "false")
    # Spark's own default is a type without statistics, which other readers of Parquet cannot skip by.
    builder = builder.config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    if master is None and "SPARK_MASTER" not in os.environ:
        # On one machine nothing has to reach the driver from outside.
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.ui.enabled", "false")
    for one in conf:
        name, equals, value = one.partition("=")
        if not equals:
            raise click.BadParameter(f"{one!r} has to be NAME=VALUE", param_hint="--conf")
        builder = builder.config(name, value)
    try:
        with nullcontext() if aside is None else aside.taking():
            spark = builder.getOrCreate()
    except spark_errors() as error:
        raise click.ClickException(f"Spark did not start: {str(error).splitlines()[0]}") from None
    spark.sparkContext.setLogLevel("WARN")
    return spark


def _take_quick_home() -> None:
    """Let each Python process of a session on this machine begin a second sooner; nothing where a home is set.

    Such a process looks for PySpark in an archive of Spark's home first, in which nothing compiled can be kept. In a
    home without the archive the installed package serves, which is the same code. The home is in the folder for caches
    of this user; where it cannot be made, Spark begins as it would by itself.
    """
    spark = find_spec("pyspark")
    if os.environ.get("SPARK_HOME") or spark is None or spark.origin is None:
        return
    if os.environ.get("PYSPARK_PYTHON") != sys.executable:
        # Another Python need not have the package.
        return
    installed = Path(spark.origin).parent
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    home = caches / "duobus" / f"spark-{crc32(os.fsencode(installed)):08x}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for name in _OF_THE_HOME:
            if (installed / name).exists():
                # Another process may be making it.
                with suppress(FileExistsError):
                    (home / name).symlink_to(installed / name)
    except OSError:
        return
    os.environ["SPARK_HOME"] = str(home)


def _print(summary: Mapping[str, Any], is_json: bool) -> None:
    if is_json:
        click.echo(json.dumps(summary, default=str))
        return
    for line in summary_lines(summary):
        click.echo(line)


def _masked(text: str) -> str:
    from duobus.spark.connection import masked

    return masked(text)
