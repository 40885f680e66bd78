"""What a process has used, read from /proc: processor time in clock ticks, by process and thread, and memory."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

TICK_SECONDS = 1.0 / os.sysconf("SC_CLK_TCK")
"""Resolution of all processor times here, usually 10 ms: the second digit of a short run is uncertain."""


@dataclass(frozen=True)
class Cpu:
    """Processor time of a process since its start, seconds.

    Attributes:
        user, system: of the whole process, threads that have ended included.
        threads: user and system time of each living thread, by its id.
        at: when it was read, seconds of `perf_counter`.
    """

    user: float
    system: float
    threads: dict[int, float] = field(default_factory=dict)
    at: float = 0.0


def cpu(pid: int) -> Cpu:
    """Read the processor time of a process.

    Raises:
        OSError: there is no such process.
    """
    root = Path("/proc") / str(pid)
    user, system = _ticks(root / "stat")
    threads: dict[int, float] = {}
    for task in (root / "task").iterdir():
        try:
            threads[int(task.name)] = sum(_ticks(task / "stat")) * TICK_SECONDS
        except (FileNotFoundError, ProcessLookupError):
            # the thread ended between the listing and the reading
            continue
    return Cpu(user * TICK_SECONDS, system * TICK_SECONDS, threads, perf_counter())


def _ticks(stat: Path) -> tuple[int, int]:
    # the name of the program is in parentheses and may hold anything: count the fields from behind it
    fields = stat.read_text().rpartition(")")[2].split()
    return int(fields[11]), int(fields[12])


def per_message(pid: int, before: Cpu, after: Cpu, messages: int) -> dict[str, float]:
    """Divide the processor time between two readings among messages.

    Returns:
        Microseconds per message: `total`, `system` (its kernel part), `main` (the thread that runs the event loop), and
        `thread1` ... for the others that used any, the busiest first; and `cores`, the processors busy on average.
    """
    user = after.user - before.user
    system = after.system - before.system
    scale = 1e6 / messages
    result = {"total": (user + system) * scale, "system": system * scale}
    used = {tid: time - before.threads.get(tid, 0.0) for tid, time in after.threads.items()}
    result["main"] = used.pop(pid, 0.0) * scale
    for number, time in enumerate(sorted((time for time in used.values() if time > 0), reverse=True), 1):
        result[f"thread{number}"] = time * scale
    result["cores"] = (user + system) / (after.at - before.at)
    return result


def memory_mb(pid: int) -> tuple[float, float]:
    """Return the resident memory of a process and its peak since the start, both in MB (10^6 bytes).

    Raises:
        OSError: there is no such process.
    """
    values = {"VmRSS": 0.0, "VmHWM": 0.0}
    for line in (Path("/proc") / str(pid) / "status").read_text().splitlines():
        key, _, rest = line.partition(":")
        if key in values:
            values[key] = int(rest.split()[0]) * 1024 / 1e6
    return values["VmRSS"], values["VmHWM"]
