"""The history: stamps, operation numbers and a digest that repeats."""

from __future__ import annotations

from simulation.history.events import Drained, History, LinkLost, Ok, SendBegin


def test_events_are_stamped_with_position_and_time() -> None:
    now = [5]
    history = History(lambda: now[0])
    first = history.append(LinkLost("c", 1))
    now[0] = 9
    second = history.append(LinkLost("d", 2))
    assert [(e.index, e.at_ms) for e in (first, second)] == [(0, 5), (1, 9)]
    assert list(history) == [first, second]
    assert len(history) == 2


def test_operation_numbers_are_never_repeated() -> None:
    history = History()
    assert [history.next_op() for _ in range(3)] == [1, 2, 3]


def test_an_event_shows_what_matters_in_its_text() -> None:
    event = History().append(SendBegin(1, "a", "c", "q", "u1", b"x", key="k"))
    assert repr(event).startswith("#0 0 ms SendBegin(")
    assert "uid='u1'" in repr(event)
    assert "ttl_ms" not in repr(event)


def test_equal_histories_have_equal_digests() -> None:
    def told(uid: str) -> int:
        history = History()
        history.append(SendBegin(1, "a", "c", "q", uid, b"x"))
        history.append(Ok(1))
        history.append(Drained(1, frozenset(str(n) for n in range(20))))
        return history.digest()

    assert told("u") == told("u")
    assert told("u") != told("v")
