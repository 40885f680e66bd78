"""Broken documents of pipelines: one sentence for each fault, at its line, with the name that was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit_document import SHOP, faults

BROKEN = {
    "a text without its end": (
        ('name = "shop"', 'name = "shop'),
        "shop.toml:1: The document is no TOML: Illegal character '\\n'.",
    ),
    "a table of another name": (
        ("[sources.incoming]", "[source.incoming]"),
        "shop.toml:7: source: There is no key 'source' here. Did you mean 'sources'?",
    ),
    "a misspelt option of a source": (
        ("maxMessagesPerTrigger", "maxMessagePerTrigger"),
        "shop.toml:9: sources.incoming.maxMessagePerTrigger: There is no key 'maxMessagePerTrigger' here. "
        "Did you mean 'maxMessagesPerTrigger'?",
    ),
    "an option of another connector": (
        ("maxMessagesPerTrigger = 500", '"kafka.bootstrap.servers" = "b:9092"'),
        "shop.toml:9: sources.incoming.kafka.bootstrap.servers: There is no key 'kafka.bootstrap.servers' here. "
        "The option 'kafka.bootstrap.servers' is Kafka's; here none does this. The options are in the reference: "
        "docs/reference/spark.md.",
    ),
    "a value out of bounds": (
        ("maxMessagesPerTrigger = 500", "maxMessagesPerTrigger = 0"),
        "shop.toml:9: sources.incoming.maxMessagesPerTrigger: The option 'maxMessagesPerTrigger' is '0'; it has to be "
        "1 to 1000000.",
    ),
    "a table that nobody knows, in SQL": (
        ("from orders group", "from ordres group"),
        "shop.toml:19: views.customer_totals.sql: The statement reads 'ordres', which is no source, table or view. "
        "Did you mean 'orders'?",
    ),
    "a function that is not in its module": (
        ("rules:large", "rules:larger"),
        "shop.toml:22: views.large.python: The module 'rules' has no function 'larger'. Did you mean 'large'?",
    ),
    "a module that is not there": (
        ("rules:large", "rule:large"),
        "shop.toml:22: views.large.python: There is no module 'rule' in the folder of the document, nor in this "
        "Python. Did you mean 'rules'?",
    ),
    "a stage that reads what is not there": (
        ('from = "incoming"', 'from = "incomming"'),
        "shop.toml:29: stages.capture.from: There is no source, table or view 'incomming'. Did you mean 'incoming'?",
    ),
    "a stage without an end": (
        ('to = "totals"\n', ""),
        "shop.toml:33: stages.totals: 'to' is needed here: the name of a table or sink.",
    ),
    "a trigger that is none": (
        ('trigger = "10s"', 'trigger = "availabelNow"'),
        "shop.toml:31: stages.capture.trigger: 'trigger' is 'availabelNow'; it has to be 'availableNow', or a time "
        "from '100ms' to '1d', as '10s'. Did you mean 'availableNow'?",
    ),
    "a stage after one that is not there": (
        ('after = "capture"', 'after = "captures"'),
        "shop.toml:36: stages.totals.after: There is no stage 'captures'. Did you mean 'capture'?",
    ),
    "stages in a circle": (
        ('trigger = "10s"', 'after = "alert"'),
        "shop.toml:31: stages.capture.after: The stages wait for each other in a circle: "
        "capture -> alert -> totals -> capture.",
    ),
    "a format that is none": (
        ('path = "lake/orders"', 'path = "lake/orders"\nformat = "detla"'),
        "shop.toml:13: tables.orders.format: 'format' is 'detla'; it has to be parquet, delta or iceberg. "
        "Did you mean 'delta'?",
    ),
    "a folder for a table of Iceberg": (
        ('path = "lake/orders"', 'path = "lake/orders"\nformat = "iceberg"\ntable = "lake.orders"'),
        "shop.toml:12: tables.orders.path: 'path' is of the formats parquet and delta; 'table' names a table of "
        "Iceberg.",
    ),
    "a table of Iceberg without a namespace": (
        ('path = "lake/orders"', 'format = "iceberg"\ntable = "orders"'),
        "shop.toml:13: tables.orders.table: 'table' is 'orders'; it has to be a namespace and a name, as "
        "'lake.orders'.",
    ),
    "a table of Iceberg without a name": (
        ('path = "lake/orders"', 'format = "iceberg"'),
        "shop.toml:11: tables.orders: 'table' is needed here: the name of the table of Iceberg, as 'lake.orders'.",
    ),
    "a catalog for a table of Delta": (
        ('path = "lake/orders"', 'path = "lake/orders"\nformat = "delta"\ncatalog = "lake"'),
        "shop.toml:14: tables.orders.catalog: 'catalog' is of the format iceberg; 'path' says where this table is.",
    ),
    "a connection that is not there": (
        ('queue = "orders"', 'queue = "orders"\nconnection = "shops"'),
        "shop.toml:9: sources.incoming.connection: There is no connection 'shops'. Did you mean 'shop'?",
    ),
    "a job that is none": (
        ('trigger = "10s"', 'job = "captur"'),
        "shop.toml:31: stages.capture.job: There is no job 'captur'. Did you mean 'capture'?",
    ),
    "a report of a stream": (
        ('trigger = "10s"', 'job = "report"'),
        "shop.toml:31: stages.capture.job: The job is 'report', but 'incoming' leads to the source 'incoming'.",
    ),
    "a table that is declared and written by nobody": (
        ('to = "orders"', 'to = "alerts"'),
        "shop.toml:12: tables.orders.path: The table is read by the stage 'totals' and written by none, and "
        "FOLDER/lake/orders is not there.",
    ),
    "the pipeline's own option": (
        ("maxMessagesPerTrigger = 500", 'checkpointLocation = "here"'),
        "shop.toml:9: sources.incoming.checkpointLocation: The pipeline keeps the checkpoints itself, below the folder "
        "of its state.",
    ),
    "an option that a capture does not take": (
        ("maxMessagesPerTrigger = 500", "includeBody = false"),
        "shop.toml:9: sources.incoming.includeBody: A capture does not take this option: leave it out, or put a view "
        "between source and table.",
    ),
    "a sink without a place": (
        ('topic = "alerts"', 'messageIdMode = "column"'),
        "shop.toml:25: sinks.alerts: One of the keys 'queue', 'topic' and 'function' says where rows go.",
    ),
    "a name that is used twice": (
        ("[views.large]", "[views.Totals]\nsql = 'select 1'\n\n[views.large]"),
        "shop.toml:21: views.Totals: The name 'Totals' is that of tables.totals, too.",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_one_sentence_tells_the_place_and_the_name_that_was_meant(tmp_path: Path, broken: str) -> None:
    change, wanted = BROKEN[broken]
    assert faults(tmp_path, change) == [wanted.replace("FOLDER", str(tmp_path))]


def test_all_faults_are_told_at_once_in_the_order_of_the_lines(tmp_path: Path) -> None:
    told = faults(
        tmp_path, ("queue =", "queu ="), ("rules:large", "rules:larger"), ('trigger = "10s"', 'trigger = "x"')
    )
    assert [line.split(": ")[1] for line in told] == [
        "sources.incoming.queu",
        "views.large.python",
        "stages.capture.trigger",
    ]


def test_two_stages_that_claim_one_queue_are_refused(tmp_path: Path) -> None:
    second = '\n[sources.again]\nqueue = "Orders"\n\n[stages.second]\nfrom = "again"\nto = "alerts"\n'
    (told,) = faults(tmp_path, (SHOP, SHOP + second))
    assert told.startswith("shop.toml:47: stages.second.from: The stage 'capture' claims 'Orders', too")


def test_a_file_of_sql_is_named_with_the_line_of_the_fault(tmp_path: Path) -> None:
    (tmp_path / "totals.sql").write_text("select subject as customer, 1 as total\nfrom odrers\n")
    statement = SHOP.splitlines()[18]
    (told,) = faults(tmp_path, (statement, 'sqlFile = "totals.sql"'))
    assert "Line 2 of 'totals.sql' reads 'odrers'" in told
    (missing,) = faults(tmp_path, (statement, 'sqlFile = "total.sql"'))
    assert missing.endswith("The file 'total.sql' cannot be read: No such file or directory.")


def test_secrets_are_in_no_fault(tmp_path: Path) -> None:
    told = faults(
        tmp_path, ('connectionStringEnv = "SHOP_BUS"', 'connectionString = "SharedAccessKey=geheim"\nqueue = 1')
    )
    assert "geheim" not in "\n".join(told)
