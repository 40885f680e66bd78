"""Values of a diverted body that is no plain data: they come back as they were, with their types."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from duobus.ha.transfer import DEPTH_MAX, dumps, loads

EAST = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        7,
        0.5,
        "é",
        b"\0\xff",
        UUID(int=5),
        Decimal("1.10"),
        [1, (2, [3])],
        {1: "a", (2, 3): {"b": b"c"}},
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=EAST),
    ],
)
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    found = loads(dumps(value))
    assert found == value
    assert type(found) is type(value)


def test_a_time_without_a_zone_is_one_of_utc() -> None:
    bare = datetime(2026, 1, 2, tzinfo=UTC).replace(tzinfo=None)
    assert loads(dumps(bare)) == datetime(2026, 1, 2, tzinfo=UTC)


def test_a_value_may_be_nested_so_deep_and_no_deeper() -> None:
    value: Any = 1
    for _ in range(DEPTH_MAX):
        value = [value]
    assert loads(dumps(value)) == value
    with pytest.raises(TypeError, match="levels deep"):
        dumps([value])
    with pytest.raises(TypeError, match="a body with a set in it"):
        dumps({1, 2})


@pytest.mark.parametrize("data", [b"{", b'{"no": "tag"}', dumps(1) + b"1x", b"[" * 100_000])
def test_what_is_no_such_value_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no value of a backlog message"):
        loads(data)
