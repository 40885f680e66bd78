"""The options by which a job names a table of captured messages: Parquet, Delta or Iceberg."""

from __future__ import annotations

from typing import Any, Final

from duobus.spark.errors import OptionError
from duobus.spark.jobs.job import Settings, needed
from duobus.spark.jobs.lake.delta_table import DeltaTable
from duobus.spark.jobs.lake.iceberg_table import IcebergTable
from duobus.spark.options import CHOICE, TEXT, Option

PARQUET: Final = "parquet"
FORMATS: Final = (PARQUET, "delta", "iceberg")
#: Those of a table of Iceberg.
OF_ICEBERG: Final = (
    Option("table", TEXT, None, "table of Iceberg, with its namespace: lake.orders"),
    Option("catalog", TEXT, "default", "catalog of Iceberg, as the configuration of pyiceberg names it"),
    Option("catalogUri", TEXT, None, "address of the catalog of Iceberg; by default as pyiceberg is configured"),
    Option("warehouse", TEXT, None, "place of the tables of Iceberg; by default as pyiceberg is configured"),
)


def format_option(text: str) -> Option:
    """The option ``format``, with a text of the job's own."""
    return Option("format", CHOICE, PARQUET, text, choices=FORMATS)


def table_of(settings: Settings, compression: str = "zstd") -> DeltaTable | IcebergTable | None:
    """The table that the settings name; None for a folder of Parquet files, which is ``path``.

    Args:
        settings: Of a job with these options and ``path``.
        compression: Of the files that are written.

    Raises:
        OptionError: An option is missing, or belongs to another format.
    """
    if settings["format"] == "iceberg":
        if "path" in settings.given:
            raise OptionError(
                "The option 'path' is of the formats parquet and delta; 'table' names a table of Iceberg."
            )
        table = needed(settings, "table")
        if not all(table.rpartition(".")[::2]):
            raise OptionError(f"The option 'table' is {table!r}; it has to be a namespace and a name, as lake.orders.")
        return IcebergTable(table, settings["catalog"], settings["catalogUri"], settings["warehouse"], compression)
    for option in OF_ICEBERG:
        if option.name in settings.given:
            raise OptionError(f"The option '{option.name}' is of the format iceberg; 'path' says where the table is.")
    path = needed(settings, "path")
    return DeltaTable(path, compression) if settings["format"] == "delta" else None


def place_in(settings: Settings) -> dict[str, Any]:
    """Where the table is, as a summary tells it."""
    return {"table": settings["table"]} if settings["format"] == "iceberg" else {"path": settings["path"]}
