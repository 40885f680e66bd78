"""What differs between two texts, line by line, and between two JSON documents, as a JSON patch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

#: Lines of a text of which the difference is worked out; further ones are compared as they stand.
LINES_MAX: Final = 1_000
#: Unchanged lines that are shown beside a change.
_CONTEXT: Final = 3
#: Operations that one JSON patch may have; a document that differs more is replaced.
_OPERATIONS_MAX: Final = 100
_DEPTH_MAX: Final = 60


class Line(NamedTuple):
    """A line of a difference.

    Attributes:
        kind: ``same``, ``removed``, ``added``, or ``gap`` for unchanged lines that are left out.
        before, after: Numbers of the line in both texts; None where it is in one only.
        text: The line.
    """

    kind: str
    before: int | None
    after: int | None
    text: str


def lines_between(before: str, after: str) -> list[Line]:
    """The difference of two texts; empty when there is none."""
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        return []
    found: list[Line] = []
    for tag, i1, i2, j1, j2 in _steps(old, new):
        if tag == "equal":
            found += [Line("same", i1 + n + 1, j1 + n + 1, old[i1 + n]) for n in range(i2 - i1)]
        else:
            found += [Line("removed", n + 1, None, old[n]) for n in range(i1, i2)]
            found += [Line("added", None, n + 1, new[n]) for n in range(j1, j2)]
    return _shortened(found)


def _steps(old: list[str], new: list[str]) -> Sequence[tuple[str, int, int, int, int]]:
    if max(len(old), len(new)) <= LINES_MAX:
        return list(SequenceMatcher(None, old, new, autojunk=True).get_opcodes())
    # In a long text what is the same at both ends is enough.
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    i2, j2 = len(old) - last, len(new) - last
    return [("equal", 0, first, 0, first), ("replace", first, i2, first, j2), ("equal", i2, len(old), j2, len(new))]


def _shortened(lines: list[Line]) -> list[Line]:
    found: list[Line] = []
    run: list[Line] = []
    for line in [*lines, None]:
        if line is not None and line.kind == "same":
            run.append(line)
            continue
        head = _CONTEXT if found else 0
        tail = _CONTEXT if line is not None else 0
        if len(run) > head + tail + 1:
            number = len(run) - head - tail
            found += run[:head]
            found.append(Line("gap", None, None, f"{number} unchanged lines"))
            found += run[len(run) - tail :]
        else:
            found += run
        run = []
        if line is not None:
            found.append(line)
    return found[: 2 * LINES_MAX]


def patch_between(before: Any, after: Any) -> list[dict[str, Any]]:
    """A JSON patch that makes one document of another."""
    found: list[dict[str, Any]] = []
    _compare(before, after, "", found, 0)
    if len(found) > _OPERATIONS_MAX:
        return [{"op": "replace", "path": "", "value": after}]
    return found


def _compare(before: Any, after: Any, path: str, found: list[dict[str, Any]], depth: int) -> None:
    if len(found) > _OPERATIONS_MAX or _is_same(before, after):
        return
    if depth < _DEPTH_MAX and isinstance(before, dict) and isinstance(after, dict):
        found += [{"op": "remove", "path": _step(path, name)} for name in before if name not in after]
        for name, value in after.items():
            if name in before:
                _compare(before[name], value, _step(path, name), found, depth + 1)
            else:
                found.append({"op": "add", "path": _step(path, name), "value": value})
    elif depth < _DEPTH_MAX and isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            _compare(old, new, f"{path}/{index}", found, depth + 1)
    else:
        found.append({"op": "replace", "path": path, "value": after})


def _is_same(one: Any, other: Any) -> bool:
    # 1, 1.0 and true are equal in Python, and three things in JSON.
    return one == other and json.dumps(one) == json.dumps(other)


def _step(path: str, name: str) -> str:
    return f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
