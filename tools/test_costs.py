"""Where the time of the tests goes: processor time and wall time by folder, file and test.

As a plugin of pytest it writes a line per test: ``pytest -p tools.test_costs --costs .build/costs tests/unit/ha``.
As a program it adds them up: ``python tools/test_costs.py .build/costs``.

Processor time counts every process below the one that runs the tests, as brokers and Spark are most of it; what lives
on after a test (a broker of a module, a JVM) is charged to the tests during which it computes. Needs /proc; without it
children count when they end.
"""

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

TICKS: Final = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--costs``."""
    parser.addoption("--costs", metavar="FOLDER", help="write what each test costs into this folder")


def pytest_configure(config: pytest.Config) -> None:
    """Write lines in each process that runs tests; under pytest-xdist these are the workers."""
    folder = config.getoption("--costs")
    if folder and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        config.pluginmanager.register(Costs(Path(folder)))


class Costs:
    """Writes a line per test."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{os.getpid()}.jsonl"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure a test with its set-up and what it leaves to tear down."""
        began, processor = time.monotonic(), processor_time()
        try:
            return (yield)
        finally:
            line = {
                "test": item.nodeid,
                "began": round(time.time() - (time.monotonic() - began), 3),
                "wall": round(time.monotonic() - began, 3),
                "processor": round(processor_time() - processor, 3),
            }
            with self._file.open("a") as file:
                file.write(json.dumps(line) + "\n")


def processor_time() -> float:
    """Seconds of this process, of its children that ended, and of all that live below it."""
    own = sum(os.times()[:4])
    try:
        children: dict[int, list[int]] = defaultdict(list)
        ticks: dict[int, int] = {}
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    # The name of the program stands in brackets and may hold spaces; the fields after it don't.
                    fields = (process / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                children[int(fields[1])].append(int(process.name))
                ticks[int(process.name)] = sum(map(int, fields[11:15]))
    except OSError:
        return own
    below, waiting = 0, list(children[os.getpid()])
    while waiting:
        pid = waiting.pop()
        below += ticks[pid]
        waiting += children[pid]
    return own + below / TICKS


def main() -> None:
    """Add up, and print the dearest."""
    parser = argparse.ArgumentParser(description="Add up what the tests cost.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--top", type=int, default=40, help="how many files and tests to list")
    options = parser.parse_args()
    lines = [json.loads(line) for path in sorted(options.folder.glob("*.jsonl")) for line in path.open()]
    for title, key in (
        ("folder", lambda test: "/".join(test.split("::")[0].split("/")[:3])),
        ("file", lambda test: test.split("::")[0]),
        ("test", lambda test: test),
    ):
        sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        for line in lines:
            for at, value in enumerate((1, line["processor"], line["wall"])):
                sums[key(line["test"])][at] += value
        print(f"{'tests':>7} {'processor':>10} {'wall':>8}  {title}")
        for name, (count, processor, wall) in sorted(sums.items(), key=lambda pair: -pair[1][2])[: options.top]:
            print(f"{count:7} {processor:10.1f} {wall:8.1f}  {name}")
    print(f"{len(lines):7} {sum(x['processor'] for x in lines):10.1f} {sum(x['wall'] for x in lines):8.1f}  in all")


if __name__ == "__main__":
    main()
