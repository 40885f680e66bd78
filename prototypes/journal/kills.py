"""A process commits through the journal and is killed, again and again: ``python -m prototypes.journal.kills 20``."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time

from duobus.storage.interface import CommitBatch, Put
from prototypes.journal.store import JournalStore


def payload(count: int) -> bytes:
    """What a message must have."""
    return b"%d " % count * (1 + count % 300)


def commit_on(path: str) -> None:
    """Commit until killed, and print each commit that was answered: its number, the first count kept and the last."""
    store = JournalStore(path, 1)
    contents = store.open()
    store.begin_generation([])
    fragment, (source,) = store.add_fragment(1, 0, [0])
    kept, chance = 1, random.Random(contents.last_commit_no)
    if source.counters:
        kept = int(source.counters)
    next_count = source.next_count
    for number in range(contents.last_commit_no + 1, 1 << 40):
        batch = CommitBatch(number, number)
        batch.epochs = [(fragment.fragment_key, fragment.epoch)]
        size = chance.choice((1, 1, 10, 200))
        batch.puts = [Put(1, next_count, 5, [payload(next_count + index) for index in range(size)])]
        next_count += size
        if next_count - kept > 1_000:
            upto = next_count - chance.choice((5, 300, 900))
            if upto > kept:
                batch.removed = [(1, kept, upto - 1)]
                kept = upto
        batch.sources = [(1, next_count, 0, b"%d" % kept)]
        store.commit(batch)
        print(number, kept, next_count, flush=True)


def main() -> None:
    """Kill, open, compare."""
    cuts = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    chance = random.Random(1)
    replayed = 0
    with tempfile.TemporaryDirectory(prefix="journal-kills-") as folder:
        path = f"{folder}/s/store.db"
        for cut in range(cuts):
            with open(f"{folder}/out", "w+b") as out:
                child = subprocess.Popen([sys.executable, "-m", __spec__.name, "commit", path], stdout=out)
                while not os.path.getsize(out.name) and child.poll() is None:
                    time.sleep(0.05)
                time.sleep(chance.random())
                child.kill()
                child.wait()
                out.seek(0)
                lines = [line.split() for line in out.read().splitlines(keepends=True) if line.endswith(b"\n")]
            assert lines, "nothing was committed"
            number, kept, next_count = map(int, lines[-1])
            store = JournalStore(path, 1)
            contents = store.open()
            replayed += store.replayed
            (source,) = contents.sources
            assert contents.last_commit_no in (number, number + 1), (contents.last_commit_no, number)
            if contents.last_commit_no == number:
                assert (source.next_count, int(source.counters)) == (next_count, kept)
            messages = store.load(1, 1, 1 << 20)
            assert [m.count for m in messages] == list(range(int(source.counters), source.next_count)), cut
            assert all(m.payload == payload(m.count) for m in messages)
            assert not store.verify()
            store.close()
            print(f"kill {cut + 1}: commit {number}, {store.replayed} replayed, {len(messages)} messages", flush=True)
    print(f"{cuts} kills, {replayed} commits replayed: lost 0, altered 0, revived 0")


if __name__ == "__main__":
    if sys.argv[1:2] == ["commit"]:
        commit_on(sys.argv[2])
    else:
        main()
