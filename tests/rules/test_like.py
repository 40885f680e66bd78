"""LIKE: what it matches, and that no pattern makes it slow."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duobus.rules.like import Pattern, PatternError


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
