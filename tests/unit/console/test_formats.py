"""How pages write numbers, times, durations and addresses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from duobus.console.formats import (
    count,
    duration,
    entity_url,
    pretty_json,
    rate,
    short_duration,
    size,
    time,
)

DASH = "\N{EN DASH}"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1_234_567, "1,234,567"), (None, DASH), (0.5, "0.5"), (1_234.5, "1,234"), (-3, "-3")],
)
def test_a_number_has_its_thousands_apart(value: Any, text: str) -> None:
    assert count(value) == text


def test_a_rate_is_a_number_a_second() -> None:
    assert (rate(0), rate(12.34), rate(None)) == ("0.0/s", "12.3/s", DASH)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (200 << 20, "200 MiB"), (1 << 50, "1.0 PiB"), (None, DASH)],
)
def test_bytes_are_in_a_unit_that_people_read(value: Any, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("PT5M", "5 m"),
        ("PT1H30M", "1 h 30 m"),
        ("P14D", "14 d"),
        ("P1DT1S", "1 d"),
        ("PT0S", "0 ms"),
        ("PT0.25S", "250 ms"),
        ("PT1.5S", "1.5 s"),
        ("PT59.6S", "60 s"),
        ("P10675199DT2H48M5.4775807S", "unlimited"),
        (90_000, "1 m 30 s"),
        (timedelta(hours=25), "1 d 1 h"),
        (timedelta(minutes=-5), "-5 m"),
        (None, DASH),
        ("soon", "soon"),
        ("P99999999999999D", "unlimited"),
    ],
)
def test_a_duration_is_short_and_says_when_it_is_without_end(value: Any, text: str) -> None:
    assert short_duration(value) == text


def test_the_exact_duration_is_the_title_and_text_of_others_stays_text() -> None:
    assert duration("PT5M") == '<span class="duration" title="PT5M">5 m</span>'
    assert duration(timedelta(seconds=90)) == '<span class="duration" title="PT90S">1 m 30 s</span>'
    assert "<b>" not in duration("<b>")


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 11, 26, 21, 30, 5, 123_000, tzinfo=UTC),
        datetime(2026, 11, 26, 21, 30, 5, 123_000),  # noqa: DTZ001 - the SDK has such
        datetime(2026, 11, 26, 22, 30, 5, 123_000, tzinfo=timezone(timedelta(hours=1))),
        1_795_728_605_123,
        "2026-11-26T21:30:05.123Z",
        "2026-11-26T22:30:05.123+01:00",
    ],
)
def test_an_instant_is_one_whatever_it_is_given_as(value: Any) -> None:
    exact = "2026-11-26T21:30:05.123Z"
    assert time(value) == f'<time datetime="{exact}" title="{exact}">2026-11-26 21:30:05</time>'


@pytest.mark.parametrize("value", [None, "", 0, "0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)])
def test_an_instant_that_is_not_known_is_a_dash(value: Any) -> None:
    assert time(value) == DASH


def test_what_is_no_instant_is_text() -> None:
    assert time("<script>") == "&lt;script&gt;"
    assert time(1e30) == "1e+30"


def test_the_path_of_an_entity_is_encoded_one_segment_after_the_other() -> None:
    assert entity_url("a b/c?d/e%f") == "/entities/a%20b/c%3Fd/e%25f"
    assert entity_url("orders", "messages", place="deadletter", number=None) == "/messages/orders?place=deadletter"
    assert entity_url("..", "messages") == "/messages/.."


def test_json_is_indented_and_keeps_its_letters() -> None:
    assert pretty_json({"ü": [1]}) == '{\n  "ü": [\n    1\n  ]\n}'
