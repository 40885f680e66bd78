"""Text to tree, by an LALR(1) parser: time grows with the text, and nothing is tried twice."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from duobus.errors import ArgumentInvalid, ArgumentOutOfRange
from duobus.model.descriptions import SQL_LENGTH_MAX
from duobus.rules.language.grammar import GRAMMAR, TERMINALS
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
    RemoveStatement,
    SetStatement,
    Signed,
)
from duobus.rules.values import INT64_HIGHEST

if TYPE_CHECKING:
    from lark import Lark, Token, UnexpectedInput

#: Levels of nesting in one expression: compiling it and evaluating it go as deep.
DEPTH_MAX: Final = 64
#: SET and REMOVE statements of one action (Azure: quotas).
STATEMENTS_MAX: Final = 32
#: Characters of a token that an error quotes.
_QUOTED_MAX: Final = 40


def parse_filter(text: str) -> Node:
    """Return the tree of a filter.

    Raises:
        ArgumentInvalid: It is none; the error names position, token and what was expected there.
        ArgumentOutOfRange: It is too long or too deep, or holds a number out of range.
    """
    node: Node = _parse(text, "filter")
    return node


def parse_action(text: str) -> tuple[SetStatement | RemoveStatement, ...]:
    """Return the statements of an action, in order; raises as ``parse_filter``."""
    statements: tuple[SetStatement | RemoveStatement, ...] = _parse(text, "action")
    if len(statements) > STATEMENTS_MAX:
        raise ArgumentOutOfRange(
            f"The action has {len(statements)} statements; at most {STATEMENTS_MAX} are allowed "
            f"(the next one starts at position {statements[STATEMENTS_MAX].position})."
        )
    return statements


def at(position: int, problem: str) -> ArgumentInvalid:
    """Return the error of a mistake at this place of an expression."""
    return ArgumentInvalid(f"The expression is not taken: at position {position} {problem}.")


def check_text(text: str, what: str) -> None:
    """Refuse text that has no UTF-8 form, as JSON can bring it: nobody could store or send it."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ArgumentInvalid(f"{what} holds half a character at position {error.start + 1}.") from None


def _parse(text: str, start: str) -> Any:
    if len(text) > SQL_LENGTH_MAX:
        raise ArgumentOutOfRange(
            f"The {start} has {len(text)} characters; at most {SQL_LENGTH_MAX} are allowed. Use several rules."
        )
    check_text(text, f"The {start}")
    from lark import UnexpectedInput

    try:
        return _parser().parse(text, start=start)
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from None


@cache
def _parser() -> Lark:
    """Made when the first text is parsed: a server without SQL rules does not pay for it."""
    from lark import Lark

    return Lark(
        GRAMMAR,
        parser="lalr",
        lexer="contextual",
        start=["filter", "action"],
        maybe_placeholders=True,
        propagate_positions=False,
        transformer=_Builder(),
    )


def _syntax_error(text: str, error: UnexpectedInput) -> ArgumentInvalid:
    token = getattr(error, "token", None)
    position = len(text) if token is not None and token.type == "$END" else error.pos_in_stream or 0
    expected = getattr(error, "expected", None) or getattr(error, "allowed", None) or ()
    names = sorted({TERMINALS.get(name, name) for name in expected})
    if position >= len(text):
        found = "the text ends"
    elif token is None and text[position] in "'\"[":
        return at(
            position + 1,
            f"starts what {'a ' if text[position] != '[' else ''}{text[position]} opens and nothing closes",
        )
    else:
        found = f"there is {_quoted(token if token is not None else text[position])}"
    return at(position + 1, f"{found}, where one of these may stand: {', '.join(names)}")


def _quoted(token: str) -> str:
    return repr(str(token) if len(token) <= _QUOTED_MAX else f"{token[:_QUOTED_MAX]}...")


def _deep(node: Node) -> Node:
    """Return the node; raises ArgumentOutOfRange when it is too deep."""
    if node.depth > DEPTH_MAX:
        raise ArgumentOutOfRange(
            f"The expression is not taken: at position {node.position} it is nested more than {DEPTH_MAX} levels deep."
        )
    return node


def _above(*nodes: Node | None) -> int:
    return 1 + max(node.depth for node in nodes if node is not None)


def _position(token: Token) -> int:
    return (token.start_pos or 0) + 1


class _Builder:
    """Makes the tree from the bottom up while lark parses; one method per rule or alias of the grammar."""

    def filter(self, children: list[Any]) -> Node:
        return _node(children[0])

    def action(self, children: list[Any]) -> tuple[Any, ...]:
        return tuple(children)

    def set_statement(self, children: list[Any]) -> SetStatement:
        word, target, _, value = children
        return SetStatement(position=_position(word), property=target, value=value)

    def remove_statement(self, children: list[Any]) -> RemoveStatement:
        word, target = children
        return RemoveStatement(position=_position(word), property=target)

    def or_(self, operands: list[Node]) -> Node:
        return self._logic(operands, is_and=False)

    def and_(self, operands: list[Node]) -> Node:
        return self._logic(operands, is_and=True)

    def _logic(self, operands: list[Node], *, is_and: bool) -> Node:
        return _deep(
            Logic(position=operands[0].position, depth=_above(*operands), is_and=is_and, operands=tuple(operands))
        )

    def negation(self, children: list[Any]) -> Node:
        word, value = children
        return _deep(Not(position=_position(word), depth=_above(value), value=value))

    def compare(self, children: list[Any]) -> Node:
        left, sign, right = children
        name = "<>" if sign == "!=" else str(sign)
        return _deep(Compare(position=_position(sign), depth=_above(left, right), sign=name, left=left, right=right))

    def in_list(self, children: list[Any]) -> Node:
        value, negated, word, *items = children
        return _deep(
            In(
                position=_position(word),
                depth=_above(value, *items),
                value=value,
                items=tuple(items),
                is_negated=negated is not None,
            )
        )

    def like(self, children: list[Any]) -> Node:
        value, negated, word, pattern, escape = children
        return _deep(
            Like(
                position=_position(word),
                depth=_above(value, pattern, escape),
                value=value,
                pattern=pattern,
                escape=escape,
                is_negated=negated is not None,
            )
        )

    def is_null(self, children: list[Any]) -> Node:
        value, word, negated, _ = children
        return _deep(IsNull(position=_position(word), depth=_above(value), value=value, is_negated=negated is not None))

    def exists(self, children: list[Any]) -> Node:
        word, target = children
        return Exists(position=_position(word), depth=2, property=target)

    def sum(self, children: list[Any]) -> Node:
        first, *others = children
        rest = tuple((str(sign), value) for sign, value in zip(others[::2], others[1::2], strict=True))
        depth = _above(first, *others[1::2])
        return _deep(Arithmetic(position=_position(others[0]), depth=depth, first=first, rest=rest))

    term = sum

    def signed(self, children: list[Any]) -> Node:
        sign, value = children
        return _deep(Signed(position=_position(sign), depth=_above(value), sign=str(sign), value=value))

    def group(self, children: list[Any]) -> Node:
        return _deep(msgspec.structs.replace(children[0], depth=_above(children[0])))

    def integer(self, children: list[Token]) -> Node:
        value = int(children[0])
        if value > INT64_HIGHEST:
            raise ArgumentOutOfRange(
                f"The expression is not taken: at position {_position(children[0])} the number "
                f"{_quoted(children[0])} is beyond 64 bits."
            )
        return Constant(position=_position(children[0]), value=value)

    def double(self, children: list[Token]) -> Node:
        value = float(children[0])
        if value == float("inf"):
            raise ArgumentOutOfRange(
                f"The expression is not taken: at position {_position(children[0])} the number "
                f"{_quoted(children[0])} is beyond a double."
            )
        return Constant(position=_position(children[0]), value=value)

    def string(self, children: list[Token]) -> Node:
        return Constant(position=_position(children[0]), value=children[0][1:-1].replace("''", "'"))

    def word(self, children: list[Token]) -> Node:
        value = {"TRUE": True, "FALSE": False, "NULL": None}[children[0].type]
        return Constant(position=_position(children[0]), value=value)

    def parameter(self, children: list[Token]) -> Node:
        return Parameter(position=_position(children[0]), name=str(children[0][1:]))

    def call(self, children: list[Any]) -> Node:
        name, argument = children
        position, word = _position(name), name.lower()
        if word == "newid" and argument is None:
            return NewId(position=position)
        if word in ("p", "property") and argument is not None:
            return _deep(PropertyOf(position=position, depth=_above(argument), name=argument))
        if word in ("newid", "p", "property"):
            raise at(position, f"{word} takes {'no argument' if word == 'newid' else 'one argument, a name'}")
        raise at(position, f"there is no function {_quoted(name)}; the functions are newid() and property(name)")

    def property(self, children: list[Any]) -> Property:
        scope, name = children
        position = _position(name if scope is None else scope)
        if scope is not None and scope.lower() not in ("sys", "user"):
            raise at(
                position, f"the scope {_quoted(scope)} is neither sys nor user; a name with a dot needs [brackets]"
            )
        text = str(name)
        if name.type == "BRACKETED":
            text = text[1:-1].replace("]]", "]")
        elif name.type == "QUOTED":
            text = text[1:-1].replace('""', '"')
        if not text:
            raise at(position, "a property has no name")
        return Property(position=position, name=text, is_system=scope is not None and scope.lower() == "sys")


def _node(value: Node) -> Node:
    return value
