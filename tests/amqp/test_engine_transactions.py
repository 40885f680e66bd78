"""Events of one read keep the order of the wire where a transaction is concerned: its discharge comes last."""

from __future__ import annotations

from engine_pair import Pair

from duobus.amqp import ACCEPTED, Dispositions, TransactionalState, TransferRefused, Transfers

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
