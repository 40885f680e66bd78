from __future__ import annotations

import pytest
from engine_pair import Pair, frames

from duobus.amqp import (
    ACCEPTED,
    RELEASED,
    Declared,
    DeliveryState,
    Dispositions,
    Error,
    Modified,
    Received,
    Rejected,
    Session,
    TransactionalState,
)
from duobus.codec import Symbol

_LONG = Error("com.microsoft:server-busy", "x" * 300, {"com.microsoft:tracking-id": "1"})


@pytest.fixture
def pair() -> Pair:
    return Pair().open()


@pytest.fixture
def session(pair: Pair) -> Session:
    return pair.session()[0]


def _ranges(pair: Pair) -> list[tuple[int, int, bool, DeliveryState | None]]:
    events = pair.to_server(pair.client.take_output())
    assert all(type(event) is Dispositions for event in events)
    assert len(events) == 1
    return events[0].ranges


@pytest.mark.parametrize(
    "state",
    [
        None,
        ACCEPTED,
        RELEASED,
        Rejected(),
        Rejected(Error("com.microsoft:dead-letter", "because", {"DeadLetterReason": "r"})),
        Rejected(_LONG),
        Modified(),
        Modified(True, False, None),
        Modified(None, True, {"key": "value"}),
        Received(1, 2),
        Declared(b"txn"),
        TransactionalState(b"txn", Rejected(_LONG)),
        TransactionalState(b"txn"),
    ],
)
@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("role", [True, False])
def test_every_state_arrives_as_it_was_sent(
    pair: Pair, session: Session, state: DeliveryState | None, settled: bool, role: bool
) -> None:
    session.disposition(role, 3, 70_000, state, settled)
    event = pair.to_server(pair.client.take_output())[0]
    assert event.role is role
    assert event.ranges == [(3, 70_000, settled, state)]


def test_neighbours_with_the_same_outcome_become_one_range(pair: Pair, session: Session) -> None:
    for n in range(100):
        session.disposition(True, n, n, ACCEPTED, False)
    session.disposition(True, 100, 120, ACCEPTED, False)
    session.disposition(True, 121, 121, RELEASED, True)
    session.disposition(True, 122, 122, Modified(True, False, None), False)
    session.disposition(True, 123, 123, Modified(True, False, None), False)
    session.disposition(True, 125, 125, Modified(True, False, None), False)
    session.disposition(True, 126, 126, Rejected(_LONG), False)
    session.disposition(True, 127, 127, Rejected(_LONG), False)
    assert _ranges(pair) == [
        (0, 120, False, ACCEPTED),
        (121, 121, True, RELEASED),
        (122, 123, False, Modified(True, False, None)),
        (125, 125, False, Modified(True, False, None)),
        (126, 127, False, Rejected(_LONG)),
    ]


def test_the_order_of_what_the_peer_said_is_kept(pair: Pair, session: Session) -> None:
    ids = [5, 3, 4, 9, 1, 2]
    for n in ids:
        session.disposition(True, n, n, ACCEPTED, False)
    assert [(first, last) for first, last, _, _ in _ranges(pair)] == [(5, 5), (3, 4), (9, 9), (1, 2)]


def test_ranges_join_over_the_end_of_the_numbers(pair: Pair, session: Session) -> None:
    for n in (2**32 - 2, 2**32 - 1, 0, 1):
        session.disposition(True, n, n, ACCEPTED, False)
    assert _ranges(pair) == [(2**32 - 2, 1, False, ACCEPTED)]
    session.disposition(True, 2**32 - 2, 3, ACCEPTED, False)
    assert _ranges(pair) == [(2**32 - 2, 3, False, ACCEPTED)]


def test_both_roles_and_each_session_have_events_of_their_own(pair: Pair, session: Session) -> None:
    other = pair.session()[0]
    for n in range(3):
        for end in (session, other):
            end.disposition(True, n, n, ACCEPTED, False)
            end.disposition(False, n, n, ACCEPTED, True)
    events = pair.to_server(pair.client.take_output())
    assert [(event.session.channel, event.role, event.ranges) for event in events] == [
        (0, True, [(0, 2, False, ACCEPTED)]),
        (0, False, [(0, 2, True, ACCEPTED)]),
        (1, True, [(0, 2, False, ACCEPTED)]),
        (1, False, [(0, 2, True, ACCEPTED)]),
    ]


def test_what_came_behind_a_detach_is_not_reported_before_it(pair: Pair, session: Session) -> None:
    link, _ = pair.receiver(session)
    session.disposition(True, 0, 0, ACCEPTED, False)
    link.detach()
    session.disposition(True, 1, 1, ACCEPTED, False)
    events = pair.to_server(pair.client.take_output())
    assert [type(event).__name__ for event in events] == ["Dispositions", "LinkDetached", "Dispositions"]


@pytest.mark.parametrize("last", ["40", "43", "5205", "7000000005"])
@pytest.mark.parametrize("tail", ["42 00532445 42", "42 00532445", "40 005324c00100 40", "5600 0080000000000000002445"])
def test_the_spellings_of_clients_mean_the_same(pair: Pair, session: Session, last: str, tail: str) -> None:
    raw = bytes.fromhex("41 5205" + last + tail)
    count = 6 if tail.endswith(("42", "40")) else 5
    body = b"\x00\x53\x15\xc0" + bytes((len(raw) + 1, count)) + raw
    session.connection.write_frame(session.channel, body)
    assert _ranges(pair) == [(5, 5, False, ACCEPTED)]


def test_a_disposition_of_nothing_but_ids_is_legal(pair: Pair, session: Session) -> None:
    session.connection.write_frame(session.channel, bytes.fromhex("005315c0040241 5207".replace(" ", "")))
    assert _ranges(pair) == [(7, 7, False, None)]


def test_a_range_that_ends_before_it_starts_costs_the_session(pair: Pair, session: Session) -> None:
    session.disposition(True, 9, 5, ACCEPTED, False)
    event = pair.to_server(pair.client.take_output())[0]
    assert event.error.condition == "amqp:invalid-field"
    assert frames(pair.server.take_output())[0][2] == 0x17


def test_dispositions_of_an_ended_session_are_neither_sent_nor_reported(pair: Pair, session: Session) -> None:
    session.disposition(True, 1, 1, ACCEPTED, False)
    before = pair.client.take_output()
    pair.server.sessions[0].end()
    assert pair.to_server(before) == []
    session.end()
    session.disposition(True, 1, 1, ACCEPTED, False)
    assert [frame[2] for frame in frames(pair.client.take_output())] == [0x17]


def test_states_compare_by_what_they_say() -> None:
    assert Rejected() == Rejected(None)
    assert Rejected() != Modified()
    assert Modified(True) != Modified(False)
    assert hash(Modified(True)) == hash(Modified(True))
    assert Rejected(Error("a")) != Rejected(Error("b"))
    assert Rejected().__eq__(1) is NotImplemented
    assert repr(Modified(True, None, {Symbol("k"): 1})) == "Modified(True, None, {'k': 1})"


def test_ids_that_pass_the_end_of_the_fields_are_malformed() -> None:
    pair = Pair().open()
    pair.session()
    fields = b"\x41\x70\x00\x00\x00\x00\x40\x41\x40\x40"
    whole = b"\x00\x00\x00\x18\x02\x00\x00\x00" + b"\x00\x53\x15\xc0" + bytes((len(fields) + 1, 6)) + fields
    torn = bytearray(whole)
    torn[12] = 3
    assert [type(event).__name__ for event in pair.to_server(bytes(torn))] == ["Closed"]
