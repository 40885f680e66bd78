"""How much memory this process may have: the machine's, or the least that a control group above this process allows."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

#: What a server takes for messages unless the operator says otherwise: one part of so many of what it may have,
#: within bounds.
PARTS: Final = 4
LEAST: Final = 128 << 20
MOST: Final = 512 << 20


def suggested_bytes(available: int | None) -> int:
    """Return what a server takes for messages where ``available`` bytes are there; None: nobody knows how many."""
    return LEAST if available is None else min(max(available // PARTS, LEAST), MOST)


def allowed_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes of memory that this process may have, or None where the system does not tell."""
    found = [*_of_groups(proc, groups)]
    match = re.search(r"^MemTotal:\s+(\d+) kB", _text(proc / "meminfo"), re.MULTILINE)
    if match is not None:
        found.append(int(match[1]) << 10)
    elif {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= os.sysconf_names.keys():
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min((number for number in found if number > 0), default=None)


def _of_groups(proc: Path, groups: Path) -> list[int]:
    """Return the limits of this process's control group and of those above it, in either version of control groups."""
    limits = []
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            root, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may name what is only there outside; the folder that is mounted is its own group then.
        own = root / path.strip("/")
        for folder in (own, *own.parents):
            text = _text(folder / name).strip()
            if text.isdigit():
                limits.append(int(text))
            if folder == root:
                break
    return limits


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
