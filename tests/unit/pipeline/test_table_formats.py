"""Tables of Delta and Iceberg in a document: where they are, what they need, and which stages may have them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kit_document import SHOP, faults, parsed

from duobus.pipeline.document import table_libraries
from duobus.pipeline.document.model import Catalog, Form
from duobus.pipeline.execution.stage_runs import definition_of, identity_of
from duobus.pipeline.execution.tables import condition_of
from duobus.pipeline.state_folder import StateFolder
from duobus.pipeline.table_versions import version_of

DELTA = ('path = "lake/orders"', 'path = "lake/orders"\nformat = "delta"')
ICEBERG = (
    'path = "lake/orders"',
    'format = "iceberg"\ntable = "shop.orders"\ncatalogUri = "sqlite:///lake/catalog.db"\nwarehouse = "lake"',
)
#: Of a session that has Delta's classes.
CONF = """
[spark.conf]
spark.sql.extensions = "io.delta.sql.DeltaSparkSessionExtension"
"spark.jars" = "{jar}"
"""


def test_a_catalog_in_a_file_and_its_warehouse_count_from_the_folder_of_the_document(tmp_path: Path) -> None:
    table = parsed(tmp_path, SHOP.replace(*ICEBERG)).tables["orders"]
    assert (table.form, table.path) == (Form.ICEBERG, "shop.orders")
    assert table.catalog == Catalog(
        "shop.orders", "default", f"sqlite:///{tmp_path}/lake/catalog.db", (tmp_path / "lake").as_uri()
    )
    elsewhere = (
        SHOP.replace(*ICEBERG)
        .replace("sqlite:///lake/catalog.db", "http://catalog/")
        .replace('warehouse = "lake"', 'warehouse = "s3://lake"')
    )
    assert parsed(tmp_path, elsewhere).tables["orders"].catalog == Catalog(
        "shop.orders", "default", "http://catalog/", "s3://lake"
    )


def test_a_stage_whose_table_has_another_format_now_does_not_go_on_with_its_checkpoint(tmp_path: Path) -> None:
    found = []
    for text in (SHOP, SHOP.replace(*DELTA), SHOP.replace(*ICEBERG)):
        pipeline = parsed(tmp_path, text)
        found.append(identity_of(pipeline, pipeline.stages["capture"])["target"])
    assert found == ["lake/orders", "delta: lake/orders", "iceberg: shop.orders"]
    totals = ('path = "lake/totals"', 'path = "lake/totals"\nformat = "delta"')
    said = {
        definition_of(one, one.stages["totals"]) for one in (parsed(tmp_path), parsed(tmp_path, SHOP.replace(*totals)))
    }
    assert len(said) == 2


def test_a_missing_library_is_told_at_the_format_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*names: str) -> None:
        monkeypatch.setattr(table_libraries, "find_spec", lambda name: None if name in names else find_spec(name))

    without("deltalake", "pyiceberg")
    delta = (
        "shop.toml:13: tables.orders.format: A table of Delta needs the library deltalake: pip install "
        "'duobus[delta]'. Or give the session Delta's JARs by [spark.conf]: spark.jars and spark.sql.extensions."
    )
    assert faults(tmp_path, DELTA) == [delta]
    (told,) = faults(tmp_path, ICEBERG)
    assert told.endswith("A table of Iceberg needs the library pyiceberg: pip install 'duobus[iceberg]'.")
    without("sqlalchemy")
    (told,) = faults(tmp_path, ICEBERG)
    assert told.endswith("A catalog in a database needs the library sqlalchemy: pip install 'duobus[iceberg]'.")


def test_a_catalog_that_nothing_says_the_place_of_is_told_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyiceberg")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    bare = ('path = "lake/orders"', 'format = "iceberg"\ntable = "shop.orders"\ncatalog = "lake"')
    assert faults(tmp_path, bare) == [
        "shop.toml:12: tables.orders.format: Nothing says where the catalog 'lake' of Iceberg is: give 'catalogUri', "
        "or configure pyiceberg by ~/.pyiceberg.yaml or by PYICEBERG_CATALOG__LAKE__URI."
    ]
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "http://catalog/")
    assert parsed(tmp_path, SHOP.replace(*bare)).tables["orders"].path == "shop.orders"


def test_a_session_with_deltas_classes_needs_a_pyspark_and_a_jar_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SHOP.replace(*DELTA).replace("\n[connections", CONF.format(jar=tmp_path / "delta.jar") + "\n[connections", 1)
    session = (SHOP, text)
    monkeypatch.setattr(table_libraries, "find_spec", lambda _: None)
    monkeypatch.setattr(table_libraries, "version", lambda _: "4.3.0")
    (told,) = faults(tmp_path, session)
    assert told == (
        "shop.toml:17: tables.orders.format: No JAR of Delta runs with PySpark 4.3.0: pip install 'pyspark==4.2.*' and "
        "take delta-spark_2.13 4.3.1, or leave spark.sql.extensions out of [spark.conf] and pip install "
        "'duobus[delta]'."
    )
    monkeypatch.setattr(table_libraries, "version", lambda _: "4.2.0")
    (told,) = faults(tmp_path, session)
    assert f"The JAR {tmp_path}/delta.jar of spark.jars is not there" in told
    (tmp_path / "delta.jar").touch()
    # Without quotes TOML makes tables of a name with dots; both are the one setting.
    assert parsed(tmp_path, text).conf == {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.jars": str(tmp_path / "delta.jar"),
    }


def test_a_replay_takes_a_table_of_any_format_and_a_job_over_folders_says_that_it_does_not(tmp_path: Path) -> None:
    replay = SHOP + '\n[stages.replay]\njob = "replay"\nfrom = "orders"\nto = "alerts"\ndedupe = "original"\n'
    settings = parsed(tmp_path, replay.replace(*ICEBERG)).stages["replay"].settings
    assert (settings["format"], settings["table"]) == ("iceberg", "shop.orders")
    assert settings["reportPath"] == str(tmp_path / "state" / "replays")
    settings = parsed(tmp_path, replay.replace(*DELTA)).stages["replay"].settings
    assert (settings["format"], settings["path"]) == ("delta", str(tmp_path / "lake" / "orders"))
    compare = SHOP + '\n[stages.compare]\njob = "reconcile"\na = "orders"\nb = "elsewhere"\nout = "both"\n'
    assert faults(tmp_path, (SHOP, compare.replace(*DELTA))) == [
        "shop.toml:46: stages.compare.a: The job takes files of Parquet, and 'orders' is a table of delta: let a stage "
        "write what it has of them to a table of Parquet."
    ]


@pytest.mark.parametrize("change", [DELTA, ICEBERG])
def test_a_table_that_no_stage_writes_is_new_behind_each_commit_of_somebody(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    deltalake, catalogs = pytest.importorskip("deltalake"), pytest.importorskip("pyiceberg.catalog")
    (tmp_path / "lake" / "orders").mkdir(parents=True)
    text = SHOP.replace(*change)
    pipeline = parsed(
        tmp_path,
        text[: text.index("[stages.capture]")]
        + text[text.index("[stages.totals]") :].replace('after = "capture"\n', ""),
    )
    rows = pa.table({"subject": ["ann"]})

    def commit() -> None:
        if change is DELTA:
            deltalake.write_deltalake(str(tmp_path / "lake" / "orders"), rows, mode="append")
            return
        place: Any = pipeline.tables["orders"].catalog
        catalog = catalogs.load_catalog(place.name, uri=place.uri, warehouse=place.warehouse)
        catalog.create_namespace_if_not_exists("shop")
        catalog.create_table_if_not_exists("shop.orders", rows.schema).append(rows)

    versions = []
    for _ in range(2):
        versions += [version_of(pipeline, StateFolder(pipeline.state), "orders")["files"]] * 2
        commit()
    versions.append(version_of(pipeline, StateFolder(pipeline.state), "orders")["files"])
    assert len(set(versions)) == 3


def test_batches_are_known_by_their_numbers_whether_or_not_the_id_of_the_query_stands_whole() -> None:
    duckdb = pytest.importorskip("duckdb")
    query = "ffffffff-ffff-4fff-8fff-ffffffffffff"
    ids = [f"{head}-{number:08d}" for head in (query, query[:8]) for number in range(4)]
    rows = pa.table({"batch_id": [*ids, "0b5ea29b-00000009"]})
    assert rows.num_rows == 9
    condition = condition_of({"ffffffff": 2}, {"ffffffff": 0}).replace("startswith", "starts_with")
    found = duckdb.sql(f"select batch_id from rows where {condition}").fetchall()
    assert sorted(one for (one,) in found) == sorted(one for one in ids if one[-1] in "12")
