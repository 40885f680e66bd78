"""LIKE: what it matches, and that no pattern makes it slow."""

from __future__ import annotations

import sys
import time
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duobus.rules import like
from duobus.rules.like import SHORT, Letters, Pattern, PatternError


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("", "", True),
        ("", "a", False),
        ("%", "", True),
        ("%%", "anything", True),
        ("_", "", False),
        ("_", "é", True),
        ("abc", "abc", True),
        ("abc", "abcd", False),
        ("a%", "abc", True),
        ("%c", "abc", True),
        ("%b%", "abc", True),
        ("a%a", "a", False),
        ("a%a", "aa", True),
        ("_b_", "abc", True),
        ("%_b%_", "aabc", True),
        ("%a_c%", "xxabaaccx", True),
        ("%a_c%d", "xxaacxd", True),
        ("%ab%ab", "ab", False),
        ("[a-z]", "b", False),
        ("ABC", "abc", False),
        ("%\n%", "a\nb", True),
    ],
)
def test_like(pattern: str, text: str, expected: bool) -> None:
    assert Pattern(pattern).matches(text) is expected


def test_an_escaped_character_stands_for_itself() -> None:
    assert Pattern("50!%", "!").matches("50%")
    assert not Pattern("50!%", "!").matches("500")
    assert Pattern("a!_b!!c", "!").matches("a_b!c")
    # Characters that mean something can be the escape as well.
    assert Pattern("%%", "%").matches("%")
    assert Pattern("__a%", "_").matches("_abc")


@pytest.mark.parametrize(("pattern", "escape"), [("a", ""), ("a", "!!"), ("!a", "!"), ("a!", "!")])
def test_an_escape_that_escapes_nothing_is_an_error(pattern: str, escape: str) -> None:
    with pytest.raises(PatternError):
        Pattern(pattern, escape)


def plainly(pattern: str, text: str) -> bool:
    """The same by the definition, one row of a table per character of the pattern."""
    reach = [True] + [False] * len(text)
    for character in pattern:
        if character == "%":
            for index in range(len(text)):
                reach[index + 1] = reach[index + 1] or reach[index]
        else:
            reach = [False] + [reach[index] and character in ("_", text[index]) for index in range(len(text))]
    return reach[-1]


@given(st.text("ab%_", max_size=12), st.text("abc", max_size=14))
def test_like_agrees_with_its_definition(pattern: str, text: str) -> None:
    assert Pattern(pattern).matches(text) is plainly(pattern, text)


def escaped(pattern: str, escape: str) -> str | None:
    """A pattern with an escape as one where characters stand for themselves that no text here has; None: no pattern."""
    found = ""
    rest = iter(pattern)
    for character in rest:
        if character == escape:
            literal = next(rest, "")
            if literal not in ("%", "_", escape):
                return None
            character = chr(0xE000 + ord(literal))
        elif character not in "%_":
            character = chr(0xE000 + ord(character))
        found += character
    return found


#: One byte, two and four for a character; what stands for something in patterns, and what might be taken for padding.
ALPHABETS = st.sampled_from(["ab", "ab%_!", "aé", "a\0b", "aя", "a\U0001f600b", "aÿĀ\uffff\U00010000"])


@given(ALPHABETS, st.data())
def test_long_texts_agree_with_the_definition_whatever_the_characters(alphabet: str, data: st.DataObject) -> None:
    part = data.draw(st.text(alphabet, max_size=9))
    text = part * data.draw(st.integers(0, 30)) + data.draw(st.text(alphabet, max_size=9))
    middle = data.draw(st.text(alphabet + "%_", max_size=12))
    pattern = data.draw(st.sampled_from(["{}", "%{}", "{}%", "%{}%", "_%{}%_", "%{}_"])).format(middle)
    expected = plainly(pattern, text)
    assert Pattern(pattern).matches(text) is expected
    letters = Letters(text)
    # As the fifth pattern that looks at a text of which much is to be known.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(like, "_FOUND_BELOW", 0)
        patch.setattr(like, "_WORST_FIND", data.draw(st.sampled_from([0, 100_000])))
        for _ in range(6):
            assert Pattern(pattern).matches_letters(letters) is expected


@given(st.text("ab!%_", max_size=8), st.sampled_from("!%_a"), st.text("ab!%_", max_size=6), st.booleans())
def test_escapes_agree_with_the_definition(pattern: str, escape: str, text: str, is_long: bool) -> None:
    text = text * (1 + is_long * SHORT)
    plain = escaped(pattern, escape)
    if plain is None:
        with pytest.raises(PatternError):
            Pattern(pattern, escape)
    else:
        expected = plainly(plain, "".join(chr(0xE000 + ord(character)) for character in text))
        assert Pattern(pattern, escape).matches(text) is expected


def steps_of(pattern: Pattern, text: str) -> int:
    """How many lines of Python a match takes."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        # What the interpreter does beside, such as collecting, is none of the match.
        lines += event == "line" and frame.f_code.co_filename == like.__file__
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        pattern.matches(text)
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("text", ["a" * 30_000, "aab" * 10_000, "яa" * 15_000])
@pytest.mark.parametrize("pattern", ["%a_b7%", "a%a_c%a", "%a_a_a%", "%aa_aab%", "%ab%", "%a_a%a_a%a_b_%"])
def test_a_long_text_takes_no_step_of_python_for_each_character(pattern: str, text: str) -> None:
    assert steps_of(Pattern(pattern), text) < 500


def test_what_a_text_costs_is_told_and_does_not_grow_with_what_nearly_fits() -> None:
    spent: list[int] = []
    letters = Letters("aab" * 10_000, spent.append)
    for number in range(1_000):
        assert not Pattern(f"%aa_aa_aa_b{number}%").matches_letters(letters)
    # Less than a look at all of the text for each pattern.
    assert 0 < sum(spent) < 1_000 * 30_000


@pytest.mark.parametrize(
    "pattern",
    [
        "%a" * 500 + "b",
        "%_a" * 333 + "%b",
        "%" + "a_" * 500 + "b%",
        "%" * 1000 + "b",
        "_%" * 500 + "b",
        "%aaaaaaab%" * 90,
    ],
)
def test_no_pattern_is_slow(pattern: str) -> None:
    started = time.thread_time()
    assert not Pattern(pattern).matches("a" * 32_000)
    assert time.thread_time() - started < 0.25
