"""Measure how the code is laid out and named, each figure against its limit.

    python tools/house.py [FOLDER]      the project's root by default
    python tools/house.py --where       with the places of every figure that is not at its limit yet

Prints one line per figure and ends with status 1 when a figure is above its limit. The program reads files as text and
as syntax trees, and imports and runs nothing of the project.

Why each limit is what it is says docs/decisions/0054-rooms-and-words.md.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import click

FILES_PER_FOLDER: Final = 15
LINES_PER_FILE: Final = 800
#: A module with fewer lines is hardly worth a file; packages and their entry points are.
LINES_OF_SMALL: Final = 40
#: Modules that know each other's types are read together. Two are a pair; more have to be few.
RING: Final = 2

#: The client's side, which meets the server on the wire only, and which rooms of the server it may use all the same.
CLIENT: Final = frozenset({"ha", "relay", "arrow", "spark", "pipeline", "console", "dead_letters"})
CLIENT_MAY_USE: Final = CLIENT | {"model", "telemetry", "concurrency", "clock", "errors", "file_sync"}
#: Work on dead letters follows the server's language of filters, and writes values in the form of the wire.
DEAD_LETTERS_MAY_USE: Final = frozenset({"rules", "codec"})
#: The one module of the server that a client may use beside these: it signs tokens, which the SDK does for itself only.
CLIENT_MAY_SIGN: Final = ("duobus.console.namespace.operations", "duobus.auth.sas_tokens")
#: Rooms of the server that may use the client's side: its commands, and what users' tests need.
MAY_USE_CLIENT: Final = frozenset({"cli", "testing"})

#: Words that were coined in this project and had to be explained. No name may have one of them as a part.
_COINED: Final = """
    lane lanes parcel parcels flight flights outlet outlets courier ferry crossing intake freight ledger ledgers doubt
    doubts undecided passing passed spread spreads spreading branch owning joined whereabouts resident residents convoy
    founding patience patient crew lender lenders lending lent lend accepting chill chilled shelf shelves fold folded
    unfold desk door doors essence planted graves grave bury buried burying burial dock visit landing unloading unload
    errand ticket tickets claimer revived worn lapsed stone stones abroad far mirror slices rare special specials way
    ways road mover entering reserving settling browsing crowd woken express
"""
COINED: Final = frozenset(_COINED.split())
#: Names in which such a word is a word of the field, or belongs to another program.
ALLOWED: Final = re.compile(
    r"in_?doubt|in_?flight|passed_?over|on_the_way|_the_other_way|so_far|too_far|as_far|far_future|always|anyway|halfway"
    r"|gateway|special_form|generic_visit|enable_?express|^visit_[A-Z]|^joined_at$|server_software",
    re.IGNORECASE,
)
#: A word that is coined in one place and usual in another: who looks at a web page visits the page.
USUAL: Final = {"console": frozenset({"visit"})}
#: Formats on disk keep their words for ever, in these files only.
FORMATS: Final = re.compile(r"(schema|_schema|catalog/(sqlite|postgres))\.py$")

#: Modules are named by nouns; these gerunds are nouns of the field.
_GERUNDS: Final = """
    forwarding scheduling auditing paging sharding idle_tracking pacing mapping housekeeping tracing metering
"""
GERUNDS: Final = frozenset(_GERUNDS.split())

#: Numbers that comments cite, and the page that has to have them.
NUMBERED: Final = (
    (re.compile(r"\b(I[1-9]\d?)\b(?=[ ,;:.)\]`'\"/]|$)", re.MULTILINE), "docs/reference/invariants.md"),
    (re.compile(r"\b((?:PN|PE|TL|IN|SP)\d{1,2})\b"), "docs/reference/requirements.md"),
)
_CITED_DECISION: Final = re.compile(r"\bdecision (00\d\d)\b")
#: Documents that are not in the repository: a number in them leads nowhere.
_ABSENT: Final = re.compile(
    r"\b(?:contract,? (?:chapters? )?[A-F0-9]\.?[0-9]|design,? (?:decisions? )?\d|reliability,? [A-Z]?\d"
    r"|spark-pipeline[ ,.]|performance document)"
)
#: What `aio` has with asyncio, `sync` has with threads, under the same names.
_TWIN: Final = re.compile(r"src/duobus/(?:(?:ha|relay)/sync/|concurrency/sync\.py)")
_GENERATED: Final = re.compile(r"\A# Generated from ")
_THROUGH_HANDLE: Final = re.compile(r"\b(?:handle|fragment|home|part|place|one|batch\.fragment)\.broker\.\w+")
_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")


class Figure(NamedTuple):
    """A figure, its limit, and where it comes from."""

    name: str
    value: int
    limit: int
    places: Sequence[str] = ()

    @property
    def verdict(self) -> str:
        """``ok`` or ``MISS``."""
        return "ok" if self.value <= self.limit else "MISS"


class Module(NamedTuple):
    """A file of Python.

    Attributes:
        path: From the root of the checkout, with slashes.
        name: As it is imported.
        is_generated: Another program has written it.
    """

    path: str
    name: str
    text: str
    tree: ast.Module
    is_generated: bool

    @property
    def folder(self) -> str:
        """The folder that it is in."""
        return self.path.rpartition("/")[0]

    @property
    def stem(self) -> str:
        """Its file's name without the suffix."""
        return self.path.rpartition("/")[2].removesuffix(".py")

    @property
    def room(self) -> str:
        """The package or module directly below ``duobus``; empty for what is outside."""
        parts = self.name.split(".")
        return parts[1] if parts[0] == "duobus" and len(parts) > 1 else ""

    @property
    def number_of_lines(self) -> int:
        """How long it is."""
        return self.text.count("\n")

    @property
    def is_product(self) -> bool:
        """Whether it is shipped as ``duobus`` and written by hand."""
        return self.path.startswith("src/duobus/") and not self.is_generated


class Checkout:
    """The code of a checkout: the product, the demonstration, the simulation.

    Attributes:
        root: Its folder.
        modules: By name.
        product: Those that are shipped as ``duobus`` and written by hand.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, Module] = {}
        for base in ("src/duobus", "src/duobus_demo", "simulation"):
            for path in sorted((root / base).rglob("*.py")):
                module = _read(root, path)
                self.modules[module.name] = module
        self.product = [module for module in self.modules.values() if module.is_product]

    def text(self, path: str) -> str:
        """The text of a file; empty when there is none."""
        found = self.root / path
        return found.read_text(encoding="utf-8") if found.is_file() else ""


def _read(root: Path, path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    relative = path.relative_to(root).as_posix()
    parts = relative.removeprefix("src/").removesuffix(".py").split("/")
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(relative, name, text, ast.parse(text), _GENERATED.match(text) is not None)


# -- layout -----------------------------------------------------------------------------------------------------------


def layout(checkout: Checkout) -> Iterator[Figure]:
    """Sizes of folders and files."""
    modules = checkout.modules.values()
    folders = Counter(module.folder for module in modules)
    full = [f"{folder}: {number}" for folder, number in sorted(folders.items()) if number > FILES_PER_FOLDER]
    long = [module.path for module in modules if module.number_of_lines > LINES_PER_FILE]
    small = [
        module.path
        for module in checkout.product
        if module.number_of_lines <= LINES_OF_SMALL and module.stem not in ("__init__", "__main__")
    ]
    yield Figure(f"folders of more than {FILES_PER_FOLDER} files", len(full), 0, full)
    yield Figure(f"files of more than {LINES_PER_FILE} lines", len(long), 0, long)
    yield Figure(f"modules of at most {LINES_OF_SMALL} lines", len(small), 10, small)
    yield Figure("lines of README.md", checkout.text("README.md").count("\n"), 90)
    folder = checkout.root / "tests"
    tests = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] not in "._")
    yield Figure("folders of tests", len(tests), 5, tests)
    yield Figure(
        "make test-fast missing", int(not re.search(r"^test-fast:", checkout.text("Makefile"), re.MULTILINE)), 0
    )


def walks(checkout: Checkout) -> Iterator[Figure]:
    """How far a plain send goes through the code, as ``tools/trace_walk.py`` has written it down."""
    walk: dict[str, list[str]] = json.loads(checkout.text("tests/unit/walks.json") or "{}").get("send", {})
    yield Figure("files of a plain send", len(walk), 25, list(walk))
    yield Figure("functions of a plain send", sum(map(len, walk.values())), 90)


# -- imports ----------------------------------------------------------------------------------------------------------


class Import(NamedTuple):
    """One module needs another; ``at_load``: when it is loaded, and not for its types or inside of a function only."""

    user: Module
    used: Module
    at_load: bool


def imports(checkout: Checkout) -> Iterator[Import]:
    """Yield every import of one module of the checkout by another."""
    for module in checkout.modules.values():
        package = module.name if module.stem == "__init__" else module.name.rpartition(".")[0]
        for node, at_load in _import_nodes(module.tree):
            base = _absolute(node, package)
            for alias in node.names:
                whole = checkout.modules.get(f"{base}.{alias.name}") or checkout.modules.get(base)
                if whole is not None and whole is not module:
                    yield Import(module, whole, at_load)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


#: Nodes in which an import may stand.
_HOLDS_IMPORTS: Final = (ast.stmt, ast.excepthandler, ast.match_case)


def _import_nodes(tree: ast.Module) -> Iterator[tuple[ast.ImportFrom, bool]]:
    left: list[tuple[ast.AST, bool]] = [(tree, True)]
    while left:
        node, at_load = left.pop()
        if isinstance(node, ast.ImportFrom):
            yield node, at_load
            continue
        is_later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_for_types(node)
        # Expressions have no imports in them.
        children = (child for child in ast.iter_child_nodes(node) if isinstance(child, _HOLDS_IMPORTS))
        left += [(child, at_load and not is_later) for child in children]


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def layers(checkout: Checkout) -> dict[str, int]:
    """Rooms and how deep they lie, as ``.importlinter`` has them: from the top down."""
    listed = re.search(r"\ntype = layers\nlayers =\n((?: +.*\n)+)", checkout.text(".importlinter"))
    lines = listed[1].splitlines() if listed else []
    return {room.strip().removeprefix("duobus."): depth for depth, line in enumerate(lines) for room in line.split("|")}


def upward_imports(found: Iterable[Import], depths: Mapping[str, int]) -> list[str]:
    """Imports that point up or aside, or between the server and its clients."""
    return sorted({f"{user.name} -> {used.name}" for user, used, _ in found if not _may_use(user, used, depths)})


def _may_use(user: Module, used: Module, depths: Mapping[str, int]) -> bool:
    here, there = user.room, used.room
    if not here or used.name == "duobus":
        # The demonstration and the simulation may use everything.
        return True
    if here in CLIENT:
        is_dead_letter_work = here == "dead_letters" and there in DEAD_LETTERS_MAY_USE
        return there in CLIENT_MAY_USE or is_dead_letter_work or (user.name, used.name) == CLIENT_MAY_SIGN
    if there in CLIENT:
        return here in MAY_USE_CLIENT
    return here == there or (there in depths and depths.get(here, -1) < depths[there])


def rings(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of more than one node that all lead to each other, each sorted."""
    order = _by_end(graph, sorted(graph))
    backwards: dict[str, list[str]] = defaultdict(list)
    for node, others in graph.items():
        for other in others:
            backwards[other].append(node)
    done: set[str] = set()
    found = []
    for start in reversed(order):
        if start not in done:
            group = _by_end(backwards, [start], done)
            if len(group) > 1:
                found.append(sorted(group))
    return found


def _by_end(graph: Mapping[str, Iterable[str]], starts: Iterable[str], done: set[str] | None = None) -> list[str]:
    """Nodes that can be reached and are not in ``done``, in the order in which a search in depth leaves them."""
    done = set() if done is None else done
    order: list[str] = []
    for start in starts:
        if start in done:
            continue
        done.add(start)
        open_nodes = [(start, iter(sorted(graph.get(start, ()))))]
        while open_nodes:
            node, others = open_nodes[-1]
            other = next((one for one in others if one not in done), None)
            if other is None:
                order.append(node)
                open_nodes.pop()
            else:
                done.add(other)
                open_nodes.append((other, iter(sorted(graph.get(other, ())))))
    return order


def coupling(checkout: Checkout) -> Iterator[Figure]:
    """Who needs whom."""
    found = list(imports(checkout))
    upward = upward_imports(found, layers(checkout))
    loaded: dict[str, set[str]] = defaultdict(set)
    typed: dict[str, set[str]] = defaultdict(set)
    for user, used, at_load in found:
        if user.name.startswith("duobus."):
            typed[user.name].add(used.name)
        if at_load:
            loaded[user.name].add(used.name)
    when_loaded = [" ".join(ring) for ring in rings(loaded)]
    large = [ring for ring in rings(typed) if len(ring) > RING]
    across = [" ".join(ring) for ring in large if len({name.split(".")[1] for name in ring}) > 1]
    handles = [
        f"{module.path}: {match[0]}"
        for module in checkout.product
        if module.room in ("broker", "gateway", "cluster") and module.stem not in ("handle", "fragment_handle")
        for match in _THROUGH_HANDLE.finditer(module.text)
    ]
    yield Figure("imports against the layers", len(upward), 0, upward)
    yield Figure("rings of modules when they are loaded", len(when_loaded), 0, when_loaded)
    yield Figure(
        f"rings of more than {RING} modules, types included", len(large), 6, [" ".join(ring) for ring in large]
    )
    yield Figure("such rings across rooms", len(across), 0, across)
    yield Figure("uses of a fragment's message broker through its handle", len(handles), 0, handles)


# -- names ------------------------------------------------------------------------------------------------------------


def naming(checkout: Checkout) -> Iterator[Figure]:
    """What things are called."""
    seen: dict[tuple[str, str], list[str]] = defaultdict(list)
    defined: list[str] = []
    uses: Counter[str] = Counter()
    for module in checkout.modules.values():
        if module.is_generated:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if isinstance(node, ast.ClassDef) and node.name[0] != "_" and not _TWIN.match(module.path):
                    seen[module.room or module.name.split(".")[0], node.name].append(module.path)
                if not FORMATS.search(module.path) and _coined(node.name, module):
                    defined.append(f"{module.path}: {node.name}")
            elif module.is_product and not FORMATS.search(module.path):
                uses.update(_coined(_name_of(node), module))
        defined += [f"{module.path}: the module" for _ in _coined(module.stem, module)]
        defined += [f"{module.path}: the folder {part}" for part in module.folder.split("/") if coined_words(part)]
    twice = [f"{room}: {name} in {', '.join(where)}" for (room, name), where in sorted(seen.items()) if len(where) > 1]
    gerunds = [module.path for module in checkout.product if module.stem.endswith("ing") and module.stem not in GERUNDS]
    yield Figure("public classes that stand twice in a room", len(twice), 0, twice)
    yield Figure("definitions, modules and folders with a coined word", len(defined), 0, sorted(defined))
    yield Figure("uses of coined words in names", uses.total(), 0, [f"{word}: {n}" for word, n in uses.most_common()])
    yield Figure("modules named by a gerund", len(gerunds), 0, gerunds)


@cache
def coined_words(name: str) -> frozenset[str]:
    """The coined words that a name is made of."""
    return frozenset() if ALLOWED.search(name) else COINED & {word.lower() for word in _WORD.findall(name)}


def _coined(name: str, module: Module) -> frozenset[str]:
    return coined_words(name) - USUAL.get(module.room, frozenset())


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.arg or "" if isinstance(node, ast.arg | ast.keyword) else ""


# -- texts ------------------------------------------------------------------------------------------------------------


def dead_citations(checkout: Checkout) -> list[str]:
    """Citations of a number that its page does not have, or of a document that is not in the repository."""
    pages = [(pattern, page, checkout.text(page)) for pattern, page in NUMBERED]
    decisions = {path.name[:4] for path in (checkout.root / "docs" / "decisions").glob("*.md")}
    dead = []
    for module in checkout.modules.values():
        for pattern, page, text in pages:
            for cited in sorted(set(pattern.findall(module.text))):
                if not re.search(rf"(?<!\w){cited}(?!\w)", text):
                    dead.append(f"{module.path}: {cited} is not in {page}")
        dead += [f"{module.path}: decision {n}" for n in _CITED_DECISION.findall(module.text) if n not in decisions]
        dead += [f"{module.path}: {match[0]}" for match in _ABSENT.finditer(module.text)]
    return dead


def texts(checkout: Checkout) -> Iterator[Figure]:
    """What is cited, and what is said around the types."""
    dead = dead_citations(checkout)
    yield Figure("citations of what the repository does not hold", len(dead), 0, dead)
    for name, pattern, folder, limit in (
        ("type: ignore in broker and fragment", r"type: ignore", r"src/duobus/(broker|fragment)/", 2),
        ("assert isinstance in the product", r"assert isinstance", r"src/duobus/", 20),
        ("isinstance in fragment/fragment.py", r"isinstance\(", r"src/duobus/fragment/fragment\.py", 0),
        ("isinstance in gateway/amqp", r"isinstance\(", r"src/duobus/gateway/amqp/", 60),
    ):
        modules = [module for module in checkout.product if re.match(folder, module.path)]
        counted = {module.path: len(re.findall(pattern, module.text)) for module in modules}
        places = [f"{path}: {number}" for path, number in counted.items() if number]
        yield Figure(name, sum(counted.values()), limit, places)


def figures(checkout: Checkout) -> list[Figure]:
    """All figures, in the order in which they are printed."""
    return [figure for group in (layout, walks, coupling, naming, texts) for figure in group(checkout)]


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".")
@click.option("--where", is_flag=True, help="Print the places of every figure that is above its limit.")
def main(folder: Path, where: bool) -> None:
    """Print the figures; end with status 1 when one of them is missed."""
    found = figures(Checkout(folder.resolve()))
    width = max(len(figure.name) for figure in found)
    for figure in found:
        print(f"{figure.verdict:4} {figure.name:{width}} {figure.value:5} of at most {figure.limit}")
        if where and figure.verdict != "ok":
            for place in figure.places:
                print(f"         {place}")
    sys.exit(any(figure.verdict == "MISS" for figure in found))


if __name__ == "__main__":
    main()
