"""Tree to closures, once for each rule (Azure: SQL filter syntax).

A closure takes a MessageView whose sections were decoded and returns a value; None is unknown. What the compiler knows
beforehand it doesn't leave to the closure: whether a part can fail at all, whether it can only be a boolean, and which
sections it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from duobus.rules.language import closures
from duobus.rules.language.operators import COMPARISONS, calculate, kind_of, signed
from duobus.rules.language.parser import at
from duobus.rules.language.tree import (
    Arithmetic,
    Compare,
    Constant,
    Exists,
    In,
    IsNull,
    Like,
    Logic,
    NewId,
    Node,
    Not,
    Parameter,
    Property,
    PropertyOf,
    Signed,
)
from duobus.rules.like import SHORT, STEP, Pattern, PatternError
from duobus.rules.message_view import casefold_name
from duobus.rules.system_properties import APPLICATION_SECTION, DRAWS_ID, PLACES, READS_ANY, section_of, traits_of

Run = Callable[[Any], Any]

#: Looks at all of a long text that a name, a joined text and a pattern out of the message cost at most, about.
NAME_STRAIN: Final = 20
JOIN_STRAIN: Final = 4
PATTERN_STRAIN: Final = 256
#: Parts of an expression that LIKE takes as long as, with a short text.
LIKE_STEPS: Final = 20

#: No value at all: NULL is one.
_VARIES: Final = object()


class Code:
    """A compiled part of an expression.

    Attributes:
        run: MessageView to value.
        can_fail: It may raise EvaluationError once the sections are there.
        is_boolean: Its values are True, False and None only.
        sections: What it reads, as bits of ``duobus.rules.system_properties``.
        names: Folded names of the user properties that it looks at; computed ones are told by a trait.
        traits: What else it looks at, as bits of the same module.
        steps: Of how many parts it consists, itself included; LIKE counts for several.
        strain: How often it looks at all of a long text, at most (``duobus.rules.effort``).
        value: Its value where that is constant.
    """

    __slots__ = ("can_fail", "is_boolean", "names", "run", "sections", "steps", "strain", "traits", "value")

    def __init__(
        self,
        run: Run,
        *parts: Code,
        can_fail: bool = False,
        is_boolean: bool = False,
        strain: int = 0,
        steps: int = 1,
        value: Any = _VARIES,
    ) -> None:
        self.run = run
        self.can_fail: bool = can_fail or any(part.can_fail for part in parts)
        self.is_boolean = is_boolean
        self.sections = self.traits = 0
        self.steps = steps
        self.strain = strain
        self.names: frozenset[str] = frozenset()
        for part in parts:
            self.steps += part.steps
            self.strain += part.strain
            self.names |= part.names
            self.sections |= part.sections
            self.traits |= part.traits
        self.value = value

    @property
    def is_constant(self) -> bool:
        """Whether its value is known."""
        return self.value is not _VARIES


def compile_filter(node: Node, parameters: Mapping[str, Any]) -> Code:
    """Compile a whole filter: the message matches where ``run`` gives a true value.

    Raises:
        ArgumentInvalid: An unknown system property or parameter, or a constant of the wrong type.
    """
    compiler = Compiler(parameters)
    code = compiler.condition(node)
    if code.is_boolean:
        return code
    return _with(Code(closures.demand_boolean(code.run, "the filter"), code, can_fail=True, is_boolean=True))


def _with(code: Code, sections: int = 0, traits: int = 0) -> Code:
    code.sections |= sections
    code.traits |= traits
    return code


def _naming(code: Code, name: str) -> Code:
    code.sections |= APPLICATION_SECTION
    code.names |= {casefold_name(name)}
    return code


def constant(value: Any) -> Code:
    """Return the code of a constant."""
    return Code(lambda _: value, is_boolean=value is None or type(value) is bool, value=value)


class Compiler:
    """Compiles the nodes of one expression.

    Args:
        parameters: Names without ``@``, in lower case, to values.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters
        self._by_kind: dict[type, Callable[[Any], Code]] = {
            Constant: lambda node: constant(node.value),
            Parameter: self._parameter,
            Property: self.property,
            NewId: lambda node: _with(Code(lambda message: message.new_id()), traits=DRAWS_ID),
            PropertyOf: self._property_of,
            Signed: self._signed,
            Arithmetic: self._arithmetic,
            Compare: self._compare,
            In: self._in,
            Like: self._like,
            IsNull: self._is_null,
            Exists: self._exists,
            Not: self._not,
            Logic: self._logic,
        }

    def value(self, node: Node) -> Code:
        """Compile a node whose value counts, unknown and false told apart."""
        return self._by_kind[type(node)](node)

    def condition(self, node: Node) -> Code:
        """Compile a node of which only counts whether it is true."""
        if isinstance(node, Logic):
            codes = [self.condition(operand) for operand in node.operands]
            if all(code.is_boolean and not code.can_fail for code in codes):
                runs = [code.run for code in codes]
                return Code(
                    closures.all_true(runs) if node.is_and else closures.any_true(runs), *codes, is_boolean=True
                )
        return self.value(node)

    def _parameter(self, node: Parameter) -> Code:
        name = node.name.lower()
        if name not in self._parameters:
            raise at(node.position, f"the parameter '@{node.name}' has no value")
        return constant(self._parameters[name])

    def property(self, node: Property) -> Code:
        """Compile the reading of a property."""
        if node.is_system:
            place = self.place(node)
            return _with(Code(lambda message: message.system[place]), section_of(place), traits_of(place))
        return _naming(Code(closures.read_user(node.name)), node.name)

    @staticmethod
    def place(node: Property) -> int:
        """Return the place of a system property; raises ArgumentInvalid for one that does not exist."""
        place = PLACES.get(node.name.lower())
        if place is None:
            raise at(node.position, f"'sys.{node.name}' is no system property; user properties are written without sys")
        return place

    def _property_of(self, node: PropertyOf) -> Code:
        name = self.value(node.name)
        if name.is_constant:
            if type(name.value) is not str:
                raise at(node.position, f"property() takes the name as a string, not {kind_of(name.value)}")
            return _naming(Code(closures.read_user(name.value)), name.value)
        return _with(
            Code(closures.read_computed(name.run), name, can_fail=True, strain=NAME_STRAIN),
            APPLICATION_SECTION,
            READS_ANY,
        )

    def _signed(self, node: Signed) -> Code:
        code = self.value(node.value)
        run, sign = code.run, node.sign
        if code.is_constant and type(code.value) in (int, float):
            return constant(signed(sign, code.value))
        return Code(lambda message: signed(sign, run(message)), code, can_fail=True)

    def _arithmetic(self, node: Arithmetic) -> Code:
        first = self.value(node.first)
        rest = [(sign, self.value(value)) for sign, value in node.rest]
        if len(rest) == 1:
            run, sign, other = first.run, rest[0][0], rest[0][1].run

            def calculated(message: Any) -> Any:
                value = calculate(sign, run(message), other(message))
                if type(value) is str and len(value) > SHORT:
                    message.texts.spend(STEP + len(value) // closures.AT_ONCE)
                return value

            return Code(calculated, first, rest[0][1], can_fail=True, strain=JOIN_STRAIN)
        chain = closures.chain(first.run, [(sign, code.run) for sign, code in rest])
        return Code(chain, first, *(code for _, code in rest), can_fail=True, strain=JOIN_STRAIN * len(rest))

    def _compare(self, node: Compare) -> Code:
        left, right = self.value(node.left), self.value(node.right)
        sign = node.sign
        if left.is_constant and right.is_constant:
            return constant(COMPARISONS[sign](left.value, right.value))
        if left.is_constant:
            node_left, left, right = node.right, right, left
            sign = closures.MIRRORED[sign]
        else:
            node_left = node.left
        run = None
        if right.is_constant:
            name = node_left.name if isinstance(node_left, Property) and not node_left.is_system else None
            run = closures.compare_constant(sign, left.run, name, right.value)
        strain = 0
        if run is None:
            strain = 1
            run = closures.compare_values(sign, left.run, right.run)
        return Code(run, left, right, is_boolean=True, strain=strain)

    def _in(self, node: In) -> Code:
        value = self.value(node.value)
        items = [self.value(item) for item in node.items]
        run = None
        if all(item.is_constant for item in items):
            run = closures.in_constants(value.run, [item.value for item in items])
        strain = 0
        if run is None:
            strain = len(items)
            run = closures.in_items(value.run, [item.run for item in items])
        return self._negated(Code(run, value, *items, is_boolean=True, strain=strain), node.is_negated)

    def _like(self, node: Like) -> Code:
        value, pattern = self.value(node.value), self.value(node.pattern)
        escape = constant(None) if node.escape is None else self.value(node.escape)
        for name, code in (("pattern", pattern), ("escape character", escape)):
            if code.is_constant and code.value is not None and type(code.value) is not str:
                raise at(node.position, f"the {name} of LIKE is a string, not {kind_of(code.value)}")
        if pattern.is_constant and escape.is_constant:
            if pattern.value is None or (node.escape is not None and escape.value is None):
                unknown = closures.after(value.run)
                return Code(unknown, value, is_boolean=True)
            try:
                ready = Pattern(pattern.value, escape.value)
            except PatternError as error:
                raise at(node.position, f"{error}") from None
            found = Code(closures.like(value.run, ready), value, is_boolean=True, strain=ready.strain, steps=LIKE_STEPS)
            return self._negated(found, node.is_negated)
        run = closures.like_computed(value.run, pattern.run, None if node.escape is None else escape.run)
        found = Code(
            run, value, pattern, escape, can_fail=True, is_boolean=True, strain=PATTERN_STRAIN, steps=LIKE_STEPS
        )
        return self._negated(found, node.is_negated)

    def _is_null(self, node: IsNull) -> Code:
        code = self.value(node.value)
        run = code.run
        if node.is_negated:
            return Code(lambda message: run(message) is not None, code, is_boolean=True)
        return Code(lambda message: run(message) is None, code, is_boolean=True)

    def _exists(self, node: Exists) -> Code:
        if node.property.is_system:
            place = self.place(node.property)
            exists = Code(lambda message: message.system[place] is not None, is_boolean=True)
            return _with(exists, section_of(place), traits_of(place))
        name, low = node.property.name, node.property.name.lower()
        return _naming(Code(lambda message: name in message.user or low in message.user, is_boolean=True), name)

    def _not(self, node: Not) -> Code:
        return self._negated(self._operand(node.value, "NOT"), is_negated=True)

    @staticmethod
    def _negated(code: Code, is_negated: bool) -> Code:
        if not is_negated:
            return code
        return Code(closures.negated(code.run), code, is_boolean=True)

    def _operand(self, node: Node, word: str) -> Code:
        code = self.value(node)
        if code.is_boolean:
            return code
        return Code(closures.demand_boolean(code.run, f"an operand of {word}"), code, can_fail=True, is_boolean=True)

    def _logic(self, node: Logic) -> Code:
        codes = [self._operand(operand, "AND" if node.is_and else "OR") for operand in node.operands]
        runs = [code.run for code in codes]
        return Code(closures.conjunction(runs) if node.is_and else closures.disjunction(runs), *codes, is_boolean=True)
