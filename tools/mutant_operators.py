"""Which mutants a module has, and what its source is with one of them.

The operators are mutmut's, but for those that change texts: what an error says is not what the tests are asked about.
Two are added, for faults that these cannot make: a call that is forgotten, and a condition the wrong way round. Only
bodies of functions are changed; a constant of a module stands for itself, and the tests name it.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, Final

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

ROOT: Final = Path(__file__).resolve().parents[1]

#: mutmut's operators that change texts, or names that only texts have.
ABOUT_TEXTS: Final = (mutators.operator_string, mutators.operator_dict_arguments)
#: Calls whose arguments say nothing about what a program does: types, and lengths (mutmut leaves these alone too).
LEFT_ALONE: Final = frozenset({"len", "isinstance", "cast"})
#: Objects whose methods write logs.
LOGGERS: Final = frozenset({"_log", "log", "logger", "_logger"})
#: Functions that make texts for people.
TEXT_FUNCTIONS: Final = frozenset({"__repr__", "__str__"})

Operator = Callable[[Any], Iterable[cst.CSTNode]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one function."""

    module: str
    function: str
    #: Which of the functions of that name; a property has two.
    occurrence: int
    operator: str
    #: Which of the changes of that function, in the order of its source.
    number: int
    #: A digest of all of the above and of the function's source: it outlives a move to other lines.
    key: str
    #: Where the statement begins, and where the change is, in the source as it stands.
    first_line: int
    line: int

    def place(self, seed: int) -> str:
        """Where it stands in the order that a seed draws."""
        return hashlib.sha256(f"{seed} {self.key}".encode()).hexdigest()


def drop_statement(node: cst.SimpleStatementLine) -> Iterator[cst.CSTNode]:
    """A call that nobody's value waits for, or an error that is raised, is forgotten."""
    if len(node.body) != 1:
        return
    statement = node.body[0]
    if isinstance(statement, cst.Raise) or (
        isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call | cst.Await)
    ):
        yield node.with_changes(body=[cst.Pass()])


def negate_condition(node: cst.If | cst.While | cst.CompIf) -> Iterator[cst.CSTNode]:
    """A condition the wrong way round, unless it is a comparison or a negation: mutmut turns these."""
    if not isinstance(node.test, cst.Comparison | cst.UnaryOperation):
        inner = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.with_changes(test=cst.UnaryOperation(cst.Not(), inner))


def assigned_none(node: cst.Assign | cst.AnnAssign) -> Iterator[cst.CSTNode]:
    """mutmut's, but for None that becomes an empty text: hardly any code tells these apart."""
    if not (isinstance(node.value, cst.Name) and node.value.value == "None"):
        yield from mutators.operator_assignment(node)


def argument_left_out(node: cst.Call) -> Iterator[cst.CSTNode]:
    """What may have a default is left out: a named argument, or the last one. Others end in a TypeError at once."""
    for place, argument in enumerate(node.args):
        if not argument.star and (argument.keyword is not None or place == len(node.args) - 1):
            yield node.with_changes(args=[*node.args[:place], *node.args[place + 1 :]])


def _operators() -> list[tuple[type, Operator]]:
    chosen: list[tuple[type, Operator]] = []
    for kind, operator in mutators.mutation_operators:
        if operator is mutators.operator_assignment:
            chosen.append((kind, assigned_none))
        elif operator is mutators.operator_arg_removal:
            chosen.append((kind, argument_left_out))
        elif operator not in ABOUT_TEXTS:
            chosen.append((kind, operator))
    chosen.append((cst.SimpleStatementLine, drop_statement))
    chosen += [(kind, negate_condition) for kind in (cst.If, cst.While, cst.CompIf)]
    return chosen


OPERATORS: Final = _operators()


def _is_left_alone(node: cst.CSTNode) -> bool:
    if isinstance(
        node, cst.Annotation | cst.Decorator | cst.Parameters | cst.FormattedString | cst.Raise | cst.BaseString
    ):
        return True
    if not isinstance(node, cst.Call):
        return False
    called = node.func
    if isinstance(called, cst.Attribute):
        return isinstance(called.value, cst.Name) and called.value.value in LOGGERS
    return isinstance(called, cst.Name) and called.value in LEFT_ALONE


def _writes_log(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], cst.Expr):
        return isinstance(node.body[0].value, cst.Call) and _is_left_alone(node.body[0].value)
    return False


def _nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if _writes_log(node):
        return
    yield node
    for child in node.children:
        if not _is_left_alone(child):
            yield from _nodes(child)


def _changes(function: cst.FunctionDef) -> Iterator[tuple[str, cst.CSTNode, cst.CSTNode]]:
    for node in _nodes(function.body):
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                name = getattr(operator, "__name__", "?").removeprefix("operator_")
                for changed in operator(node):
                    yield name, node, changed


def _functions(body: Iterable[cst.CSTNode], prefix: str = "") -> Iterator[tuple[str, cst.FunctionDef]]:
    for node in body:
        if isinstance(node, cst.FunctionDef):
            if node.name.value not in TEXT_FUNCTIONS:
                yield prefix + node.name.value, node
        elif isinstance(node, cst.ClassDef):
            yield from _functions(node.body.body, f"{prefix}{node.name.value}.")


class Source:
    """One module: its functions, and what its text is with one of its mutants."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        self.path = path
        self.name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
        wrapper = MetadataWrapper(cst.parse_module(path.read_text() if text is None else text), unsafe_skip_copy=True)
        self.tree = wrapper.module
        self._positions = wrapper.resolve(PositionProvider)
        self._functions: dict[tuple[str, int], cst.FunctionDef] = {}
        for name, node in _functions(self.tree.body):
            occurrence = sum(known == name for known, _ in self._functions)
            self._functions[name, occurrence] = node

    def mutants(self) -> Iterator[Mutant]:
        """All mutants, in the order of the source."""
        for (function, occurrence), node in self._functions.items():
            # What the function does, without its comments: rewording one makes no mutant a new one.
            digest = ast.dump(ast.parse(_dedented(self.tree.code_for_node(node))))
            for number, (operator, before, _) in enumerate(_changes(node)):
                whole = f"{self.name} {function} {occurrence} {operator} {number} {digest}"
                key = hashlib.sha256(whole.encode()).hexdigest()[:16]
                line = self._positions[before].start.line
                first_line = self._statement_line(node, line)
                yield Mutant(self.name, function, occurrence, operator, number, key, first_line, line)

    def mutated(self, mutant: Mutant) -> str:
        """The text of the module with this mutant."""
        node = self._functions[mutant.function, mutant.occurrence]
        for number, (_, before, after) in enumerate(_changes(node)):
            if number == mutant.number:
                changed = self.tree.deep_replace(before, after)
                assert isinstance(changed, cst.Module)
                return str(changed.code)
        raise KeyError(mutant)

    def _statement_line(self, function: cst.FunctionDef, line: int) -> int:
        """Where the statement begins that this line belongs to: what coverage knows a line by."""
        best = int(self._positions[function].start.line)
        for start, end in self._spans(function):
            if best <= start <= line <= end:
                best = start
        return best

    @cache  # noqa: B019 - sources live as long as the program
    def _spans(self, function: cst.FunctionDef) -> tuple[tuple[int, int], ...]:
        found = []
        for node in _nodes(function.body):
            if isinstance(node, cst.BaseStatement) and node in self._positions:
                place = self._positions[node]
                found.append((place.start.line, place.end.line))
        return tuple(sorted(found))


@cache
def source_of(module: str) -> Source:
    """A module of the repository, read and parsed once."""
    return Source(ROOT / module)


def _dedented(code: str) -> str:
    lines = code.strip("\n").split("\n")
    if not lines[0].startswith((" ", "\t")):
        return code
    return "if True:\n" + code


def code_of(module: CodeType, function: str, occurrence: int) -> CodeType:
    """The code of one function in the code of its module."""
    found = [code for code in _codes(module) if code.co_qualname == function]
    return found[occurrence]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
