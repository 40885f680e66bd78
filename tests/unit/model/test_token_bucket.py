"""The token bucket against plain arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duobus.model.token_bucket import TokenBucket


def test_a_bucket_begins_full_and_fills_at_its_rate() -> None:
    bucket = TokenBucket(10, 10, 0)
    assert bucket.room(0) == 10
    bucket.take(10, 0)
    assert [bucket.room(at) for at in (0, 99, 100, 250, 1000, 99_999)] == [0, 0, 1, 2, 10, 10]


def test_what_was_taken_beyond_the_bucket_is_paid_back_first() -> None:
    bucket = TokenBucket(10, 10, 0)
    bucket.take(25, 0)
    assert bucket.room(0) == -15
    assert bucket.wait_ms(1, 0) == 1600
    assert bucket.room(1599) == 0
    assert bucket.room(1600) == 1


def test_nobody_waits_for_more_than_the_bucket_holds() -> None:
    bucket = TokenBucket(10, 10, 0)
    bucket.take(10, 0)
    assert bucket.wait_ms(1000, 0) == 1000
    assert bucket.wait_ms(5, 5000) == 0


def test_what_is_put_back_does_not_overflow() -> None:
    bucket = TokenBucket(10, 10, 0)
    bucket.take(3, 0)
    bucket.put_back(9)
    assert bucket.room(0) == 10


def test_time_that_goes_back_takes_nothing_away() -> None:
    bucket = TokenBucket(10, 10, 5000)
    bucket.take(10, 5000)
    assert bucket.room(1000) == 0
    assert bucket.room(5100) == 1


@given(
    rate=st.integers(1, 5000),
    steps=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 6000)), max_size=60),
)
def test_over_any_time_no_more_is_admitted_than_the_rate_and_one_bucket(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    bucket = TokenBucket(rate, rate, 0)
    now_ms = admitted = 0
    for wait_ms, wanted in steps:
        now_ms += wait_ms
        taken = max(0, min(wanted, bucket.room(now_ms)))
        bucket.take(taken, now_ms)
        admitted += taken
        assert admitted <= rate + now_ms * rate // 1000
    assert bucket.room(now_ms + bucket.wait_ms(rate, now_ms)) == rate
