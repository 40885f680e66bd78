"""The colours of both themes: text stands out from its ground, and the borders of fields from theirs (WCAG 2.2, AA)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import duobus.console

SHEET = (Path(duobus.console.__file__).parent / "static" / "console.css").read_text("utf-8")

#: Text and its ground; 4.5 to 1.
TEXTS = (
    ("text", "ground surface raised accent-soft good-soft warning-soft bad-soft"),
    ("muted", "ground surface raised accent-soft"),
    ("accent", "ground surface raised accent-soft"),
    ("accent-text", "accent"),
    ("good", "surface ground good-soft"),
    ("warning", "surface ground warning-soft"),
    ("bad", "surface ground raised bad-soft accent-soft"),
)
#: Borders of fields, lines of charts, the ring around what has the focus; 3 to 1.
LINES = (
    ("field-line", "surface ground"),
    ("accent", "surface ground"),
    ("series-1", "surface"),
    ("series-2", "surface"),
    ("series-3", "surface"),
    ("series-4", "surface"),
)


THEMES = ("light", "dark")


def colours(theme: str) -> dict[str, str]:
    """The colours of a theme by their names: the sheet has each as a pair."""
    block = SHEET.split(":root {", 1)[1].split("}", 1)[0]
    pairs = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", block)
    return {name: pair[THEMES.index(theme)] for name, *pair in pairs}


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_measure_is_that_of_the_guidelines() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("name", THEMES)
def test_every_text_and_line_stands_out(name: str) -> None:
    theme = colours(name)
    for pairs, least in ((TEXTS, 4.5), (LINES, 3.0)):
        for front, grounds in pairs:
            for ground in grounds.split():
                assert contrast(theme[front], theme[ground]) >= least, (front, ground)


def test_no_rule_has_a_colour_of_one_theme_alone() -> None:
    beyond = SHEET.split("}", 1)[1]
    assert not re.findall(r"#[0-9a-f]{3,8}\b(?=[;, )])", beyond)
