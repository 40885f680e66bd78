"""Whether this Python can write the tables of Delta and Iceberg that a document declares, told before a run begins."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from duobus.pipeline.document.model import Catalog, Form
from duobus.spark.jobs.lake.delta_table import EXTENSIONS, OF_DELTA
from duobus.spark.source.query_end import local_folder

#: Setting of Spark with the JARs of a session.
_JARS: Final = "spark.jars"
#: Line of PySpark to the JAR of Delta that was run with it; docs/how-to/spark-lake.md has the table.
DELTA_JARS: Final[Mapping[str, str]] = {"4.2": "delta-spark_2.13 4.3.1"}


def lacks(form: Form, conf: Mapping[str, str], catalog: Catalog | None = None) -> str | None:
    """What is missing for tables of a form, and how to get it, in a sentence; None where nothing is.

    Args:
        form: Of the table.
        conf: Settings of the session of Spark.
        catalog: Of a table of Iceberg.
    """
    if form is Form.DELTA:
        return _delta_lacks(conf)
    if form is Form.ICEBERG:
        return _iceberg_lacks(catalog)
    return None


def _delta_lacks(conf: Mapping[str, str]) -> str | None:
    if OF_DELTA not in conf.get(EXTENSIONS, ""):
        if find_spec("deltalake") is not None:
            return None
        return (
            "A table of Delta needs the library deltalake: pip install 'duobus[delta]'. Or give the session Delta's "
            f"JARs by [spark.conf]: {_JARS} and {EXTENSIONS}."
        )
    if _line_of_pyspark() not in DELTA_JARS:
        line, jar = max(DELTA_JARS.items())
        return (
            f"No JAR of Delta runs with PySpark {_version_of_pyspark()}: pip install 'pyspark=={line}.*' and take "
            f"{jar}, or leave {EXTENSIONS} out of [spark.conf] and pip install 'duobus[delta]'."
        )
    missing = [jar for jar in conf.get(_JARS, "").split(",") if jar and _is_missing(jar)]
    if missing:
        return f"The JAR {missing[0]} of {_JARS} is not there; docs/how-to/spark-lake.md says how to get Delta's."
    return None


def _is_missing(jar: str) -> bool:
    place = local_folder(jar)
    return place is not None and not Path(place).exists()


def _iceberg_lacks(catalog: Catalog | None) -> str | None:
    if find_spec("pyiceberg") is None:
        return "A table of Iceberg needs the library pyiceberg: pip install 'duobus[iceberg]'."
    if catalog is None:
        return None
    if catalog.uri is None and not _is_configured(catalog.name):
        return (
            f"Nothing says where the catalog {catalog.name!r} of Iceberg is: give 'catalogUri', or configure pyiceberg "
            f"by ~/.pyiceberg.yaml or by PYICEBERG_CATALOG__{catalog.name.upper()}__URI."
        )
    if (catalog.uri or "").startswith(("sqlite", "postgresql")) and find_spec("sqlalchemy") is None:
        return "A catalog in a database needs the library sqlalchemy: pip install 'duobus[iceberg]'."
    return None


def _is_configured(catalog: str) -> bool:
    from pyiceberg.utils.config import Config

    return bool(Config().get_catalog_config(catalog))


def _version_of_pyspark() -> str:
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return "of an unknown version"


def _line_of_pyspark() -> str:
    return ".".join(_version_of_pyspark().split(".")[:2])
