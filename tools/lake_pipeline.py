"""A pipeline whose tables are all of Delta or all of Iceberg, killed behind each commit and at moments between.

``tools/lake.py`` calls this with an environment of its own. One queue is captured, another one is written through a
view, and a report is made of both. After each kill the same command goes on.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from duobus.testing.server import ServerProcess, queues_config

ROOT: Final = Path(__file__).resolve().parents[1]
BATCH: Final = 50
LIMIT_S: Final = 600.0
#: For a JVM that lives for a minute: compiling for a long run would be half of its work.
SHORT_LIVED: Final = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}
#: Seconds of a run until a kill that waits for nothing: while Spark starts, or while stages work.
EARLY_S: Final = (6.0, 22.0)

DOCUMENT: Final = """
name = "lake"

[spark]
master = "local[2]"

[spark.conf]
{conf}

[connections.shop]
connectionStringEnv = "DUOBUS_LAKE"

[sources.incoming]
queue = "orders"
maxMessagesPerTrigger = {batch}
maxWaitTime = "1s"

[sources.clicks]
queue = "clicks"
maxMessagesPerTrigger = {batch}
maxWaitTime = "1s"

[tables.orders]
{orders}

[tables.seen]
{seen}
partitionBy = "customer"

[tables.totals]
{totals}

[views.clicked]
sql = "select subject as customer, cast(body as string) as number from clicks"

[views.both]
sql = '''
select customer, count(*) as messages, count(distinct number) as numbers from (
  select subject as customer, cast(body as string) as number from orders
  union all select customer, number from seen)
group by customer'''

[stages.orders]
from = "incoming"
to = "orders"

[stages.seen]
from = "clicked"
to = "seen"

[stages.totals]
from = "both"
to = "totals"
"""

#: Reads the three tables: a program for the environment of its own, which prints their rows as JSON.
READ: Final = """
import json, sys
about, found = json.loads(sys.argv[1]), {}
for name in ("orders", "seen", "totals"):
    if about["form"] == "iceberg":
        from pyiceberg.catalog import load_catalog
        table = load_catalog("default", uri=f"sqlite:///{about['folder']}/catalog.db").load_table(f"lake.{name}")
        rows = table.scan().to_arrow()
        commits = len(table.snapshots())
    else:
        from deltalake import DeltaTable
        table = DeltaTable(f"{about['folder']}/{name}")
        rows = table.to_pyarrow_table()
        commits = table.version() + 1
    wanted = ("customer", "subject", "number", "body", "messages", "numbers")
    columns = [one for one in wanted if one in rows.column_names]
    found[name] = {"rows": rows.select(columns).to_pylist(), "commits": commits}
print(json.dumps(found, default=lambda value: value.decode()))
"""


def table_of(form: str, name: str) -> str:
    """The keys of a table in the document."""
    if form == "delta":
        return f'format = "delta"\npath = "tables/{name}"'
    place = 'catalogUri = "sqlite:///tables/catalog.db"\nwarehouse = "tables"'
    return f'format = "iceberg"\ntable = "lake.{name}"\n{place}'


def piped(
    python: Path,
    form: str,
    folder: Path,
    conf: Mapping[str, str],
    kills: int,
    send: Callable[[ServerProcess, str, int], None],
    seed: int,
) -> dict[str, Any]:
    """Fill two queues, run the pipeline with a driver that is killed again and again, and count its tables.

    Args:
        python: The interpreter of the environment.
        form: Of the tables.
        folder: For everything.
        conf: Settings of Spark.
        kills: Batches of each stream behind whose commit the driver dies.
        send: Puts so many messages into a queue.
        seed: Of the moments of the kills that wait for nothing.
    """
    messages, document = BATCH * (kills + 2), folder / "lake.toml"
    said = "\n".join(f'"{name}" = "{value}"' for name, value in conf.items())
    tables = {name: table_of(form, name) for name in ("orders", "seen", "totals")}
    document.write_text(DOCUMENT.format(conf=said, batch=BATCH, **tables))
    moments = random.Random(seed)
    with ServerProcess(folder / "server", config=queues_config({"orders": {}, "clicks": {}})) as server:
        for queue in ("orders", "clicks"):
            send(server, queue, messages)
        variables = {**os.environ, **SHORT_LIVED, "DUOBUS_LAKE": server.connection_string}
        checked = [str(python), "-m", "duobus", "pipeline", "validate", str(document)]
        subprocess.run(checked, env=variables, check=True, stdout=subprocess.DEVNULL)
        deaths = [f"{stage} {batch}" for batch in range(kills) for stage in ("orders", "seen")]
        deaths += [f"after {moments.uniform(*EARLY_S):.1f}" for _ in range(kills)]
        deaths += ["totals"]
        killed = {death: _run(python, document, death, variables) for death in deaths}
        _run(python, document, None, variables)
        # With nothing new, nothing is written.
        _run(python, document, None, variables)
    about = json.dumps({"form": form, "folder": str(folder / "tables")})
    read = subprocess.run([str(python), "-c", READ, about], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    found = json.loads(read.stdout.splitlines()[-1])
    told: dict[str, Any] = {"messages": 2 * messages, "kills": sum(killed.values()), "of": len(deaths)}
    for name, column in (("orders", "body"), ("seen", "number")):
        numbers = Counter(row[column] for row in found[name]["rows"])
        told[name] = {"rows": numbers.total(), "lost": messages - len(numbers), "commits": found[name]["commits"]}
        told[name]["doubled"] = numbers.total() - len(numbers)
    told["totals"] = sorted((row["customer"], row["messages"], row["numbers"]) for row in found["totals"]["rows"])
    told["is_good"] = (
        all(
            (told[name]["rows"], told[name]["lost"], told[name]["doubled"]) == (messages, 0, 0)
            for name in ("orders", "seen")
        )
        and sum(row[1] for row in told["totals"]) == 2 * messages
    )
    return told


def _run(python: Path, document: Path, death: str | None, variables: dict[str, str]) -> bool:
    """Run the pipeline once; whether it was killed, as it was told."""
    print(f"a run that dies: {death}" if death else "a run to its end", file=sys.stderr)
    about = json.dumps({"document": str(document), "dies": death})
    driver = subprocess.Popen(
        [str(python), str(ROOT / "tools" / "lake_program.py"), about],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    moment = death.removeprefix("after ") if death is not None and death.startswith("after ") else None
    said = ""
    try:
        _, said = driver.communicate(timeout=LIMIT_S if moment is None else float(moment))
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
        if moment is None:
            raise SystemExit(f"The pipeline has not ended within {LIMIT_S:.0f} s.") from None
    if driver.returncode == -signal.SIGKILL:
        return True
    if driver.returncode:
        lines = [line[:300] for line in said.splitlines() if not line.lstrip().startswith("at ")]
        raise SystemExit("The pipeline failed:\n" + "\n".join(lines[-30:]))
    if death is not None:
        print(f"The pipeline came to its end before it was killed ({death}).", file=sys.stderr)
    return False
