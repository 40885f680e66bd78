"""Hold the documentation to account: links, options, metrics, numbers of decisions, the list of pages.

    python tools/check_docs.py [FOLDER]     the project's root by default

Prints one line per fault and ends with status 1 when there is any:

- a relative link of a Markdown file leads to no file, or to no heading of it;
- an option of the command line, or a metric, that no page in ``docs/reference`` names;
- a decision whose number is missing, doubled, or not the one its title begins with;
- a page below docs, decisions among them, that docs/README.md does not list;
- a decision that docs/README.md lists under another title than its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote

import click

_FENCES = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[[^\]\n]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$", re.MULTILINE)
_DECISION = re.compile(r"(\d{4})-[a-z0-9-]+\.md")


def check_links(root: Path) -> Iterator[str]:
    """Yield a fault for every relative link, in any page, that leads nowhere."""
    for page in _pages(root):
        text = _CODE.sub("", _FENCES.sub("", page.read_text()))
        for target in _LINK.findall(text):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            path, _, anchor = unquote(target).partition("#")
            found = (page.parent / path).resolve() if path else page
            if not found.exists():
                yield f"{page.relative_to(root)}: the link {target} leads to no file"
            elif anchor and found.suffix == ".md" and anchor not in anchors(found.read_text()):
                yield f"{page.relative_to(root)}: the link {target} leads to no heading"


def check_reference(root: Path, names: Iterable[str], kind: str) -> Iterator[str]:
    """Yield a fault for every name that no page of the reference mentions."""
    reference = "\n".join(page.read_text() for page in sorted((root / "docs" / "reference").glob("**/*.md")))
    for name in names:
        # "--port" does not count as named where only "--port-range" stands.
        if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", reference):
            yield f"docs/reference: the {kind} {name} is not described"


def check_listed(root: Path) -> Iterator[str]:
    """Yield a fault for every page below docs that docs/README.md does not link to."""
    index = root / "docs" / "README.md"
    text = _CODE.sub("", _FENCES.sub("", index.read_text())) if index.exists() else ""
    listed = {(index.parent / unquote(target).partition("#")[0]).resolve() for target in _LINK.findall(text)}
    for page in sorted((root / "docs").glob("**/*.md")):
        if page != index and page.resolve() not in listed:
            yield f"{page.relative_to(root)}: docs/README.md does not list it"


def check_decisions(root: Path) -> Iterator[str]:
    """Yield a fault for every decision that is not numbered in order, or whose number is not its own."""
    numbers: list[int] = []
    for page in sorted((root / "docs" / "decisions").glob("*.md")):
        if page.stem.lower() in {"readme", "index"}:
            continue
        match = _DECISION.fullmatch(page.name)
        if match is None:
            yield f"docs/decisions/{page.name}: the name does not begin with a number of four digits"
            continue
        numbers.append(int(match[1]))
        if not page.read_text().startswith(f"# {match[1]} "):
            yield f"docs/decisions/{page.name}: the title does not begin with {match[1]}"
    for number in sorted(set(range(1, max(numbers, default=0) + 1)) - set(numbers)):
        yield f"docs/decisions: number {number:04d} is missing"
    for number in sorted({number for number in numbers if numbers.count(number) > 1}):
        yield f"docs/decisions: number {number:04d} is given twice"


def check_titles(root: Path) -> Iterator[str]:
    """Yield a fault for every decision that docs/README.md lists under another title than its own."""
    index = root / "docs" / "README.md"
    text = index.read_text() if index.exists() else ""
    for title, name in re.findall(r"\[([^\]\n]*)\]\(decisions/(\d{4}-[a-z0-9-]+\.md)\)", text):
        page = root / "docs" / "decisions" / name
        if page.exists() and not page.read_text().startswith(f"# {title}\n"):
            yield f"docs/decisions/{name}: docs/README.md lists it under another title"


def anchors(text: str) -> set[str]:
    """Return the anchors that a page's headings get where it is shown (lower case, hyphens for blanks)."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCES.sub("", text)):
        plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")
        anchor, number = plain, 0
        while anchor in found:
            number += 1
            anchor = f"{plain}-{number}"
        found.add(anchor)
    return found


def option_names(command: click.Command, context: click.Context) -> set[str]:
    """Return the long options of a command and of all its sub-commands."""
    names = {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--")
    }
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            names |= option_names(child, context)
    return names


def main(root: Path) -> int:
    """Print the faults below ``root`` and return the exit status."""
    # Here, so that the functions above can be used without the package.
    from duobus.cli.main import main as command
    from duobus.telemetry.metrics import METRICS

    options = option_names(command, click.Context(command))
    faults = [
        *check_links(root),
        *check_reference(root, sorted(options), "option"),
        *check_reference(root, [metric.name for metric in METRICS], "metric"),
        *check_decisions(root),
        *check_listed(root),
        *check_titles(root),
    ]
    for fault in faults:
        print(fault)
    pages = len(list(_pages(root)))
    print(f"{pages} pages, {len(options)} options, {len(METRICS)} metrics: {len(faults)} faults")
    return 1 if faults else 0


def _pages(root: Path) -> Iterator[Path]:
    yield from sorted(root.glob("*.md"))
    yield from sorted((root / "docs").glob("**/*.md"))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]))
