"""The checker of queues that delete themselves: I42."""

from __future__ import annotations

from simulation.checkers.idle import NOT_FOUND, RECEIVER, IdleHistory, IdleUse, auto_delete

LIMIT_MS = 300_000


def history(gone_ms: int | None, *uses: IdleUse, over_ms: int = 2_000_000) -> IdleHistory:
    made = IdleHistory(LIMIT_MS)
    made.gone_ms, made.over_ms = gone_ms, over_ms
    made.uses = list(uses)
    made.tried_ms = max((use.end_ms for use in uses), default=0)
    made.answers = [NOT_FOUND]
    return made


def is_right(made: IdleHistory) -> bool:
    return not list(auto_delete(made))


def test_a_queue_that_goes_when_its_window_has_passed_is_right() -> None:
    assert is_right(history(LIMIT_MS + 500))
    assert is_right(history(400_000 + LIMIT_MS, IdleUse("a send", 399_000, 400_000)))
    assert is_right(history(None, over_ms=LIMIT_MS))


def test_a_queue_that_goes_within_its_window_is_caught() -> None:
    assert not is_right(history(LIMIT_MS + 500, IdleUse("a peek", 1_000, 1_010)))
    assert not is_right(history(LIMIT_MS + 500, IdleUse(RECEIVER, 100, 200_000)))


def test_a_queue_that_stays_or_goes_late_is_caught() -> None:
    assert not is_right(history(None))
    assert not is_right(history(3 * LIMIT_MS))


def test_a_restart_begins_the_window_anew() -> None:
    late = history(3 * LIMIT_MS)
    late.starts = [2 * LIMIT_MS]
    assert is_right(late)


def test_what_is_left_or_still_answers_is_caught() -> None:
    for change in ("left", "answers"):
        made = history(LIMIT_MS + 500)
        getattr(made, change).append("something")
        assert not is_right(made)
    assert not is_right(history(LIMIT_MS + 500, IdleUse("a send", LIMIT_MS + 1_000, LIMIT_MS + 1_100)))
