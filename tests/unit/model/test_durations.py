"""Durations: texts of ISO 8601 to milliseconds and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duobus.errors import ArgumentInvalid
from duobus.model.durations import INFINITE, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("PT1M", 60_000),
        ("PT11M2S", 662_000),
        ("P14D", 14 * 86_400_000),
        ("PT1H1.5S", 3_601_500),
        ("P10DT10H", 10 * 86_400_000 + 36_000_000),
        ("PT0S", 0),
        ("P1DT0.5S", 86_400_500),
        ("PT0.0019999S", 1),
        (INFINITE, None),
        ("P10675199DT2H48M5.477539S", None),
        ("P10675198D", 10_675_198 * 86_400_000),
    ],
)
def test_durations_that_occur_on_the_wire_are_read(text: str, expected_ms: int | None) -> None:
    assert parse_duration(text) == expected_ms


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "-PT1M", "PT-1M", "P1W", "1M", "PT1.S", "pt1m", "PT1M ", "PT٣M"]
)
def test_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ArgumentInvalid, match="duration"):
        parse_duration(text)


def test_years_and_months_are_read_only_from_configuration_files() -> None:
    with pytest.raises(ArgumentInvalid, match="years"):
        parse_duration("P1Y2M")
    assert parse_duration("P1Y2M", calendar_parts=True) == (365 + 60) * 86_400_000


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(60_000, "PT1M"), (86_400_000, "P1D"), (5_400_000, "PT1H30M"), (500, "PT0.5S"), (0, "PT0S"), (None, INFINITE)],
)
def test_durations_are_written_in_their_canonical_form(duration_ms: int | None, text: str) -> None:
    assert format_duration(duration_ms) == text


@given(st.integers(0, 10_675_199 * 86_400_000 - 1))
def test_what_is_written_is_read_back_to_the_millisecond(duration_ms: int) -> None:
    assert parse_duration(format_duration(duration_ms)) == duration_ms


@given(st.text(alphabet="PTYMDHS.0123456789", max_size=40))
def test_arbitrary_text_is_a_duration_or_refused(text: str) -> None:
    try:
        parsed = parse_duration(text)
    except ArgumentInvalid:
        return
    assert parsed is None or parsed >= 0
