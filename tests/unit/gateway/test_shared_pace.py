"""How much links that share a pace ask for, and when they ask again."""

from __future__ import annotations

from duobus.gateway.amqp.pacing import ASKED_FIRST, ASKED_MAX, SlowStart


def proved(pace: SlowStart, times: int) -> None:
    """The client of one of the links settles what was written, so many times."""
    for _ in range(times):
        pace.wrote()
        pace.on_progress()


def test_what_one_link_proves_makes_no_other_ask_anew_until_all_may_be_asked_for() -> None:
    pace = SlowStart()
    proved(pace, 3)
    assert pace.asked == 8 * ASKED_FIRST
    assert pace.low == ASKED_FIRST // 2


def test_a_link_that_may_ask_for_all_asks_again_at_half_of_it() -> None:
    pace = SlowStart()
    proved(pace, 10)
    assert pace.is_full
    assert pace.low == ASKED_MAX // 2


def test_at_the_mark_a_link_asks_again_as_it_would_alone() -> None:
    pace = SlowStart()
    while not pace.is_full:
        assert 0 < pace.low <= pace.asked // 2
        proved(pace, 1)
    assert pace.low == pace.asked // 2
