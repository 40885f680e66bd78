"""Captures a queue to a table of Delta and to one of Iceberg while the driver is killed behind each commit.

    python tools/lake.py [--kills 3] [--format delta] [--part pipeline] [--folder .build/lake]

Then a pipeline whose tables are all of that format is killed, too (``tools/lake_pipeline.py``).

Delta has no JAR for the Spark that this project is built with, so all runs in an environment of its own with the Spark
that Delta's JARs run on: they come by Maven's client, as ``tools/lake_pom.xml`` says. After each kill the same command
goes on. In the end libraries that know nothing of Spark count the tables: each message has to be there once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import click

from duobus.testing.server import ServerProcess, queues_config

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.lake_pipeline import SHORT_LIVED, piped

ROOT: Final = Path(__file__).resolve().parents[1]
PYSPARK: Final = "4.2.0"
EXTRAS: Final = ".[spark,delta,iceberg]"
BATCH: Final = 50
PARTS: Final = ("capture", "pipeline")
LIMIT_S: Final = 600.0

CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.snapshotPartitions": "1",
}
DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

#: Counts a table: a program for the environment of its own, which prints the bodies as JSON.
COUNT: Final = """
import json, sys
about = json.loads(sys.argv[1])
if about["format"] == "iceberg":
    from pyiceberg.catalog import load_catalog
    catalog = load_catalog("default", uri=about["catalogUri"], warehouse=about["warehouse"])
    rows = catalog.load_table(about["table"]).scan().to_arrow()
else:
    from deltalake import DeltaTable
    rows = DeltaTable(about["path"]).to_pyarrow_table()
print(json.dumps([body.decode() for body in rows["body"].to_pylist()]))
"""


def environment(folder: Path) -> Path:
    """The interpreter of an environment with everything; made once for each list of versions."""
    versions = re.sub(r"(?m)^pyspark==.*$", f"pyspark=={PYSPARK}", (ROOT / "constraints.txt").read_text())
    constraints, python = folder / "constraints.txt", folder / "venv" / "bin" / "python"
    if not python.exists() or not constraints.exists() or constraints.read_text() != versions:
        click.echo(f"Making an environment with pyspark {PYSPARK} ...", err=True)
        folder.mkdir(parents=True, exist_ok=True)
        constraints.unlink(missing_ok=True)
        draft = folder / "constraints.new"
        draft.write_text(versions)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        subprocess.run([*pip, "-c", str(draft), "-e", EXTRAS], cwd=ROOT, check=True)
        draft.replace(constraints)
    return python


def jars(folder: Path) -> list[Path]:
    """The JARs of Delta, by Maven's client."""
    place = folder / "jars"
    if not list(place.glob("delta-spark*.jar")):
        click.echo("Fetching Delta's JARs ...", err=True)
        command = ["mvn", "-q", "-B", "-f", str(ROOT / "tools" / "lake_pom.xml"), "dependency:copy-dependencies"]
        given = ["-DincludeGroupIds=io.delta,io.unitycatalog", f"-DoutputDirectory={place}"]
        subprocess.run([*command, *given], check=True)
    return sorted(place.glob("*.jar"))


def capture(python: Path, about: dict[str, Any], variables: dict[str, str]) -> dict[str, Any] | None:
    """Run a driver; its summary, or None for one that was killed as it was told."""
    command = [str(python), str(ROOT / "tools" / "lake_program.py"), json.dumps(about)]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=LIMIT_S, start_new_session=True, check=False
    )
    if about["dies"] is not None and done.returncode == -signal.SIGKILL:
        return None
    if done.returncode:
        lines = [line[:300] for line in done.stderr.splitlines() if not line.lstrip().startswith("at ")]
        raise SystemExit("The driver failed:\n" + "\n".join(lines[-30:]))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def tried(python: Path, place: dict[str, str], folder: Path, kills: int, conf: dict[str, str]) -> dict[str, Any]:
    """Fill a queue, capture it with a driver that is killed again and again, and count the table."""
    messages = BATCH * (kills + 2)
    with ServerProcess(folder / "server", config=queues_config({"orders": {}})) as server:
        _send(server, "orders", messages)
        settings = {
            "connectionStringEnv": "DUOBUS_LAKE",
            "queue": "orders",
            "checkpoint": str(folder / "checkpoint"),
            "maxMessagesPerTrigger": str(BATCH),
            **place,
        }
        variables = {**os.environ, **SHORT_LIVED, "DUOBUS_LAKE": server.connection_string}
        killed = 0
        for batch in range(kills):
            killed += capture(python, {"settings": settings, "conf": conf, "dies": batch}, variables) is None
        capture(python, {"settings": settings, "conf": conf, "dies": None}, variables)
    counted = subprocess.run(
        [str(python), "-c", COUNT, json.dumps(place)], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    found = Counter(json.loads(counted.stdout.splitlines()[-1]))
    return {
        "messages": messages,
        "kills": killed,
        "rows": found.total(),
        "lost": messages - len(found),
        "doubled": found.total() - len(found),
    }


def _send(server: ServerProcess, queue: str, messages: int) -> None:
    from azure.servicebus import ServiceBusClient, ServiceBusMessage

    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        for first in range(0, messages, BATCH):
            numbers = range(first, first + BATCH)
            sender.send_messages([ServiceBusMessage(f"{one}", subject=f"customer {one % 3}") for one in numbers])


@click.command(help=__doc__)
@click.option("--kills", default=3, help="Drivers that are killed for each table, each behind the commit of a batch.")
@click.option("--format", "formats", multiple=True, type=click.Choice(["delta", "iceberg"]), help="By default both.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="By default both.")
@click.option("--seed", default=1, help="Of the moments at which a pipeline is killed between its commits.")
@click.option("--folder", default=ROOT / ".build" / "lake", type=click.Path(path_type=Path), help="Environment, JARs.")
def main(kills: int, formats: tuple[str, ...], parts: tuple[str, ...], seed: int, folder: Path) -> None:
    """Try the tables."""
    # A tool that is told to end takes what it started with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    python = environment(folder)
    told: dict[str, dict[str, Any]] = {}
    for part in parts or PARTS:
        for name in formats or ("delta", "iceberg"):
            with tempfile.TemporaryDirectory(prefix="duobus-lake-") as temporary:
                work = Path(temporary)
                conf = CONF | ({**DELTA, "spark.jars": ",".join(map(str, jars(folder)))} if name == "delta" else {})
                if part == "capture":
                    found = tried(python, place_of(name, work), work, kills, conf)
                    found["is_good"] = not found["lost"] and not found["doubled"] and found["kills"] == kills
                else:
                    found = piped(python, name, work, conf, kills, _send, seed)
                told[f"{part} {name}"] = found
                click.echo(f"{part} {name}: {found}", err=True)
    click.echo(json.dumps(told, indent=2))
    if not all(found["is_good"] for found in told.values()):
        sys.exit(1)


def place_of(name: str, work: Path) -> dict[str, str]:
    """Settings of a capture that say where its table is."""
    if name == "delta":
        return {"format": name, "path": str(work / "orders")}
    (work / "warehouse").mkdir()
    place = {"format": name, "table": "lake.orders", "catalogUri": f"sqlite:///{work}/catalog.db"}
    return place | {"warehouse": f"file://{work}/warehouse"}


if __name__ == "__main__":
    main()
