"""From the text of a document to what it declares, with all that is wrong told at once.

Nothing is started and nothing of the document is run: options are checked by the tables of the data source and of the
jobs, statements of SQL are scanned for names, and functions are looked up in the text of their modules.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from duobus.pipeline.document.checked_values import Faults, Section, near
from duobus.pipeline.document.model import (
    Catalog,
    DocumentError,
    Fault,
    Form,
    Pipeline,
    Sink,
    Source,
    Table,
    View,
)
from duobus.pipeline.document.python_names import fault_of_function
from duobus.pipeline.document.sql_names import tables_of
from duobus.pipeline.document.stages import StageReader
from duobus.pipeline.document.table_libraries import lacks
from duobus.pipeline.document.toml_lines import TomlLines, line_of_error
from duobus.spark.connection import masked, place_of
from duobus.spark.entities import entities_of
from duobus.spark.errors import OptionError
from duobus.spark.jobs.job import text_of
from duobus.spark.options import CONNECTION_OPTIONS, SOURCE_OPTIONS, Option, demand_mode, parse

_TOP: Final = ("name", "state", "spark", "connections", "sources", "tables", "views", "sinks", "stages")
_FORMATS: Final = tuple(form.value for form in Form)
#: Keys of a table of Iceberg, in place of ``path``.
_OF_ICEBERG: Final = ("table", "catalog", "catalogUri", "warehouse")
#: A file of SQLite, whose path counts from the folder of the document.
_SQLITE: Final = "sqlite:///"
_COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "none")
#: Options that the pipeline sets itself, and the reason.
_OWN: Final = {
    "checkpointlocation": "The pipeline keeps the checkpoints itself, below the folder of its state.",
    "writeid": "The pipeline names each write itself, so that a run that is repeated has the same message ids.",
}
#: Options that name a file or folder, which count from the folder of the document.
FILE_OPTIONS: Final = frozenset({"caFile", "connectionStringFile", "attemptsPath", "oversizePath", "reportPath"})
_PARALLEL_MAX: Final = 16
_ATTEMPTS_MAX: Final = 10


def read_document(file: Path, *, read: Callable[[Path], str] = lambda path: path.read_text("utf-8")) -> Pipeline:
    """Read and check a document.

    Args:
        file: The document.
        read: Reads the document and the files of SQL that it names.

    Raises:
        DocumentError: Something is wrong with it; the error has all that is.
        OSError: The document cannot be read.
    """
    file = file.resolve()
    try:
        text = read(file)
    except UnicodeDecodeError as error:
        raise DocumentError(file.name, [Fault("", None, None, f"The document is no UTF-8: {error}")]) from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line, said = line_of_error(error)
        raise DocumentError(file.name, [Fault("", None, line, f"The document is no TOML: {said}.")]) from None
    return _Reader(file, values, Faults(TomlLines(text)), read).pipeline()


def state_of(file: Path) -> Path:
    """The folder of the state that a document names, even if the rest of the document is wrong.

    Args:
        file: The document, or the folder of the state itself.

    Raises:
        DocumentError: The document is no TOML.
        OSError: The document cannot be read.
    """
    if file.is_dir():
        return file
    try:
        values = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DocumentError(file.name, [Fault("", None, None, f"The document is no TOML: {error}.")]) from None
    named = values.get("state")
    return file.resolve().parent / (named if isinstance(named, str) and named else f"{file.stem}.state")


def _flat(conf: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Settings of Spark by name; TOML makes tables of a name with dots that stands without quotes."""
    found: dict[str, str] = {}
    for key, value in conf.items():
        found |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": text_of(value)}
    return found


class _Reader:
    def __init__(self, file: Path, values: Mapping[str, Any], faults: Faults, read: Callable[[Path], str]) -> None:
        self._file = file
        self._folder = file.parent
        self._faults = faults
        self._read = read
        self._top = Section("", values, faults)
        self._connections: dict[str, dict[str, str]] = {}
        self._conf: dict[str, str] = {}

    def pipeline(self) -> Pipeline:
        top = self._top
        top.known(_TOP)
        if self._faults.found:
            # All that a table of a misspelt name declares would be missing in what follows.
            raise DocumentError(self._file.name, self._faults.found)
        name = top.text("name") or self._file.stem
        spark = Section("spark", top.table("spark"), self._faults)
        spark.known(("master", "conf", "parallel", "attempts"))
        self._conf = _flat(spark.table("conf"))
        self._connections = {name: self._connection(one) for name, one in self._named("connections").items()}
        sources = {name: self._source(name, one) for name, one in self._named("sources", is_sql=True).items()}
        tables = {name: self._table(name, one) for name, one in self._named("tables", is_sql=True).items()}
        sinks = {name: self._sink(name, one) for name, one in self._named("sinks").items()}
        sections = self._named("views", is_sql=True)
        self._demand_distinct(sources, tables, sections)
        views = {name: self._view(name, one, {*sources, *tables, *sections}) for name, one in sections.items()}
        found = Pipeline(
            name=name,
            file=self._file,
            state=self._folder / (top.text("state") or f"{self._file.stem}.state"),
            master=spark.text("master"),
            parallel=spark.number("parallel", 2, 1, _PARALLEL_MAX),
            attempts=spark.number("attempts", 1, 1, _ATTEMPTS_MAX),
            conf=self._conf,
            sources=sources,
            tables=tables,
            views=views,
            sinks=sinks,
        )
        sections = self._named("stages")
        if not sections and not self._faults.found:
            top.fault(None, "The document has no stage. A stage says what goes where: [stages.NAME].")
        stages = StageReader(found, self._faults, self._folder).stages(sections)
        if self._faults.found:
            raise DocumentError(self._file.name, self._faults.found)
        return stages

    def _named(self, key: str, *, is_sql: bool = False) -> dict[str, Section]:
        return self._top.sections(key, is_sql=is_sql)

    def _demand_distinct(self, *groups: Mapping[str, Any]) -> None:
        """Sources, tables and views share the names that SQL knows, in which case does not count."""
        seen: dict[str, str] = {}
        for group, place in zip(groups, ("sources", "tables", "views"), strict=True):
            for name in group:
                other = seen.setdefault(name.lower(), f"{place}.{name}")
                if other != f"{place}.{name}":
                    self._faults.add(f"{place}.{name}", None, f"The name {name!r} is that of {other}, too.")

    # -- connections, sources, tables, sinks ------------------------------------------------------------------------

    def _connection(self, section: Section) -> dict[str, str]:
        options = self._options(section, section.values, CONNECTION_OPTIONS)
        try:
            place_of(parse(options, CONNECTION_OPTIONS))
        except OptionError as error:
            if not self._has_fault(section.place):
                section.fault(None, str(error))
        return options

    def _has_fault(self, place: str) -> bool:
        return any(fault.place == place for fault in self._faults.found)

    def _connected(self, section: Section) -> dict[str, str]:
        """The options of the connection that a source or sink names; the only one of the document need not be named."""
        name = section.text("connection")
        if name is None:
            if len(self._connections) == 1:
                return next(iter(self._connections.values()))
            told = "the document has none: [connections.NAME]" if not self._connections else "there are several"
            section.fault("connection", f"'connection' is needed here, since {told}.")
            return {}
        if name not in self._connections:
            section.fault("connection", f"There is no connection {name!r}.{near(name, self._connections)}")
        return self._connections.get(name, {})

    def _options(
        self, section: Section, values: Mapping[str, Any], known: tuple[Option, ...], also: tuple[str, ...] = ()
    ) -> dict[str, str]:
        """Options by their names in Spark, each checked by itself, so that each fault is at its line."""
        found: dict[str, str] = {}
        for key, value in values.items():
            if key.lower() in _OWN:
                section.fault(key, _OWN[key.lower()])
                continue
            if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict) for one in value)):
                section.fault(key, f"{key!r} has to be a value, not a table.")
                continue
            option = next((one for one in known if key in (one.name, *one.aliases)), None)
            if option is None:
                hint = near(key, (*also, *(one.name for one in known)))
                try:
                    parse({key: "x"}, known)
                except OptionError as error:
                    # A name of another connector has a sentence of its own.
                    text = str(error)
                    hint = f" {text}" if not hint and "There is no option" not in text else hint
                section.fault(key, f"There is no key {key!r} here.{hint}")
                continue
            text = text_of(value)
            try:
                option.parse(text)
            except OptionError as error:
                section.fault(key, masked(str(error)))
                continue
            found[option.name] = str(self._folder / text) if option.name in FILE_OPTIONS else text
        return found

    def _source(self, name: str, section: Section) -> Source:
        connection = self._connected(section)
        given = {key: value for key, value in section.values.items() if key != "connection"}
        options = self._options(section, given, SOURCE_OPTIONS, ("connection",))
        entities: tuple[str, ...] = ()
        mode = options.get("readMode", "claim")
        try:
            parsed = parse(options, SOURCE_OPTIONS)
            entities = entities_of(parsed) or (parsed["queuesPattern"] or parsed["subscriptionsPattern"],)
            demand_mode(parsed, SOURCE_OPTIONS, mode)
        except OptionError as error:
            if not self._has_fault(section.place):
                section.fault(None, str(error))
        for one in ("endingOffsets", "endingTimestamp"):
            if one in options:
                section.fault(one, f"The option {one!r} is of batch reads, and the sources of a pipeline are streams.")
        return Source(name, connection | options | {"readMode": mode}, entities, mode)

    def _table(self, name: str, section: Section) -> Table:
        section.known(("path", "format", "columns", "partitionBy", "compression", *_OF_ICEBERG))
        given = section.text("format") or _FORMATS[0]
        form = Form(given) if given in _FORMATS else Form.PARQUET
        if given not in _FORMATS:
            wanted = f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}"
            section.fault("format", f"'format' is {given!r}; it has to be {wanted}.{near(given, _FORMATS)}")
        compression = section.text("compression") or _COMPRESSIONS[0]
        if compression not in _COMPRESSIONS:
            section.fault(
                "compression", f"'compression' is {compression!r}; it has to be one of {', '.join(_COMPRESSIONS)}."
            )
        path, catalog = self._place_of_table(name, section, form)
        if not self._has_fault(section.place) and (told := lacks(form, self._conf, catalog)) is not None:
            section.fault("format", told)
        columns, folders = section.text("columns"), section.names("partitionBy")
        return Table(name, path, columns, folders, compression, form, catalog)

    def _place_of_table(self, name: str, section: Section, form: Form) -> tuple[str, Catalog | None]:
        """Where a table is: its folder, or its name in a catalog."""
        if form is not Form.ICEBERG:
            for key in _OF_ICEBERG:
                if section.has(key):
                    section.fault(key, f"{key!r} is of the format iceberg; 'path' says where this table is.")
            path = section.text("path")
            if path is None and not section.has("path"):
                section.fault(None, "'path' is needed here: the folder of the table.")
            return self._located(path or name), None
        if section.has("path"):
            section.fault("path", "'path' is of the formats parquet and delta; 'table' names a table of Iceberg.")
        table = section.text("table")
        if table is None and not section.has("table"):
            section.fault(None, "'table' is needed here: the name of the table of Iceberg, as 'lake.orders'.")
        elif table is not None and not all(table.rpartition(".")[::2]):
            section.fault("table", f"'table' is {table!r}; it has to be a namespace and a name, as 'lake.orders'.")
        uri, warehouse = section.text("catalogUri"), section.text("warehouse")
        if uri is not None and uri.startswith(_SQLITE):
            uri = f"{_SQLITE}{self._folder / uri.removeprefix(_SQLITE)}"
        if warehouse is not None and "://" not in warehouse and not warehouse.startswith("file:"):
            warehouse = (self._folder / warehouse).as_uri()
        return table or name, Catalog(table or name, section.text("catalog") or "default", uri, warehouse)

    def _located(self, path: str) -> str:
        """A folder: of another file system as it is, of this one from the folder of the document."""
        return path if "://" in path or path.startswith("file:") else str(self._folder / path)

    def _sink(self, name: str, section: Section) -> Sink:
        from duobus.spark.sink.writer import SINK_OPTIONS

        if section.has("function"):
            section.known(("function",), hint=" A function takes no options.")
            function = section.text("function") or ""
            self._demand_function(section, function)
            return Sink(name, {}, function, function)
        connection = self._connected(section)
        given = {key: value for key, value in section.values.items() if key != "connection"}
        options = self._options(section, given, SINK_OPTIONS, ("connection", "function"))
        if ("queue" in options) == ("topic" in options) and not self._has_fault(section.place):
            section.fault(None, "One of the keys 'queue', 'topic' and 'function' says where rows go.")
        if (options.get("onOversize", "fail") == "fail") != ("oversizePath" not in options):
            section.fault("oversizePath", "The key 'oversizePath' goes together with onOversize divert or claimCheck.")
        return Sink(name, connection | options, None, options.get("queue") or options.get("topic") or name)

    # -- views ------------------------------------------------------------------------------------------------------

    def _view(self, name: str, section: Section, known: set[str]) -> View:
        section.known(("sql", "sqlFile", "python", "from"))
        made_by = [key for key in ("sql", "sqlFile", "python") if section.has(key)]
        if len(made_by) != 1:
            told = " and ".join(f"'{key}'" for key in made_by) or "none of them"
            section.fault(None, f"One of the keys 'sql', 'sqlFile' and 'python' makes a view; {told} was given.")
            return View(name, "", None, None, ())
        if made_by[0] == "python":
            return self._python_view(name, section, known)
        if section.has("from"):
            section.fault("from", "'from' goes with 'python'; a statement of SQL names what it reads itself.")
        sql, file = section.text("sql"), section.text("sqlFile")
        if file is not None:
            try:
                sql = self._read(self._folder / file)
            except (OSError, UnicodeDecodeError) as error:
                section.fault("sqlFile", f"The file {file!r} cannot be read: {getattr(error, 'strerror', error)}.")
        inputs = []
        spelt = {one.lower(): one for one in known}
        for table in tables_of(sql or ""):
            found = spelt.get(table.name.lower())
            if found is None:
                where = f"Line {table.line} of {file!r} reads" if file else "The statement reads"
                section.fault(
                    made_by[0], f"{where} {table.name!r}, which is no source, table or view.{near(table.name, known)}"
                )
            else:
                inputs.append(found)
        return View(name, (sql or "").strip().rstrip(";"), file, None, tuple(inputs))

    def _python_view(self, name: str, section: Section, known: set[str]) -> View:
        function, inputs = section.text("python") or "", section.names("from")
        self._demand_function(section, function, "python")
        if not section.has("from"):
            section.fault(None, "'from' is needed with 'python': the source, table or view that the function gets.")
        for one in inputs:
            if one not in known:
                section.fault("from", f"There is no source, table or view {one!r}.{near(one, known)}")
        return View(name, None, None, function, tuple(one for one in inputs if one in known))

    def _demand_function(self, section: Section, function: str, key: str = "function") -> None:
        if function and (fault := fault_of_function(function, self._folder)) is not None:
            section.fault(key, fault)
