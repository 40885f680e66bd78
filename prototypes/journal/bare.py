"""The bare store: commits of N messages and as many removals, without a broker: ``python -m prototypes.journal.bare``."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import threading
import time
from contextlib import suppress
from statistics import median

from duobus.storage.interface import CommitBatch, Put
from duobus.storage.sqlite.store import SqliteStore
from prototypes.journal.store import JournalStore

KINDS = {"sqlite": SqliteStore, "journal": JournalStore}


def measure(kind: str, size: int, removed_after: int, total: int) -> tuple[float, float, float]:
    """Return microseconds a commit: median, mean with everything brought home, processor time."""
    with tempfile.TemporaryDirectory(prefix="journal-bare-") as folder:
        store = KINDS[kind](f"{folder}/s/store.db", 1)
        store.open()
        store.begin_generation([])
        fragment, (source,) = store.add_fragment(1, 0, [0])
        ends = threading.Event()

        def passes() -> None:
            while not ends.wait(0.05):
                store.checkpoint_aside()

        thread = threading.Thread(target=passes)
        thread.start()
        payloads = [os.urandom(1024) for _ in range(size)]
        number = total // size
        times = []
        first = 1
        began = time.perf_counter()
        before = resource.getrusage(resource.RUSAGE_SELF)
        for commit_no in range(1, number + 1):
            batch = CommitBatch(commit_no, 1)
            batch.epochs = [(fragment.fragment_key, fragment.epoch + 0)]
            batch.puts = [Put(source.source_key, first, 1, payloads)]
            if removed_after and commit_no > removed_after:
                gone = first - removed_after * size
                batch.removed = [(source.source_key, gone, gone + size - 1)]
            first += size
            batch.sources = [(source.source_key, first, first - 1, b"x" * 40)]
            at = time.perf_counter()
            store.commit(batch)
            times.append(time.perf_counter() - at)
            if commit_no % max(1, 30_000 // size) == 0:
                store.checkpoint()
        with suppress(AttributeError):
            store._settle()
        after = resource.getrusage(resource.RUSAGE_SELF)
        took = time.perf_counter() - began
        ends.set()
        thread.join()
        rows = store.usage().rows
        assert rows == (size * (removed_after or number) if removed_after else size * number), rows
        if kind == "sqlite" or not removed_after:
            assert not store.verify()
        store.close()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return median(times) * 1e6, took / number * 1e6, cpu / number * 1e6


def main() -> None:
    """Measure all sizes, the kinds in turns."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for removed_after, what in ((3, "removed three commits later"), (0, "kept")):
        for size, total in ((1, 4_000), (10, 20_000), (100, 60_000), (1000, 100_000)):
            found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in KINDS}
            for number in range(rounds):
                for kind in list(KINDS)[:: 1 if number % 2 else -1]:
                    found[kind].append(measure(kind, size, removed_after, total))
            for kind, samples in found.items():
                p50, mean, cpu = (median(sample[i] for sample in samples) for i in range(3))
                print(f"{what:28} {size:5} {kind:8} p50 {p50:8.0f}  mean {mean:8.0f}  processor {cpu:8.0f} us a commit"
                      f"  {cpu / size:7.2f} us a message", flush=True)


if __name__ == "__main__":
    main()
