"""Events of one read keep the order of the wire where a transaction is concerned: its discharge comes last."""

from __future__ import annotations

from engine_pair import Pair

from duobus.amqp import (
    ACCEPTED,
    Dispositions,
    LinkDetached,
    TransactionalState,
    TransferRefused,
    Transfers,
    WorkDropped,
)

IN_TXN = TransactionalState(b"txn")


def test_what_settles_in_a_transaction_is_told_before_the_transfer_that_follows_it() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    coordinator, _ = pair.sender(mine)
    coordinator.send_one(b"1", b"discharge of another", False)
    for number in (5, 6):
        mine.disposition(True, number, number, TransactionalState(b"txn", ACCEPTED), False)
    coordinator.send_one(b"2", b"discharge", False)
    events = pair.to_server(pair.client.take_output())
    assert [type(event) for event in events] == [Transfers, Dispositions, Dispositions, Transfers]
    assert [event.payloads for event in events[::3]] == [[b"discharge of another"], [b"discharge"]]


def test_what_is_sent_in_a_transaction_on_another_session_is_told_before_the_transfer_that_follows_it() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    other, _ = pair.session()
    coordinator, _ = pair.sender(mine)
    out, _ = pair.sender(other)
    coordinator.send_one(b"1", b"discharge of another", False)
    out.send_one(b"1", b"work", False, state=IN_TXN)
    coordinator.send_one(b"2", b"discharge", False)
    events = pair.to_server(pair.client.take_output())
    assert [event.payloads for event in events] == [[b"discharge of another"], [b"work"], [b"discharge"]]


def test_transactions_leave_the_engine_room_to_remember_what_repeats() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, _ = pair.sender(mine)
    for number in range(200):
        state = TransactionalState(number.to_bytes(16, "big"), ACCEPTED)
        mine.disposition(True, number, number, state, False)
        if number < 50:
            out.send_one(b"t", b"work", False, state=state)
    pair.to_server(pair.client.take_output())
    assert len(pair.server._disposition_tails) == len(pair.server._transfer_tails) == 0


def test_a_refused_delivery_says_to_which_transaction_it_belonged() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, theirs = pair.sender(mine)
    theirs.max_message_size = 1_000
    out.send_one(b"1", bytes(2_000), False, state=IN_TXN)
    out.send_one(b"2", bytes(200_000), False, state=IN_TXN)
    events = pair.to_server(pair.client.take_output())
    assert [(type(event), event.state) for event in events] == [(TransferRefused, IN_TXN)] * 2


def test_a_refused_delivery_is_told_before_the_transfer_that_follows_it() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    coordinator, _ = pair.sender(mine)
    out, theirs = pair.sender(mine, "work")
    theirs.max_message_size = 1_000
    coordinator.send_one(b"1", b"declare", False)
    out.send_one(b"1", bytes(2_000), False, state=IN_TXN)
    coordinator.send_one(b"2", b"discharge", False)
    events = pair.to_server(pair.client.take_output())
    assert [type(event) for event in events] == [Transfers, TransferRefused, Transfers]


def test_what_is_dropped_with_a_link_is_told_before_the_transfer_that_follows_it() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    coordinator, _ = pair.sender(mine)
    out, theirs = pair.sender(mine, "work")
    theirs.detach("amqp:link:detach-forced")
    coordinator.send_one(b"1", b"declare", False)
    out.send_one(b"1", b"work", False, state=IN_TXN)
    coordinator.send_one(b"2", b"discharge", False)
    events = pair.to_server(pair.client.take_output())
    assert [type(event) for event in events] == [Transfers, WorkDropped, Transfers]
    assert events[1].state == IN_TXN


def test_a_delivery_that_was_cut_by_the_end_of_its_link_is_told_when_more_of_it_comes() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, theirs = pair.sender(mine, "work")
    out.send_one(b"1", bytes(200_000), False, state=IN_TXN)
    output = pair.client.take_output()
    pair.to_server(output[:150_000])
    theirs.detach("amqp:link:detach-forced")
    events = pair.to_server(output[150_000:])
    assert {(type(event), event.state.txn_id) for event in events} == {(WorkDropped, b"txn")}


def test_what_comes_in_a_session_that_was_ended_is_told_if_it_is_part_of_a_transaction() -> None:
    pair = Pair().open()
    kept, _ = pair.session()
    mine, theirs = pair.session()
    coordinator, _ = pair.sender(kept)
    out, _ = pair.sender(mine, "work")
    theirs.end("amqp:session:errant-link")
    coordinator.send_one(b"1", b"declare", False)
    out.send_one(b"1", b"plain", False)
    out.send_one(b"2", b"work", False, state=IN_TXN)
    mine.disposition(True, 5, 5, ACCEPTED, True)
    mine.disposition(True, 6, 6, TransactionalState(b"txn", ACCEPTED), False)
    coordinator.send_one(b"2", b"discharge", False)
    events = pair.to_server(pair.client.take_output())
    assert [type(event) for event in events] == [Transfers, WorkDropped, WorkDropped, Transfers]


def test_a_delivery_that_breaks_a_rule_is_told_before_its_link_ends() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, theirs = pair.sender(mine, "work")
    # Credit that nobody gave.
    out.credit += theirs.credit
    for _ in range(theirs.credit):
        out.send_one(b"1", b"plain", True)
    out.send_one(b"2", b"work", False, state=IN_TXN)
    events = pair.to_server(pair.client.take_output())
    assert [type(event) for event in events[-2:]] == [WorkDropped, LinkDetached]
