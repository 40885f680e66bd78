"""What a commit costs inside SQLite, and what could be left out of it: ``python -m prototypes.journal.alternatives``.

Bare statements, as ``storage/sqlite/store.py`` runs them: new messages, a range removed, the source's row, the store's.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from statistics import median

from duobus.storage.checksums import body_sums
from duobus.storage.interface import COUNT_BITS
from duobus.storage.sqlite import rows, schema
from duobus.storage.sqlite.file import StoreOptions, connect, empty_log, use_log

BLOCKS = "CREATE TABLE blocks(id INTEGER PRIMARY KEY, payload BLOB NOT NULL, row_sum INTEGER NOT NULL)"


def measure(way: str, size: int, total: int) -> tuple[float, float]:
    """Return median wall time and mean processor time of a commit, microseconds."""
    with tempfile.TemporaryDirectory(prefix="journal-sqlite-") as folder:
        path = f"{folder}/s.db"
        os.close(os.open(path, os.O_CREAT | os.O_RDWR))
        db = connect(path, StoreOptions())
        if way.startswith("pages of"):
            db.execute(f"PRAGMA page_size={int(way.split()[2]) * 1024}")
        if way == "mmap":
            db.execute("PRAGMA mmap_size=268435456")
        use_log(db, StoreOptions())
        db.execute(schema.CREATE)
        db.execute(BLOCKS)
        db.execute(schema.INSERT_SOURCE, (1, 1, 0, 1, 0, b"", 0))
        rows.insert_meta(db, rows.SqliteMeta(1))
        empty_log(db)
        log = -1
        if way == "NORMAL and fdatasync":
            db.execute("PRAGMA synchronous=NORMAL")
            log = os.open(f"{path}-wal", os.O_RDWR)
        payloads = [os.urandom(1024) for _ in range(size)]
        is_block = way.startswith("a block")
        first, number, times, cpu = (1 << COUNT_BITS) + 1, total // size, [], 0.0
        meta = rows.SqliteMeta(1)
        for commit_no in range(1, number + 1):
            gone = first - 3 * size
            before = resource.getrusage(resource.RUSAGE_SELF)
            began = time.perf_counter()
            db.execute("BEGIN IMMEDIATE")
            if is_block:
                joined = b"".join(payloads)
                db.execute("INSERT INTO blocks VALUES (?, ?, ?)", (first, joined, 0))
                db.execute("DELETE FROM blocks WHERE id = ?", (gone,))
            else:
                flat = [1] * (4 * size)
                flat[0::4] = range(first, first + size)
                flat[2::4] = payloads
                flat[3::4] = body_sums(first, 1, payloads)
                rows.run(db, schema.INSERT_ORDINARY, flat)
                db.execute(schema.DELETE_RANGE, (gone, gone + size - 1))
            if way not in ("no row of the source", "a block, no row of the source"):
                rows.run(db, schema.UPDATE_SOURCES, [1, first, first, b"x" * 40, 1])
            new = meta._replace(last_commit_no=commit_no)
            rows.update_meta(db, meta, new)
            meta = new
            db.execute("COMMIT")
            if log >= 0:
                os.fdatasync(log)
            times.append(time.perf_counter() - began)
            after = resource.getrusage(resource.RUSAGE_SELF)
            cpu += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            first += size
            if commit_no % max(1, 20_000 // size) == 0 and way != "a log that never starts again":
                db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if log >= 0:
            os.close(log)
        db.close()
    return median(times) * 1e6, cpu / number * 1e6


WAYS = (
    "as it is", "no row of the source", "NORMAL and fdatasync", "pages of 4", "pages of 16", "mmap",
    "a log that never starts again", "a block row", "a block, no row of the source",
)


def main() -> None:
    """Measure all ways in turns."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for size, total in ((1, 3_000), (10, 10_000), (100, 40_000), (1000, 60_000)):
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for number in range(rounds):
            for way in WAYS[:: 1 if number % 2 else -1]:
                found[way].append(measure(way, size, total))
        base = median(cpu for _, cpu in found[WAYS[0]])
        for way, samples in found.items():
            p50, cpu = (median(sample[i] for sample in samples) for i in range(2))
            print(f"{size:5} {way:32} p50 {p50:7.0f}  processor {cpu:7.0f} us a commit {cpu / size:7.2f} a message"
                  f"  {cpu / base:5.2f}", flush=True)


if __name__ == "__main__":
    main()
