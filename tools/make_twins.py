"""Write the synchronous twins of the client side (docs/decisions/0016-generated-synchronous-form.md).

Every module of ``src/duobus/ha/aio`` becomes one of the same name in ``src/duobus/ha/sync``, but for those that are
written by hand on both sides; and so for ``src/duobus/relay``. The text is edited at the places that the syntax tree
names, so that comments and docstrings come along; then ruff removes imports that nobody needs any more, and formats.

    make twins                                   write them
    python tools/make_twins.py --check           only tell whether they are up to date
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
#: Packages of the client side whose folder ``aio`` has a twin ``sync``.
PACKAGES: Final = ("ha", "relay")
#: What has no counterpart in the other world, and is written by hand on both sides.
BY_HAND: Final = frozenset({"__init__.py", "connections.py", "message_sockets.py"})

#: Whole identifiers, in code.
NAMES: Final = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "AsyncIterable": "Iterable",
    "AsyncIterator": "Iterator",
    "AsyncTokenCredential": "TokenCredential",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "StopAsyncIteration": "StopIteration",
    "aclose": "close",
}
#: Names of modules, in imports; longest first.
MODULES: Final = (
    ("azure.core.credentials_async", "azure.core.credentials"),
    ("azure.servicebus.aio.management", "azure.servicebus.management"),
    ("azure.servicebus.aio", "azure.servicebus"),
    ("duobus.concurrency import aio", "duobus.concurrency import sync"),
    ("duobus.ha.aio", "duobus.ha.sync"),
    ("duobus.relay.aio", "duobus.relay.sync"),
)
#: Words of docstrings and comments.
WORDS: Final = (
    (r"``async with``", "``with``"),
    (r"azure\.servicebus\.aio", "azure.servicebus"),
    (r"for one task(\s+)at a time", r"for one thread\1at a time"),
    (r"as the SDK's are for one task", "as the SDK's are for one thread"),
)
HEAD: Final = "# Generated from duobus/{package}/aio/{name} by `make twins`; change that one.\n"
_DECLARED: Final = ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith


class Edit(NamedTuple):
    """Bytes of the source that become others."""

    start: int
    end: int
    text: bytes


class TwinError(Exception):
    """The source holds something that has no synchronous form."""


def twin_of(source: str, name: str, package: str = "ha") -> str:
    """Return the synchronous form of a module, before ruff.

    Raises:
        TwinError: It uses asyncio itself.
    """
    raw = source.encode()
    starts = [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    edits = [edit for node in ast.walk(ast.parse(source)) for edit in _edits(node, raw, starts, name)]
    return HEAD.format(name=name, package=package) + _words(_applied(raw, edits).decode())


def _edits(node: ast.AST, raw: bytes, starts: list[int], name: str) -> list[Edit]:
    """Return what changes at one node."""

    def span(part: Any) -> tuple[int, int]:
        return starts[part.lineno - 1] + part.col_offset, starts[part.end_lineno - 1] + part.end_col_offset

    if isinstance(node, (ast.Import, ast.ImportFrom)):
        start, end = span(node)
        text = raw[start:end].decode()
        if re.search(r"\basyncio\b", text):
            raise TwinError(f"{name}:{node.lineno}: asyncio has no twin; use duobus.concurrency.aio")
        return _modules(text, start)
    if isinstance(node, ast.Await):
        return [Edit(span(node)[0], span(node.value)[0], b"")]
    if isinstance(node, _DECLARED):
        start, _ = span(node)
        return [Edit(start, start + len(b"async "), b"")]
    if isinstance(node, ast.comprehension) and node.is_async:
        raise TwinError(f"{name}:{node.target.lineno}: a loop over an asynchronous iterator within an expression")
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Coroutine":
        assert isinstance(node.slice, ast.Tuple)
        start, end = span(node)
        inner_start, inner_end = span(node.slice.elts[-1])
        return [Edit(start, inner_start, b""), Edit(inner_end, end, b"")]
    return []


def _modules(text: str, start: int) -> list[Edit]:
    for old, new in MODULES:
        found = re.search(rf"\b{re.escape(old)}\b", text)
        if found:
            return [Edit(start + found.start(), start + found.end(), new.encode())]
    return []


def _applied(raw: bytes, edits: list[Edit]) -> bytes:
    parts, done = [], 0
    for edit in sorted(edits):
        if edit.start < done:
            raise TwinError(f"two edits of the same place: {raw[edit.start : edit.end]!r}")
        parts += [raw[done : edit.start], edit.text]
        done = edit.end
    return b"".join([*parts, raw[done:]])


def _words(text: str) -> str:
    for old, new in NAMES.items():
        text = re.sub(rf"\b{old}\b", new, text)
    for pattern, new in WORDS:
        text = re.sub(pattern, new, text)
    return text


def _tidied(text: str, path: Path) -> str:
    """Let ruff remove what is unused, sort imports, and format; as it would with the file in its place."""
    for arguments in (["check", "--quiet", "--fix-only", "-"], ["format", "--quiet", "-"]):
        ruff = [str(Path(sys.executable).with_name("ruff")), *arguments, "--stdin-filename", str(path)]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def target_of(package: str) -> Path:
    """The folder of a package's twins."""
    return ROOT / "src" / "duobus" / package / "sync"


def twins() -> dict[Path, str]:
    """Return every twin with its text."""
    found = {}
    for package in PACKAGES:
        target = target_of(package)
        for source in sorted(target.with_name("aio").glob("*.py")):
            if source.name not in BY_HAND:
                path = target / source.name
                found[path] = _tidied(twin_of(source.read_text(), source.name, package), path)
    return found


def stale() -> list[str]:
    """Return the names of twins that are not what they would be if they were written now."""
    there = twins()
    found = [path.name for path, text in there.items() if not path.exists() or path.read_text() != text]
    for package in PACKAGES:
        target = target_of(package)
        known = {path.name for path in there if path.parent == target} | BY_HAND
        found += [path.name for path in target.glob("*.py") if path.name not in known]
    return found


def main() -> int:
    """Write the twins, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    if parser.parse_args().check:
        names = stale()
        print(f"stale, run make twins: {', '.join(names)}" if names else "all twins are up to date")
        return bool(names)
    for path, text in twins().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
