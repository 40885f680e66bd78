"""The checker of histories finds each kind of fault, and nothing in a history without one."""

from __future__ import annotations

from typing import Any

import pytest

from kits.client_record import KINDS, ON_ITS_WAY_S, ClientRecord, Grant

Notes = list[tuple[Grant, float | None]]


def grant(text: str, number: int, *, order: float | None = 1.0, settled_s: float | None = None, **more: Any) -> Grant:
    count = more.pop("count", 0)
    token = more.pop("token", f"token-{text}-{number}-{order}-{count}")
    made = Grant(text, ("q", number), None if order is None else (order, count), token, **more)
    made.settled_s = settled_s
    return made


def record_of(sent: list[str], grants: list[Grant], **options: Any) -> ClientRecord:
    record = ClientRecord(**options)
    record.note_sent(sent)
    for one in grants:
        record.note(one)
    return record


def in_session(number: int, text: str = "", settled_s: float | None = 1.0) -> Grant:
    return grant(text or f"s:{number}", number, order=None, session=("s", number), settled_s=settled_s)


BROKEN = {
    "lost": (["lost"], []),
    "repeated": (
        ["twice"],
        [grant("twice", 1, settled_s=1.0, count=0), grant("twice", 1, settled_s=2.0, count=1)],
    ),
    "doubled": (["twin"], [grant("twin", 1), grant("twin", 2)]),
    "revived": (["done"], [grant("done", 1, order=9.0), grant("done", 1, order=1.0, settled_s=2.0)]),
    "shared": (["held"], [grant("held", 1, token="t", count=0), grant("held", 1, token="t", count=1)]),
    "unordered": (["s:0", "s:1"], [in_session(1), in_session(0)]),
    "early": (["due"], [grant("due", 1, early_s=0.2)]),
    "misruled": (["blue"], [grant("blue", 1, is_misruled=True)]),
}


def test_there_is_a_history_for_each_kind_of_fault() -> None:
    assert tuple(BROKEN) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_fault_is_found(kind: str) -> None:
    sent, grants = BROKEN[kind]
    found = record_of(sent, grants).faults()
    # What was settled twice was settled by a grant that was not the last one, too.
    expected = {"repeated", "revived"} if kind == "repeated" else {kind}
    assert set(found) == expected
    assert len(found[kind]) == 1


def test_nothing_is_found_in_a_history_without_faults() -> None:
    grants = [
        # A lock ran out: the message came again, and was settled then.
        grant("again", 1, order=1.0),
        grant("again", 1, order=6.0, count=1, settled_s=7.0),
        # The receiver that got it first noted it last.
        grant("overtaken", 2, order=6.0, count=1, settled_s=7.0),
        grant("overtaken", 2, order=1.0),
        # A session changed hands: what was not settled came again, from its first message on.
        *(in_session(number, settled_s=None) for number in (10, 11)),
        grant("due", 3, early_s=-0.5, settled_s=8.0),
        # It was never acknowledged, and came.
        grant("unanswered", 4, settled_s=9.0),
    ]
    first = in_session(10)
    first.token = "another"
    assert record_of(["again", "overtaken", "s:10", "s:11", "due"], [*grants, first]).faults() == {}


def test_an_empty_history_has_no_faults() -> None:
    assert ClientRecord().faults() == {}


def test_a_message_whose_send_was_not_answered_may_come_behind_later_ones() -> None:
    assert record_of(["s:1"], [in_session(1), in_session(0)]).faults() == {}


def test_sessions_of_the_same_name_in_two_queues_have_orders_of_their_own() -> None:
    other = Grant("other:0", ("p", 0), None, "t", session=("s", 0))
    assert record_of(["s:1", "other:0"], [in_session(1), other]).faults() == {}


def test_a_scheduled_message_may_come_early_by_the_tolerance_for_wrong_clocks_only() -> None:
    sent, grants = ["due"], [grant("due", 1, early_s=120.0)]
    assert record_of(sent, grants, tolerance_s=120.0).faults() == {}
    assert record_of(sent, grants, tolerance_s=119.0).faults() == {"early": ["due"]}


def test_where_clocks_are_wrong_a_grant_is_a_revival_once_nothing_can_be_on_its_way_any_more() -> None:
    def found(at_s: float) -> dict[str, list[str]]:
        # By broker time the grant that was settled is the first.
        grants = [grant("m", 1, order=1.0, settled_s=10.0), grant("m", 1, order=9.0, at_s=at_s)]
        return record_of(["m"], grants, are_clocks_right=False).faults()

    assert found(10.0 + ON_ITS_WAY_S) == {}
    assert found(10.1 + ON_ITS_WAY_S) == {"revived": ["m"]}


def test_the_grants_of_a_message_can_be_written_down() -> None:
    (row,) = record_of(["m"], [grant("m", 1, settled_s=2.0), grant("n", 2)]).about({"m"})
    assert (row["text"], row["key"], row["settled_s"]) == ("m", ("q", 1), 2.0)


def test_what_is_told_of_a_shared_token_names_both_messages() -> None:
    record = record_of([], [grant("one", 1, token="t"), grant("other", 2, token="t"), grant("third", 3)])
    assert record.faults() == {"shared": ["other"]}
    assert [row["text"] for row in record.about({"other"})] == ["one", "other"]
