"""What ``duobus doctor`` finds on the machine itself: versions, limits of processes, memory, clock, ports.

Each ``of_...`` judges what was measured and does nothing else; ``machine_findings`` measures.
"""

from __future__ import annotations

import ctypes
import errno
import http.client
import json
import re
import resource
import socket
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from duobus.cli.watch.findings import FAILURE, OK, WARNING, Finding
from duobus.compiled import compiled_rooms

#: Open files below this are too few for anything but a trial: each connection is one.
_FILES_FEW: Final = 4_096
_MIB: Final = 1 << 20
#: A server without messages takes some 65 MiB.
_MEMORY_LEAST: Final = 256 * _MIB
#: What ``adjtimex`` answers when nobody keeps the clock.
_NOT_SYNCHRONIZED: Final = 5
_TIMEX_BYTES: Final = 512
_TIMEOUT_S: Final = 2.0

FREE: Final = "free"
DUOBUS: Final = "duobus"
OTHER: Final = "other"
FORBIDDEN: Final = "forbidden"


def of_versions(duobus: str, python: tuple[int, int], sqlite: str, compiled: Sequence[str]) -> Finding:
    """Which versions run here."""
    rooms = f", compiled: {', '.join(compiled)}" if compiled else ", not compiled"
    found = f"duobus {duobus or 'that is not installed'}, Python {python[0]}.{python[1]}, SQLite {sqlite}{rooms}"
    if python < (3, 11):
        return Finding("versions", FAILURE, found, "Run duobus with Python 3.11 or newer.")
    return Finding("versions", OK, found)


def of_open_files(soft: int, hard: int, whose: str) -> Finding:
    """How many files, and so connections, a process may have open; a server raises the soft limit to the hard one."""
    limit = hard if whose == "this shell's" else soft
    number = "no limit" if limit == resource.RLIM_INFINITY else f"{limit:,}"
    found = f"{whose} limit of open files: {number}"
    if limit != resource.RLIM_INFINITY and limit < _FILES_FEW:
        remedy = (
            "Each connection is one. Raise it: ulimit -Hn, LimitNOFILE= of a systemd unit, --ulimit of a container."
        )
        return Finding("open files", WARNING, found, remedy)
    return Finding("open files", OK, found)


def of_memory(available: int | None) -> Finding:
    """How much memory is left for a server."""
    if available is None:
        return Finding("memory", OK, "the system does not tell how much memory is available")
    found = f"{available // _MIB:,} MiB of memory available"
    if available < _MEMORY_LEAST:
        return Finding("memory", WARNING, found, "Give the machine or container more: a server takes 65 MiB and up.")
    return Finding("memory", OK, found)


def of_clock_service(is_synchronized: bool | None) -> Finding:
    """Whether somebody keeps the machine's clock right."""
    if is_synchronized is None:
        return Finding("clock service", OK, "the system does not tell whether the clock is synchronized")
    if is_synchronized:
        return Finding("clock service", OK, "the clock is synchronized")
    remedy = "Run chrony or systemd-timesyncd: tokens, expiry and schedules go by the clock."
    return Finding("clock service", WARNING, "nobody synchronizes the clock of this machine", remedy)


def of_port(host: str, port: int, holder: str) -> Finding:
    """Whether a server can listen on a port, or does."""
    subject = f"port {port}"
    if holder == FREE:
        return Finding(subject, OK, f"nobody listens on {host}:{port}")
    if holder == DUOBUS:
        return Finding(subject, OK, f"a duobus server listens on {host}:{port}")
    if holder == FORBIDDEN:
        remedy = "Choose a port above 1023, or give the process CAP_NET_BIND_SERVICE."
        return Finding(subject, FAILURE, f"this user may not listen on {host}:{port}", remedy)
    remedy = f"Stop that program (ss -ltnp 'sport = :{port}' names it), or give duobus serve another port."
    return Finding(subject, FAILURE, f"another program listens on {host}:{port}", remedy)


def machine_findings(server_pid: int | None) -> Iterator[Finding]:
    """Look at everything that belongs to the machine; ``server_pid``: of a server that runs here, or None."""
    import apsw

    yield of_versions(installed_version(), sys.version_info[:2], apsw.sqlite_lib_version(), compiled_rooms())
    limits = None if server_pid is None else limits_of(server_pid)
    if limits is None:
        yield of_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE), "this shell's")
    else:
        yield of_open_files(*limits, f"the server's (process {server_pid})")
    yield of_memory(available_memory())
    yield of_clock_service(is_clock_synchronized())


def installed_version() -> str:
    """Return the version of this duobus; empty where it is not installed but only on the path."""
    try:
        return version("duobus")
    except PackageNotFoundError:
        return ""


def limits_of(pid: int) -> tuple[int, int] | None:
    """Return the limits of open files of another process; None where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/limits").read_text()
    except OSError:
        return None
    match = re.search(r"^Max open files\s+(\d+|unlimited)\s+(\d+|unlimited)", text, re.MULTILINE)
    if match is None:
        return None
    soft, hard = (resource.RLIM_INFINITY if part == "unlimited" else int(part) for part in match.groups())
    return soft, hard


def available_memory() -> int | None:
    """Return the bytes that the machine, or the control group of this process, has left; None where nobody tells."""
    numbers = []
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        if match is not None:
            numbers.append(int(match[1]) << 10)
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            numbers.append(int(limit) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        # Another system, or no control groups: what was found already counts.
        pass
    return min(numbers, default=None)


def is_clock_synchronized() -> bool | None:
    """Return what the kernel knows of its clock; None where it cannot be asked."""
    try:
        # Nothing is set: the first member, the modes, is 0.
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError, TypeError):
        return None
    return None if state < 0 else state != _NOT_SYNCHRONIZED


def holder_of(host: str, port: int) -> str:
    """Return who listens on a port: FREE, DUOBUS, OTHER, or FORBIDDEN when nobody does and this user may not."""
    try:
        socket.create_connection((host, port), _TIMEOUT_S).close()
    except OSError:
        return _may_listen(host, port)
    return DUOBUS if is_duobus(host, port) else OTHER


def _may_listen(host: str, port: int) -> str:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return FORBIDDEN if error.errno in (errno.EACCES, errno.EPERM) else OTHER
    return FREE


def is_duobus(host: str, port: int) -> bool:
    """Whether what listens there answers as duobus does, over HTTP, which each of its ports takes."""
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        told = json.loads(connection.getresponse().read(1 << 16))
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
    return isinstance(told, dict) and {"status", "stores"} <= told.keys()
