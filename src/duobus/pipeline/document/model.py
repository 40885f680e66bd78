"""What a document declares, as values; nothing in here reads a file or needs Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

#: The trigger of a stage that runs once: over what is there when the run begins.
AVAILABLE_NOW: Final = "availableNow"


class Fault(NamedTuple):
    """One thing that is wrong with a document.

    Attributes:
        place: Table of the document, as ``stages.report``; empty for the document as a whole.
        key: Key in the table; None for the table itself.
        line: Number of the line, from 1; None where the line is not known.
        text: A sentence.
    """

    place: str
    key: str | None
    line: int | None
    text: str


class DocumentError(ValueError):
    """A document is wrong.

    Attributes:
        faults: What is wrong with it, in the order of the lines.
    """

    def __init__(self, file: str, faults: list[Fault]) -> None:
        self.faults = sorted(faults, key=lambda fault: fault.line or 0)
        super().__init__("\n".join(told(file, fault) for fault in self.faults))


def told(file: str, fault: Fault) -> str:
    """A fault in one line: file, line, place and sentence."""
    where = f"{file}:{fault.line}" if fault.line else file
    place = ".".join(part for part in (fault.place, fault.key) if part)
    return f"{where}: {place}: {fault.text}" if place else f"{where}: {fault.text}"


class Kind(Enum):
    """What a stage does."""

    #: Messages to a table, in the columns of the data source.
    CAPTURE = "capture"
    #: Messages, changed by views, to a table, a queue, a topic or a function: a streaming query.
    STREAM = "stream"
    #: Rows of tables, changed by views, to a table that is replaced as a whole.
    REPORT = "report"
    #: Rows of tables, changed by views, to a queue, a topic or a function.
    SEND = "send"
    REPLAY = "replay"
    COMPACT = "compact"
    USAGE = "usage"
    RECONCILE = "reconcile"


#: Kinds that are one streaming query each.
STREAMING: Final = frozenset({Kind.CAPTURE, Kind.STREAM})


@dataclass(frozen=True, slots=True)
class Source:
    """Entities that a stage reads as a stream.

    Attributes:
        name: Its name in SQL.
        options: Of the data source, with those of the connection.
        entities: What is read, for people and for the check that two stages do not claim one entity.
        mode: ``claim`` or ``browse``.
    """

    name: str
    options: Mapping[str, str]
    entities: tuple[str, ...]
    mode: str


class Form(Enum):
    """What the files of a table are."""

    #: A folder of files.
    PARQUET = "parquet"
    #: A folder with a log of commits.
    DELTA = "delta"
    #: A table of a catalog.
    ICEBERG = "iceberg"


class Catalog(NamedTuple):
    """Where a table of Iceberg is.

    Attributes:
        table: Its name there, with its namespace.
        name: Of the catalog, in the configuration of pyiceberg.
        uri: Address of the catalog; None: as pyiceberg is configured.
        warehouse: Place of tables; None: as pyiceberg is configured.
    """

    table: str
    name: str
    uri: str | None
    warehouse: str | None


@dataclass(frozen=True, slots=True)
class Table:
    """A folder of Parquet files, a table of Delta, or one of Iceberg.

    Attributes:
        name: Its name in SQL.
        path: The folder; of a table of Iceberg, its name in the catalog.
        columns: Its columns as DDL; None where the first batch decides.
        partition_by: Columns that become folders.
        compression: Of the files.
        form: What its files are.
        catalog: Of a table of Iceberg; None of others.
    """

    name: str
    path: str
    columns: str | None = None
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"
    form: Form = Form.PARQUET
    catalog: Catalog | None = None


@dataclass(frozen=True, slots=True)
class View:
    """Rows made of other rows: by SQL, or by a function of Python.

    Attributes:
        name: Its name in SQL.
        sql: The statement; None for a function.
        file: File of the statement, for errors; None where the document has it.
        function: ``module:function``, which takes a DataFrame for each input and returns one.
        inputs: Names of sources, tables and views that it reads, as the document spells them.
    """

    name: str
    sql: str | None
    file: str | None
    function: str | None
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sink:
    """Where rows go that do not go to a table.

    Attributes:
        name: Its name.
        options: Of the data source, with those of the connection; empty for a function.
        function: ``module:function`` for ``foreachBatch``; None for a queue or topic.
        target: Queue, topic or function, for people.
    """

    name: str
    options: Mapping[str, str]
    function: str | None
    target: str


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a pipeline.

    Attributes:
        name: Its name.
        kind: What it does.
        reads: Name of the source, table or view whose rows it takes; None for jobs that have folders only.
        writes: Name of the table or sink; None for jobs that have folders only.
        sources: Names of all sources that it reaches through its views.
        tables: Names of all tables that it reaches, likewise.
        views: Names of all views that it reaches, each behind those that it needs.
        every_ms: Time from one run to the next; None for one that runs once, or behind others.
        after: Names of the stages behind which it runs.
        new_rows_of: The table of which only those batches are read that no earlier run has read.
        output_mode: Of a streaming query.
        settings: Of the job, and of nothing else.
    """

    name: str
    kind: Kind
    reads: str | None
    writes: str | None
    sources: tuple[str, ...]
    tables: tuple[str, ...]
    views: tuple[str, ...]
    every_ms: int | None
    after: tuple[str, ...]
    new_rows_of: str | None
    output_mode: str
    settings: Mapping[str, Any]

    @property
    def is_streaming(self) -> bool:
        """Whether the stage is a streaming query."""
        return self.kind in STREAMING

    @property
    def trigger(self) -> str:
        """When it runs, as people read it."""
        if self.after:
            return f"after {', '.join(self.after)}"
        if self.every_ms is None:
            return AVAILABLE_NOW
        return f"every {self.every_ms // 1000} s" if self.every_ms % 1000 == 0 else f"every {self.every_ms} ms"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A document that was checked.

    Attributes:
        name: Of the pipeline.
        file: The document.
        state: Folder of everything that is kept between runs.
        master: Of Spark; None for this machine.
        parallel: Stages that run at a time, beside streams.
        attempts: How often a stage that fails is tried, where another attempt may help.
        conf: Settings of Spark.
        sources, tables, views, sinks, stages: By name; stages in the order in which they depend on each other.
    """

    name: str
    file: Path
    state: Path
    master: str | None
    parallel: int
    attempts: int
    conf: Mapping[str, str]
    sources: Mapping[str, Source] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    views: Mapping[str, View] = field(default_factory=dict)
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    stages: Mapping[str, Stage] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Folder of the document, from which its paths count and where its modules of Python are."""
        return self.file.parent

    def writers_of(self, table: str) -> tuple[str, ...]:
        """Names of the stages that write a table."""
        return tuple(stage.name for stage in self.stages.values() if stage.writes == table)

    def table_of(self, stage: Stage) -> Table | None:
        """The table that a stage writes; None for a stage that writes none."""
        return self.tables.get(stage.writes or "")

    def sink_of(self, stage: Stage) -> Sink | None:
        """The sink that a stage writes; None for a stage that writes a table or has folders only."""
        return self.sinks.get(stage.writes or "")

    def before(self, stage: Stage) -> tuple[str, ...]:
        """Names of the stages that have to be done before a stage runs: those it names, and writers of its tables."""
        writers = (writer for table in stage.tables for writer in self.writers_of(table))
        return tuple(dict.fromkeys((*stage.after, *writers)))
