r"""Prove from a trace of system calls that nothing is acknowledged before it is on disk (I1).

    python tools/synctrace.py --ack 'ack' -- python program.py
    python tools/synctrace.py --ack-fd 'TCP|socket' --ack '\x00S\x15' --pid 4711 --seconds 10
    python tools/synctrace.py --ack 'ack (\d+)' --mark 'mark-(\d+)-' -- python program.py
    python tools/synctrace.py --ack 'ack' --check trace.log

Runs a command (or attaches to a process) under strace and checks every acknowledgement: a write to a descriptor
like ``--ack-fd`` whose bytes match ``--ack`` (a regular expression over bytes). Two rules:

* *sequence* (default), for one operation in flight: between two acknowledgements there is a write to a file
  like ``--data``, and after the last such write a successful fdatasync or fsync of that file was begun and
  finished before the acknowledgement began.
* *mark*, for any number in flight: the group of ``--ack`` names what is acknowledged, the group of ``--mark``
  names it in the data. The first write with that name must be followed by a sync, begun after the write was
  finished, finished before the acknowledgement began. (Removals carry no name: use *sequence* for settlements.)

Exit status: 0 all in order, 1 a violation or no acknowledgement at all, 3 strace is missing or not permitted.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

WRITES = frozenset(("write", "writev", "pwrite64", "pwritev", "pwritev2", "sendto", "sendmsg"))
SYNCS = frozenset(("fdatasync", "fsync"))
IMPOSSIBLE = 3
#: Longest string that strace prints; a page of the store is 8 KiB, a socket write is rarely longer than this.
STRING_MAX = 70_000

_LINE = re.compile(r"^(?:\[pid +)?(?P<pid>\d+)?\]? *(?P<time>\d\d:\d\d:\d\d\.\d+) (?P<rest>.*)$")
_CALL = re.compile(r"^(?P<name>\w+)\((?P<arguments>.*)$", re.DOTALL)
_RESUMED = re.compile(r"^<\.\.\. (?P<name>\w+) resumed>(?P<rest>.*)$")
_RESULT = re.compile(r"\) *= (?P<result>-?\d+|\?)[^)]*(?:\([^)]*\))?$")
_FD = re.compile(r"^(?P<fd>\d+)(?:<(?P<path>(?:[^<>]|->)*)>)?")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def _plain(text: str) -> bytes:
    r"""Return what strace wrote as ``\x2f\x74``; paths are written so as well, sockets are not."""
    return bytes.fromhex(text.replace("\\x", "")) if text.startswith("\\x") else text.encode()


class Call:
    """One system call.

    Attributes:
        name: Of the call.
        fd: Descriptor.
        path: What the descriptor is, as ``strace -y`` says it.
        data: The bytes written.
        begin: Number of the line in which it began.
        end: Number of the line in which it returned; None if it never did.
        ok: Whether it returned without error.
        pid: The thread that made it.
    """

    __slots__ = ("begin", "data", "end", "fd", "name", "ok", "path", "pid")

    def __init__(self, pid: str, name: str, arguments: str, begin: int) -> None:
        fd = _FD.match(arguments)
        self.pid = pid
        self.name = name
        self.fd = int(fd["fd"]) if fd else -1
        self.path = _plain((fd["path"] if fd else None) or "").decode("utf-8", "replace")
        self.data = b"".join(map(_plain, _STRING.findall(arguments)))
        self.begin = begin
        self.end: int | None = None
        self.ok = False

    def finish(self, line: int, rest: str) -> None:
        """Note that the call returned in ``line``; ``rest`` ends with its result."""
        result = _RESULT.search(rest)
        self.end = line
        self.ok = result is not None and result["result"] not in ("?", "-1")


def parse(lines: Iterable[str]) -> Iterator[Call]:
    """Yield the writes and syncs of a trace in the order in which they began, finished or not.

    The trace is one of ``strace -f -tt -y -xx``. A line that cannot be read is skipped: it is a signal or an exit.
    """
    running: dict[tuple[str, str], Call] = {}
    calls: list[Call] = []
    for number, line in enumerate(lines):
        found = _LINE.match(line.rstrip("\n"))
        if found is None:
            continue
        pid, rest = found["pid"] or "", found["rest"]
        resumed = _RESUMED.match(rest)
        if resumed is not None:
            call = running.pop((pid, resumed["name"]), None)
            if call is not None:
                call.finish(number, resumed["rest"])
            continue
        begun = _CALL.match(rest)
        if begun is None or begun["name"] not in WRITES | SYNCS:
            continue
        call = Call(pid, begun["name"], begun["arguments"], number)
        calls.append(call)
        if rest.endswith("<unfinished ...>"):
            running[pid, call.name] = call
        else:
            call.finish(number, rest)
    return iter(calls)


class Report:
    """What a check has found: numbers of calls, and a text per violation."""

    __slots__ = ("acks", "syncs", "violations", "writes")

    def __init__(self) -> None:
        self.acks = 0
        self.syncs = 0
        self.writes = 0
        self.violations: list[str] = []

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON; at most twenty violations in full."""
        return {
            "acks": self.acks,
            "syncs": self.syncs,
            "writes": self.writes,
            "violations": len(self.violations),
            "first_violations": self.violations[:20],
        }


class Rules:
    """What is data, what is an acknowledgement, and how they are told apart.

    Args:
        data: Path of the files whose content must be synced.
        ack_fd: Descriptor ("1" and "1<path>" are tried) over which acknowledgements leave.
        ack: Bytes of an acknowledgement; with ``mark``, its first group is a name.
        mark: Bytes in the data whose first group is the same name; None for the sequence rule.
    """

    def __init__(self, data: str, ack_fd: str, ack: str, mark: str | None = None) -> None:
        self._data = re.compile(data)
        self._ack_fd = re.compile(ack_fd)
        self._ack = re.compile(ack.encode("latin-1"), re.DOTALL)
        self._mark = re.compile(mark.encode("latin-1"), re.DOTALL) if mark is not None else None

    def check(self, calls: Iterable[Call]) -> Report:
        """Check a trace against the rule."""
        report, data, syncs, acks = Report(), [], [], []
        for call in calls:
            if self._data.search(call.path):
                if call.name in SYNCS:
                    syncs.append(call)
                elif call.data.strip(b"\0"):
                    # Zeros are room that is made in a log (``stores/log_room.py``), and stand for no commit.
                    data.append(call)
            elif call.name in WRITES and self._ack_fd.search(f"{call.fd}<{call.path}>"):
                acks += [(call, match) for match in self._ack.finditer(call.data)]
        report.acks, report.syncs, report.writes = len(acks), len(syncs), len(data)
        if self._mark is None:
            report.violations = _check_sequence(data, syncs, [call for call, _ in acks])
        else:
            report.violations = _check_marks(_first_writes(data, self._mark), syncs, acks)
        return report


def _is_synced(write: Call, syncs: list[Call], before: int) -> bool:
    """Say whether ``write`` was finished, then synced, all of it before line ``before``."""
    if write.end is None:
        return False
    for sync in syncs[bisect_right(syncs, write.end, key=_begin) :]:
        if sync.begin >= before:
            return False
        if sync.ok and sync.path == write.path and sync.end is not None and sync.end < before:
            return True
    return False


def _begin(call: Call) -> int:
    return call.begin


def _check_sequence(data: list[Call], syncs: list[Call], acks: list[Call]) -> list[str]:
    violations = []
    since = -1
    for ack in acks:
        written = data[bisect_right(data, since, key=_begin) : bisect_right(data, ack.begin, key=_begin)]
        if not written:
            violations.append(f"line {ack.begin + 1}: acknowledged, but nothing was written since line {since + 1}")
        # The last write of each file: what was written before it is covered by the same sync.
        for write in {write.path: write for write in written}.values():
            if not _is_synced(write, syncs, ack.begin):
                violations.append(
                    f"line {ack.begin + 1}: acknowledged, but the write of line {write.begin + 1} to {write.path}"
                    " was not synced by then"
                )
        since = ack.begin
    return violations


def _first_writes(data: list[Call], mark: re.Pattern[bytes]) -> dict[bytes, Call]:
    """Return the first write of each name; a page that is written again later repeats the names in it."""
    first: dict[bytes, Call] = {}
    for write in data:
        for found in mark.finditer(write.data):
            first.setdefault(found[1], write)
    return first


def _check_marks(first: dict[bytes, Call], syncs: list[Call], acks: list[tuple[Call, re.Match[bytes]]]) -> list[str]:
    violations = []
    for ack, match in acks:
        write = first.get(match[1])
        if write is None:
            violations.append(f"line {ack.begin + 1}: {match[1]!r} acknowledged, but never written")
        elif not _is_synced(write, syncs, ack.begin):
            violations.append(
                f"line {ack.begin + 1}: {match[1]!r} acknowledged before the write of line {write.begin + 1} was synced"
            )
    return violations


def strace_command(log: Path) -> list[str]:
    """Return the command that traces what follows it into ``log``."""
    names = ",".join(sorted(WRITES | SYNCS))
    return ["strace", "-f", "-tt", "-y", "-xx", "-s", str(STRING_MAX), "-e", f"trace={names}", "-o", str(log)]


def why_impossible() -> str:
    """Return why nothing can be traced here, or an empty text."""
    if shutil.which("strace") is None:
        return "strace is missing; install it: apt-get install strace"
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"strace is not permitted here: {tried.stderr.strip()}"


def trace(command: list[str], pid: int | None, seconds: float, log: Path) -> None:
    """Trace a command to its end, or a process for some seconds, into ``log``."""
    if pid is None:
        subprocess.run([*strace_command(log), *command], stdout=subprocess.DEVNULL, check=False)
        return
    tracer = subprocess.Popen([*strace_command(log), "-p", str(pid)], stderr=subprocess.DEVNULL)
    try:
        tracer.wait(seconds)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        # Ctrl-C ends the tracing early. Interrupted, strace lets go of the process, which runs on.
        tracer.terminate()
        tracer.wait()


def main() -> int:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", default=r"-wal$", help="regular expression: paths of files that must be synced")
    parser.add_argument("--ack-fd", default=r"^1<", help="regular expression: descriptor<what it is> of answers")
    parser.add_argument("--ack", required=True, help="regular expression over the bytes of an answer")
    parser.add_argument("--mark", help="regular expression over the data; selects the mark rule")
    parser.add_argument("--pid", type=int, help="attach to this process instead of running a command")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to stay attached")
    parser.add_argument("--check", type=Path, metavar="LOG", help="only check this log")
    parser.add_argument("command", nargs="*", help="after --, the program to run")
    arguments = parser.parse_args()
    rules = Rules(arguments.data, arguments.ack_fd, arguments.ack, arguments.mark)
    with tempfile.TemporaryDirectory() as folder:
        log = arguments.check or Path(folder) / "trace.log"
        if arguments.check is None:
            reason = why_impossible()
            if reason:
                print(reason)
                return IMPOSSIBLE
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a test may have started us with it ignored
            trace(arguments.command, arguments.pid, arguments.seconds, log)
        with log.open(encoding="ascii", errors="replace") as lines:
            report = rules.check(parse(lines))
    print(json.dumps(report.as_dict(), indent=2))
    return 0 if report.acks and not report.violations else 1


if __name__ == "__main__":
    sys.exit(main())
