"""What is no rule is refused with its place, and whatever the text is, in bounded time."""

from __future__ import annotations

import time

import pytest

from duobus.errors import ArgumentInvalid, ArgumentOutOfRange
from duobus.model.descriptions import SQL_LENGTH_MAX, TypedValue
from duobus.rules.language.parser import DEPTH_MAX, STATEMENTS_MAX, parse_action, parse_filter
from kits.rules import rule, truth, verdict

MISTAKES = [
    ("", 1, "the text ends"),
    ("a =", 4, "the text ends"),
    ("a = 1 = 2", 7, "there is '='"),
    ("a = 'abc", 5, "starts what a ' opens"),
    ("[abc = 1", 1, r"starts what \[ opens"),
    ('"abc = 1', 1, 'starts what a " opens'),
    ("a = #", 5, "there is '#'"),
    ("a ! b", 3, "there is '!'"),
    ("1=1;", 4, "there is ';'"),
    ("a IN ()", 7, r"there is '\)'"),
    ("a NOT = 1", 7, "there is '='"),
    ("a IS 1", 6, "there is '1'"),
    ("(a = 1", 7, "the text ends"),
    ("a = 1)", 6, r"there is '\)'"),
    ("and = 1", 1, "there is 'and'"),
    ("a = 1 -- a comment", 12, "there is 'comment'"),
    ("a = 1 /* x */", 8, "there is '\\*'"),
    ("a = .5", 5, "there is '.'"),
    ("a = 5.", 6, "there is '.'"),
    ("_a = 1", 1, "there is '_'"),
    ("a.b = 1", 1, "the scope 'a'"),
    ("sys.sys.To = 1", 8, "there is '.'"),
    ("[] = 1", 1, "has no name"),
    ("lower(a) = 1", 1, "no function 'lower'"),
    ("newid(1) = 1", 1, "newid takes no argument"),
    ("property() = 1", 1, "property takes one argument"),
    ("property(1) = 1", 1, "takes the name as a string, not an integer"),
    ("EXISTS(1)", 8, "there is '1'"),
    ("EXISTS(sys.Nope)", 8, "'sys.Nope' is no system property"),
    ("a LIKE 5", 3, "the pattern of LIKE is a string"),
    ("a LIKE 'x' ESCAPE ''", 3, "ESCAPE takes one character"),
    ("a LIKE 'x' ESCAPE '!!'", 3, "ESCAPE takes one character"),
    ("a LIKE 'x!' ESCAPE '!'", 3, "at the end"),
    ("a LIKE '!x' ESCAPE '!'", 3, "before 'x'"),
    ("a = @unknown", 5, "the parameter '@unknown' has no value"),
    ("a = 'x' b" + "c" * 60, 9, r"c\.\.\.'"),
]


@pytest.mark.parametrize(("sql", "position", "text"), MISTAKES)
def test_a_mistake_is_told_with_its_position(sql: str, position: int, text: str) -> None:
    with pytest.raises(ArgumentInvalid, match=rf"^Rule 'r': .*at position {position} .*{text}"):
        rule(sql)


@pytest.mark.parametrize(
    ("action", "position"),
    [("", 1), (";", 1), ("a = 1", 1), ("SET a", 6), ("SET a = 1 b", 11), ("REMOVE", 7), ("SET a = b = c", 11)],
)
def test_a_mistake_in_an_action_is_told_with_its_position(action: str, position: int) -> None:
    with pytest.raises(ArgumentInvalid, match=rf"at position {position} "):
        rule(action=action)


def test_words_keep_their_meaning_in_any_case_and_only_whole() -> None:
    assert verdict("qty nOt iN (1) aNd Exists(qty) oR faLse") == "T"
    assert truth("android = 1 AND nothing = 2 AND isnt = 3", {"android": 1, "nothing": 2, "isnt": 3}) == "T"
    assert truth("[and] = 1 AND user.[not] = 2", {"and": 1, "not": 2}) == "T"
    assert truth("sys = 1 AND user = 2 AND user.user = 2 AND p = 3", {"sys": 1, "user": 2, "p": 3}) == "T"


def test_every_way_to_write_a_name() -> None:
    properties = {"a]b": 1, 'a"b': 2, "my-prop": 3, "größe": 4, "x.y": 5, "my": 9, "prop": 6}
    assert truth('[a]]b] = 1 AND "a""b" = 2 AND user."my-prop" = 3 AND größe = 4 AND [x.y] = 5', properties) == "T"
    assert truth("my-prop = 3", properties) == "T"
    assert truth("sys\t.\r\n[Label] = 'x'", {}, [None, None, None, "x"]) == "T"


def test_every_way_to_write_a_number() -> None:
    assert verdict("5.0 = 5 AND 5E0 = 5 AND 0.5e1 = 5 AND 50e-1 = 5 AND 5e+0 = 5 AND 9223372036854775807 > 0") == "T"


@pytest.mark.parametrize("number", ["9223372036854775808", "1e999", "9" * 900])
def test_a_number_out_of_range_is_refused(number: str) -> None:
    with pytest.raises(ArgumentOutOfRange, match="at position 5 the number"):
        rule(f"a = {number}")


def test_a_filter_has_1024_characters_at_most() -> None:
    longest = "a = '" + "x" * (SQL_LENGTH_MAX - 6) + "'"
    assert rule(longest)
    with pytest.raises(ArgumentOutOfRange, match="1025 characters; at most 1024"):
        rule(longest + " ")
    with pytest.raises(ArgumentOutOfRange, match="1025 characters; at most 1024"):
        rule(action="SET " + longest[:-5] + "' ")


def test_an_action_has_32_statements_at_most() -> None:
    statements = [f"SET a{n} = {n}" for n in range(STATEMENTS_MAX)]
    assert len(parse_action(";".join(statements))) == STATEMENTS_MAX
    with pytest.raises(ArgumentOutOfRange, match=r"33 statements; at most 32 .*position \d+"):
        rule(action=" ".join([*statements, "REMOVE b"]))


@pytest.mark.parametrize(("opening", "closing"), [("(", ")"), ("NOT ", ""), ("-", ""), ("p(", ")")])
def test_an_expression_has_64_levels_at_most(opening: str, closing: str) -> None:
    core = "x"
    deepest = opening * (DEPTH_MAX - 1) + core + closing * (DEPTH_MAX - 1)
    assert parse_filter(deepest).depth == DEPTH_MAX
    rule(deepest)
    with pytest.raises(ArgumentOutOfRange, match=r"at position \d+ it is nested more than 64 levels"):
        parse_filter(opening + deepest + closing)


@pytest.mark.parametrize("sign", ["+", "*", " AND ", " OR ", "%"])
def test_a_long_chain_is_not_deep(sign: str) -> None:
    count = (SQL_LENGTH_MAX - 10) // (1 + len(sign))
    values = {"a": True} if len(sign) > 1 else {"a": 0}
    text = sign.join(["a"] * count)
    assert truth(text if len(sign) > 1 else f"{text} = 1", values) in ("T", "F", "E")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 1024,
        "'" * 1023,
        "[" * 1024,
        '"' * 1023,
        "NOT " * 256,
        "a = 1 AND " * 102,
        "-" * 1024,
        "a IN (" * 170,
        "a LIKE " * 146,
        "1" * 1024,
        "1." * 512,
        "@" * 1024,
        "é " * 512,
        "a " * 512,
        " " * 1024,
    ],
)
def test_a_hostile_text_is_refused_soon(text: str) -> None:
    parse_filter("1 = 1")
    started = time.process_time()
    with pytest.raises((ArgumentInvalid, ArgumentOutOfRange)):
        rule(f"{text}?"[:SQL_LENGTH_MAX])
    assert time.process_time() - started < 0.5


def test_half_a_character_is_refused() -> None:
    with pytest.raises(ArgumentInvalid, match="half a character at position 6"):
        rule("a = '\ud800'")
    with pytest.raises(ArgumentInvalid, match="half a character"):
        rule("a = @b", parameters={"b": TypedValue("string", "\ud800")})


def test_a_rule_needs_a_known_kind_of_filter_and_what_it_filters_by() -> None:
    with pytest.raises(ArgumentInvalid, match="no filter type"):
        rule(filter_type="Regex")
    with pytest.raises(ArgumentInvalid, match="needs an expression"):
        rule(filter_type="Sql")
    with pytest.raises(ArgumentInvalid, match="at least one"):
        rule(filter_type="Correlation")
    with pytest.raises(ArgumentInvalid):
        rule("1=1", name="x" * 51)
