"""The stages of a document: what each reaches through its views, what it therefore does, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from duobus.pipeline.document.checked_values import Faults, Section, near
from duobus.pipeline.document.model import AVAILABLE_NOW, STREAMING, Form, Kind, Pipeline, Stage, Table
from duobus.spark.errors import OptionError
from duobus.spark.jobs.job import text_of
from duobus.spark.options import CONNECTION_OPTIONS, DURATION, Option

_EVERY: Final = Option("trigger", DURATION, None, "time from one run to the next", least=100, most=86_400_000)
_MODES: Final = ("append", "update")
#: Keys of every stage, and those of stages that move rows.
_ALL: Final = ("job", "trigger", "after")
_MOVES: Final = ("from", "to", "newRowsOf", "outputMode")
#: Jobs that have settings of their own, and the settings that the pipeline fills in.
_JOBS: Final[Mapping[Kind, tuple[str, ...]]] = {
    Kind.REPLAY: ("queue", "topic", "path", "format", "table", "catalog", "catalogUri", "warehouse"),
    Kind.COMPACT: (),
    Kind.USAGE: (),
    Kind.RECONCILE: ("checkpointPath",),
}
#: Options of jobs whose names are keys of every stage, and their keys here.
_KEYS: Final = {"from": "since"}
#: Settings of jobs that are folders: a name of a table stands for its folder, all others count from the document.
_FOLDERS: Final = frozenset(
    {"a", "b", "out", "differences", "metering", "compacted", "damaged", "prices", "path", "oversizePath", "reportPath"}
)


class StageReader:
    """Reads the stages of a document.

    Args:
        pipeline: The document without its stages.
        faults: Where faults go.
        folder: Folder of the document.
    """

    def __init__(self, pipeline: Pipeline, faults: Faults, folder: Path) -> None:
        self._pipeline = pipeline
        self._faults = faults
        self._folder = folder

    def stages(self, sections: Mapping[str, Section]) -> Pipeline:
        """The document with its stages, in the order in which they depend on each other."""
        found = {name: stage for name, one in sections.items() if (stage := self._stage(name, one, sections))}
        self._demand_single_writers(found)
        self._demand_single_claims(found)
        pipeline = replace(self._pipeline, stages=found)
        if not self._faults.found:
            # A stage that is wrong may be the one that writes the table.
            self._demand_tables_that_are_there(pipeline)
        ordered = self._ordered(pipeline)
        return replace(pipeline, stages=ordered)

    # -- one stage --------------------------------------------------------------------------------------------------

    def _stage(self, name: str, section: Section, others: Iterable[str]) -> Stage | None:
        job = section.text("job")
        kinds = [kind.value for kind in Kind]
        if job is not None and job not in kinds:
            section.fault("job", f"There is no job {job!r}.{near(job, kinds)}")
            return None
        every_ms, after = self._trigger(section, others, name)
        kind = None if job is None else Kind(job)
        if kind in _JOBS:
            assert kind is not None
            return self._job(name, kind, section, every_ms, after)
        section.known((*_ALL, *_MOVES), hint=" Options of a job go with 'job'.")
        reads, writes = self._end(section, "from"), self._end(section, "to")
        if reads is None or writes is None:
            return None
        sources, tables, views = self._reached(reads)
        meant = self._meant(reads, writes, sources)
        kind = kind or meant
        if not sources and not tables:
            if not any(fault.place.startswith("views.") for fault in self._faults.found):
                section.fault("from", f"{reads!r} leads to no source and no table.")
        elif kind is Kind.CAPTURE and not self._may_capture(section, reads, writes):
            return None
        elif kind is not meant:
            section.fault("job", f"The job is {kind.value!r}, but {self._why(reads, writes, sources)}.")
        else:
            new, mode = self._new_rows_of(section, kind, tables), self._output_mode(section, kind)
            return Stage(name, kind, reads, writes, sources, tables, views, every_ms, after, new, mode, {})
        return None

    def _output_mode(self, section: Section, kind: Kind) -> str:
        mode = section.text("outputMode") or _MODES[0]
        if mode not in _MODES:
            hint = near(mode, _MODES)
            section.fault("outputMode", f"'outputMode' is {mode!r}; it has to be {' or '.join(_MODES)}.{hint}")
        elif section.has("outputMode") and kind is not Kind.STREAM:
            section.fault("outputMode", "'outputMode' is for stages that read a source through views.")
        return mode

    def _new_rows_of(self, section: Section, kind: Kind, tables: tuple[str, ...]) -> str | None:
        new = section.text("newRowsOf")
        if new is None:
            return None
        if kind in STREAMING:
            section.fault("newRowsOf", "'newRowsOf' is for stages that read tables: a stream has new rows only.")
        elif new not in tables:
            section.fault("newRowsOf", f"The stage reads no table {new!r}.{near(new, tables)}")
        elif kind is Kind.REPORT:
            text = "A report is replaced as a whole, so 'newRowsOf' would leave out its older rows."
            section.fault("newRowsOf", text)
        return new

    def _trigger(self, section: Section, others: Iterable[str], own: str) -> tuple[int | None, tuple[str, ...]]:
        after = section.names("after")
        for one in after:
            if one == own:
                section.fault("after", "A stage cannot run after itself.")
            elif one not in others:
                section.fault("after", f"There is no stage {one!r}.{near(one, others)}")
        trigger = section.text("trigger")
        if trigger is None or trigger == AVAILABLE_NOW:
            return None, after
        if after:
            section.fault("trigger", "Give one of the keys 'trigger' and 'after'.")
        try:
            return int(_EVERY.parse(trigger)), after
        except OptionError:
            hint = near(trigger, (AVAILABLE_NOW,))
            wanted = f"{AVAILABLE_NOW!r}, or a time from '100ms' to '1d', as '10s'"
            section.fault("trigger", f"'trigger' is {trigger!r}; it has to be {wanted}.{hint}")
            return None, after

    def _end(self, section: Section, key: str) -> str | None:
        """The name at one end of a stage, if there is such a thing."""
        pipeline = self._pipeline
        known = (
            {**pipeline.sources, **pipeline.tables, **pipeline.views}
            if key == "from"
            else {**pipeline.tables, **pipeline.sinks}
        )
        kinds = "source, table or view" if key == "from" else "table or sink"
        name = section.text(key)
        if name is None:
            if not section.has(key):
                section.fault(None, f"{key!r} is needed here: the name of a {kinds}.")
        elif name not in known:
            section.fault(key, f"There is no {kinds} {name!r}.{near(name, known)}")
            return None
        return name

    def _reached(self, name: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Sources, tables and views to which a name leads; a view behind those that it needs."""
        pipeline, done, open_ = self._pipeline, dict[str, None](), list[str]()

        def walk(one: str) -> None:
            if one in open_:
                circle = " -> ".join((*open_[open_.index(one) :], one))
                self._faults.add(f"views.{one}", None, f"The views read each other in a circle: {circle}.")
            elif one not in done:
                open_.append(one)
                for inner in pipeline.views[one].inputs if one in pipeline.views else ():
                    walk(inner)
                open_.pop()
                done[one] = None

        walk(name)
        return (
            tuple(one for one in done if one in pipeline.sources),
            tuple(one for one in done if one in pipeline.tables),
            tuple(one for one in done if one in pipeline.views),
        )

    def _meant(self, reads: str, writes: str, sources: tuple[str, ...]) -> Kind:
        if sources:
            is_capture = reads in self._pipeline.sources and writes in self._pipeline.tables
            return Kind.CAPTURE if is_capture else Kind.STREAM
        return Kind.REPORT if writes in self._pipeline.tables else Kind.SEND

    def _may_capture(self, section: Section, reads: str, writes: str) -> bool:
        if reads not in self._pipeline.sources:
            section.fault(
                "from", f"A capture reads a source, and {reads!r} is none.{near(reads, self._pipeline.sources)}"
            )
            return False
        if writes not in self._pipeline.tables:
            section.fault(
                "to", f"A capture writes a table, and {writes!r} is a sink.{near(writes, self._pipeline.tables)}"
            )
            return False
        table = self._pipeline.tables[writes]
        for key, given in (("columns", table.columns), ("partitionBy", table.partition_by)):
            if given:
                self._faults.add(f"tables.{writes}", key, "A captured table has the columns and folders of the source.")
        known = {option.name for option in (*CONNECTION_OPTIONS, *import_module("duobus.spark.jobs.capture").OPTIONS)}
        for key in self._pipeline.sources[reads].options:
            if key not in known:
                text = "A capture does not take this option: leave it out, or put a view between source and table."
                self._faults.add(f"sources.{reads}", key, text)
        return True

    def _why(self, reads: str, writes: str, sources: tuple[str, ...]) -> str:
        if sources:
            return f"{reads!r} leads to the source {sources[0]!r}"
        to = "the table" if writes in self._pipeline.tables else "the sink"
        return f"{reads!r} leads to tables only, and {writes!r} is {to}"

    # -- jobs with settings of their own ----------------------------------------------------------------------------

    def _job(
        self, name: str, kind: Kind, section: Section, every_ms: int | None, after: tuple[str, ...]
    ) -> Stage | None:
        options = import_module(f"duobus.spark.jobs.{kind.value}").OPTIONS
        own = {_KEYS.get(option.name, option.name): option for option in options if option.name not in _JOBS[kind]}
        ends = ("from", "to") if kind is Kind.REPLAY else ()
        section.known((*_ALL, *ends, *own))
        settings: dict[str, Any] = {}
        tables: list[str] = []
        for key, value in section.values.items():
            if key not in own:
                continue
            if key in _FOLDERS:
                names = section.names(key)
                self._demand_folders(section, key, names)
                tables += [one for one in names if one in self._pipeline.tables]
                given = ",".join(map(self._folder_of, names))
            else:
                given = text_of(value)
            settings[own[key].name] = given
            try:
                own[key].parse(given)
            except OptionError as error:
                section.fault(key, str(error))
        reads = writes = None
        if kind is Kind.REPLAY:
            reads, writes = self._end(section, "from"), self._end(section, "to")
            if reads is None or writes is None:
                return None
            sink = self._pipeline.sinks.get(writes)
            if reads not in self._pipeline.tables:
                section.fault("from", f"A replay reads a captured table, and {reads!r} is none.")
                return None
            if sink is None or sink.function is not None:
                section.fault("to", f"A replay sends to a queue or topic, and {writes!r} is none.")
                return None
            tables.append(reads)
            connection = {option.name for option in CONNECTION_OPTIONS}
            settings |= {key: value for key, value in sink.options.items() if key in connection | {"queue", "topic"}}
            settings |= settings_of_table(self._pipeline.tables[reads])
            if self._pipeline.tables[reads].catalog is not None:
                # Files of Parquet and of Delta have it beside them.
                settings.setdefault("reportPath", str(self._pipeline.state / "replays"))
        written = next((one for one in self._pipeline.tables.values() if one.path == settings.get("out")), None)
        writes = writes or (written.name if written is not None else None)
        read = tuple(dict.fromkeys(one for one in tables if one != writes))
        return Stage(name, kind, reads, writes, (), read, (), every_ms, after, None, _MODES[0], settings)

    def _demand_folders(self, section: Section, key: str, names: Iterable[str]) -> None:
        """Jobs read and write files of Parquet; those of Delta and Iceberg are rows only together with their log."""
        for name in names:
            table = self._pipeline.tables.get(name)
            if table is not None and table.form is not Form.PARQUET:
                text = f"The job takes files of Parquet, and {name!r} is a table of {table.form.value}: "
                section.fault(key, text + "let a stage write what it has of them to a table of Parquet.")

    def _folder_of(self, name: str) -> str:
        if name in self._pipeline.tables:
            return self._pipeline.tables[name].path
        return name if "://" in name else str(self._folder / name)

    # -- all stages together ----------------------------------------------------------------------------------------

    def _demand_single_writers(self, stages: Mapping[str, Stage]) -> None:
        writers: dict[str, Stage] = {}
        for stage in stages.values():
            if stage.writes not in self._pipeline.tables:
                continue
            assert stage.writes is not None
            if stage.writes in stage.tables:
                self._faults.add(f"stages.{stage.name}", "to", f"The stage reads the table {stage.writes!r} itself.")
            other = writers.setdefault(stage.writes, stage)
            if other is not stage and not (stage.kind is other.kind and stage.is_streaming):
                text = f"The table {stage.writes!r} is written by the stage {other.name!r}, which does something else."
                self._faults.add(f"stages.{stage.name}", "to", text)

    def _demand_single_claims(self, stages: Mapping[str, Stage]) -> None:
        claims: dict[tuple[str, str], str] = {}
        connection = {option.name for option in CONNECTION_OPTIONS}
        for stage in stages.values():
            for name in stage.sources:
                source = self._pipeline.sources[name]
                place = repr(sorted((key, value) for key, value in source.options.items() if key in connection))
                for entity in source.entities if source.mode == "claim" else ():
                    other = claims.setdefault((place, entity.lower()), stage.name)
                    if other != stage.name:
                        self._faults.add(
                            f"stages.{stage.name}",
                            "from",
                            f"The stage {other!r} claims {entity!r}, too, so that each message would reach one of "
                            "the two: let one of them read what the other has written, or browse.",
                        )

    def _demand_tables_that_are_there(self, pipeline: Pipeline) -> None:
        for stage in pipeline.stages.values():
            for name in stage.tables:
                path = pipeline.tables[name].path
                if pipeline.tables[name].catalog is not None:
                    continue  # Only the catalog knows, and nothing is asked before a run.
                if not pipeline.writers_of(name) and "://" not in path and not Path(path).exists():
                    text = (
                        f"The table is read by the stage {stage.name!r} and written by none, and {path} is not there."
                    )
                    self._faults.add(f"tables.{name}", "path", text)

    def _ordered(self, pipeline: Pipeline) -> dict[str, Stage]:
        """The stages, each behind those that have to be done before it."""
        done: dict[str, Stage] = {}
        open_: list[str] = []

        def walk(stage: Stage) -> None:
            if stage.name in open_:
                circle = " -> ".join((*open_[open_.index(stage.name) :], stage.name))
                text = f"The stages wait for each other in a circle: {circle}."
                if not any(fault.text.startswith("The stages wait") for fault in self._faults.found):
                    self._faults.add(f"stages.{stage.name}", "after", text)
            elif stage.name not in done:
                open_.append(stage.name)
                for name in pipeline.before(stage):
                    if name in pipeline.stages:
                        walk(pipeline.stages[name])
                open_.pop()
                done[stage.name] = stage

        for stage in pipeline.stages.values():
            walk(stage)
        return done


def settings_of_table(table: Table) -> dict[str, str]:
    """The settings by which a job names a table of captured messages."""
    if table.catalog is None:
        return {"format": table.form.value, "path": table.path}
    found = {
        "table": table.catalog.table,
        "catalog": table.catalog.name,
        "catalogUri": table.catalog.uri,
        "warehouse": table.catalog.warehouse,
    }
    return {"format": table.form.value} | {name: value for name, value in found.items() if value is not None}
