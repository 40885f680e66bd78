"""How long usage takes over a hundred million compacted metering records, in how much memory.

The records are generated: one server, 40 entities, four kinds, three keys, over as many days as there are records for.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.spark_session import cpu_s, memory_of, session
from duobus.spark.jobs.usage import UsageConfig, usage

#: Records of a day: 40 entities, 4 kinds and 3 keys, every minute.
A_DAY = 40 * 4 * 3 * 1440


def generate(spark: Any, out: str, records: int) -> None:
    """Write compacted records as the compaction lays them out."""
    found = spark.sql(f"""
        select 'run-1' server, id + 1 number,
            1795219200000 + (id div {A_DAY}) * 86400000 + ((id % {A_DAY}) div 480) * 60000 minute_ms,
            'contoso' namespace, concat('orders-', id % 40) entity,
            element_at(array('send', 'receive', 'empty-receive', 'settle'), int((id div 40) % 4) + 1) kind,
            1 + id % 97 messages, (1 + id % 97) * 1024 bytes, 1 + id % 97 operations,
            concat('key-', (id div 160) % 3) `key`
        from range(0, {records}, 1, {max(2, records // 2_500_000)})""")
    day = "string(date_add(date'1970-01-01', int(minute_ms div 86400000)))"
    found.selectExpr("*", f"{day} day").write.partitionBy("day").parquet(out)


def measure(records: int, memory: str, cores: int, folder: Path, *, generate_only: bool = False) -> dict[str, Any]:
    """Generate, then compute usage once; generation is not counted."""
    started = time.monotonic()
    spark = session(cores, memory)
    start_s = time.monotonic() - started
    try:
        started = time.monotonic()
        if not (folder / "compacted" / "_SUCCESS").exists():
            generate(spark, str(folder / "compacted"), records)
        generate_s = time.monotonic() - started
        if generate_only:
            return {"records": records, "generate_s": round(generate_s, 1)}
        shutil.rmtree(folder / "usage", ignore_errors=True)
        started = time.monotonic()
        began_cpu_s = cpu_s(spark)
        steps: list[tuple[str, float, float]] = []
        config = UsageConfig(str(folder / "compacted"), str(folder / "usage"))
        told = usage(spark, config, lambda step: steps.append((step, time.monotonic() - started, cpu_s(spark))))
        usage_s = time.monotonic() - started
        used_cpu_s = cpu_s(spark) - began_cpu_s
        print(f"usage took {usage_s:.1f} s, {used_cpu_s:.1f} s of processor time", file=sys.stderr, flush=True)
        started = time.monotonic()
        again = usage(spark, UsageConfig(str(folder / "compacted"), str(folder / "usage"), check=False))
        again_s = time.monotonic() - started
        assert sum(kind["messages"] for kind in told["by_kind"].values()) == _messages(records)
        assert again["days_computed"] == []
        used = memory_of(spark)
    finally:
        spark.stop()
    return {
        "records": records,
        "cores": cores,
        "heap": memory,
        "start_s": round(start_s, 1),
        "generate_s": round(generate_s, 1),
        "usage_s": round(usage_s, 1),
        "usage_cpu_s": round(used_cpu_s, 1),
        "steps": [(step, round(at, 1), round(at_cpu - began_cpu_s, 1)) for step, at, at_cpu in steps],
        "usage_again_s": round(again_s, 1),
        "records_per_s": round(records / usage_s),
        "days": len(told["days_computed"]),
        **used,
    }


def _messages(records: int) -> int:
    whole, rest = divmod(records, 97)
    return whole * 97 * 98 // 2 + rest * (rest + 1) // 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000_000)
    parser.add_argument("--memory", default="2g", help="heap of the JVM; the whole is to stay below 4 GiB")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the records are, or are to stay; by default a temporary one")
    parser.add_argument("--generate-only", action="store_true", help="for a measurement later in the same --folder")
    options = parser.parse_args()
    if options.folder is not None:
        told = measure(
            options.records, options.memory, options.cores, options.folder, generate_only=options.generate_only
        )
        print(json.dumps(told, indent=2))
        return
    folder = Path(tempfile.mkdtemp(prefix="duobus-usage-"))
    try:
        print(json.dumps(measure(options.records, options.memory, options.cores, folder), indent=2))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
