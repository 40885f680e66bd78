"""From samples to a report: medians with their range, the conditions of the run, JSON and a table."""

import contextlib
import math
import os
import platform
import statistics
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from tools.archives import unpack

MEAN_OF = ("A100", "A1000", "B", "C1x1", "C4x4")
"""The workloads in the geometric mean that the project's goal is stated in."""

_SYNCS = 200


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Return median, min and max of the values that are there; None when there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"median": statistics.median(known), "min": min(known), "max": max(known)}


def summarise(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Fold the samples of one peer and workload, one per round, into a spread per figure.

    A sample's nested dictionaries (the CPU by thread) stay nested; a thread that a round did not have counts as 0.
    """
    # the number of a round is no measurement
    names = (key for sample in samples for key in sample if key != "round" and not isinstance(sample[key], str))
    keys = list(dict.fromkeys(names))
    result: dict[str, Any] = {}
    for key in keys:
        values = [sample.get(key) for sample in samples]
        nested = [value for value in values if isinstance(value, dict)]
        if nested:
            inner = list(dict.fromkeys(name for value in nested for name in value))
            result[key] = {name: spread(value.get(name, 0.0) for value in nested) for name in inner}
        else:
            result[key] = spread(values)
    return result


def geometric_mean(rates: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(math.log(rate) for rate in rates) / len(rates))


def table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Lay out `results` (peer, workload, summary) as plain text; all times are medians."""
    head = ["peer", "load", "msg/s", "[min..max]", "send p50/p99 ms", "e2e p50/p99 ms"]
    head += ["cpu us", "main+threads", "cores", "RSS/peak MB", "gen us"]
    rows = [head]
    for peer, workloads in results.items():
        rows += [_row(peer, name, summary) for name, summary in workloads.items()]
        rates = [workloads[name]["rate"]["median"] for name in MEAN_OF if name in workloads]
        if len(rates) == len(MEAN_OF):
            rows.append([peer, "mean", f"{geometric_mean(rates):,.0f}", "geometric, A100 A1000 B C1x1 C4x4"])
    # the note of the mean may run over the columns behind it
    full = [row for row in rows if len(row) == len(head)]
    widths = [max(len(row[column]) for row in full) for column in range(len(head))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if at < 2 or (len(row) < len(head) and at == 3) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _row(peer: str, workload: str, summary: dict[str, Any]) -> list[str]:
    rate = summary["rate"]
    cpu = {name: value["median"] for name, value in summary.get("cpu_us", {}).items()}
    threads = [cpu.get("main", 0.0), *(value for name, value in cpu.items() if name.startswith("thread"))]
    memory = "/".join(f"{summary[key]['median']:.0f}" for key in ("rss_mb", "rss_peak_mb") if key in summary)
    return [
        peer,
        workload,
        f"{rate['median']:,.0f}",
        f"[{rate['min']:,.0f}..{rate['max']:,.0f}]",
        _pair(summary, "send_p50_ms", "send_p99_ms"),
        _pair(summary, "end_to_end_p50_ms", "end_to_end_p99_ms"),
        f"{cpu.get('total', 0.0):.1f}",
        "+".join(f"{value:.1f}" for value in threads),
        f"{cpu.get('cores', 0.0):.2f}",
        memory,
        f"{summary['generator_cpu_us']['median']:.1f}",
    ]


def _pair(summary: dict[str, Any], low: str, high: str) -> str:
    if not summary.get(low) or not summary.get(high):
        return "-"
    return f"{summary[low]['median']:.2f}/{summary[high]['median']:.2f}"


def conditions(data_root: Path) -> dict[str, Any]:
    """Describe the machine as far as it explains the figures, without a name or a path of it.

    `fdatasync_ms` is the median of appending and syncing 4 KiB: the workloads with a small window follow it.
    `python_ms` is what the interpreter needs for a fixed piece of work: it tells a fast hour from a slow one, and one
    build of Python from another.
    """
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "python_ms": _python_ms(),
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "processors": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "filesystem": _filesystem(data_root),
        "fdatasync_ms": _fdatasync_ms(data_root),
    }


def _python_ms() -> float:
    """Return the least processor time of some runs of what a broker does most: small objects, calls, dictionaries."""
    least = math.inf
    for _ in range(7):
        began = process_time()
        known: dict[int, tuple[int, int]] = {}
        for number in range(100_000):
            known[number & 1023] = pair = divmod(number, 7)
            known.setdefault(sum(pair), pair)
        least = min(least, process_time() - began)
    return round(least * 1e3, 1)


def _filesystem(folder: Path) -> str:
    """Return the type of the file system: on tmpfs a sync costs nothing, and the figures say nothing."""
    found, longest = "unknown", -1
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            mount, kind = line.split()[1:3]
            if folder.resolve().is_relative_to(mount) and len(mount) > longest:
                found, longest = kind, len(mount)
    return found


def _fdatasync_ms(folder: Path) -> float:
    times = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(_SYNCS):
            before = perf_counter()
            os.write(file.fileno(), bytes(4096))
            os.fdatasync(file.fileno())
            times.append(perf_counter() - before)
    return statistics.median(times) * 1e3


def short_name(root: Path, revision: str) -> str:
    """Return the short hash of a revision.

    Raises:
        ValueError: Git knows no commit by that name.
    """
    return _git(root, "rev-parse", "--short", f"{revision}^{{commit}}").strip()


def sources_of(root: Path, revision: str) -> Path:
    """Lay the sources of a revision out below `.build` and return the folder to put on Python's path.

    Raises:
        ValueError: Git knows no commit by that name.
    """
    folder = root / ".build" / "beside" / short_name(root, revision)
    if not (folder / "src").exists():
        folder.mkdir(parents=True, exist_ok=True)
        archive = folder / "src.tar"
        _git(root, "archive", "--output", str(archive), revision, "src")
        with tarfile.open(archive) as members:
            unpack(members, folder)
        archive.unlink()
    return folder / "src"


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def commit(root: Path) -> tuple[str, bool]:
    """Return the short hash of the commit at `root`, `local` without one, and whether files differ from it."""
    try:
        words = ["git", "-C", str(root)]
        found = subprocess.run([*words, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        changes = subprocess.run([*words, "status", "--porcelain"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "local", True
    if found.returncode != 0:
        return "local", True
    return found.stdout.strip(), bool(changes.stdout.strip())
