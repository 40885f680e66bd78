"""The small client with transactions, at a broker of the tests."""

import socket

import pytest

from duobus.clock import Clock
from duobus.codec import scan
from duobus_demo.workers.transaction_client import ConnectionLost, LinkEnded, TransactionClient, result_message


@pytest.fixture
def connected(duobus_namespace):
    """A client, and the namespace with two queues with sessions."""
    for name in ("in", "out"):
        duobus_namespace.create_queue(name, requires_session=True, enable_partitioning=True)
    with TransactionClient(duobus_namespace.connection_string, "test", Clock()) as client:
        yield client, duobus_namespace


def put(client, session_id, *bodies):
    """Send to ``in``, each in a transaction of its own."""
    link = client.sender_via("out", "in")
    for body in bodies:
        txn_id = client.declare()
        client.send_in(txn_id, link, result_message(body, session_id, body.encode()))
        assert client.discharged(client.discharge(txn_id, fail=False))
    client.detach(link)


def test_what_is_rolled_back_is_settled_again_and_what_is_committed_is_there_once(connected):
    client, namespace = connected
    put(client, "a", "one")
    out = client.sender_via("in", "out")
    session = client.session_receiver("in", 10)
    delivery_id, payload = client.next_message(session, 10)
    assert scan(payload).message_id == "one"
    for fail in (True, False):
        txn_id = client.declare()
        client.complete_in(txn_id, delivery_id)
        client.send_in(txn_id, out, result_message(f"fails: {fail}", "a", b"done"))
        assert client.discharged(client.discharge(txn_id, fail=fail))
    client.detach(session)
    assert client.peek("in", 10) == []
    there = client.session_receiver("out", 10)
    delivery_id, payload = client.next_message(there, 10)
    assert scan(payload).message_id == "fails: False"
    client.complete(delivery_id)
    assert client.next_message(there, 0.05) is None
    assert namespace.messages("out") == []


def test_a_look_shows_what_is_locked_too_and_takes_nothing(connected):
    client, _ = connected
    put(client, "a", "one", "two")
    session = client.session_receiver("in", 10)
    client.next_message(session, 10)
    assert [scan(message).message_id for message in client.peek("in", 10)] == ["one", "two"]


def test_a_message_that_is_settled_by_now_makes_a_commit_a_rollback(connected):
    client, _ = connected
    put(client, "a", "one")
    session = client.session_receiver("in", 10)
    delivery_id, _ = client.next_message(session, 10)
    client.complete(delivery_id)
    txn_id = client.declare()
    client.complete_in(txn_id, delivery_id)
    assert not client.discharged(client.discharge(txn_id, fail=False))


def test_no_session_in_the_time_is_no_error_and_an_entity_that_is_not_there_is_one(connected):
    client, _ = connected
    assert client.session_receiver("in", 0.05) is None
    with pytest.raises(LinkEnded) as refused:
        client.sender_via("nowhere", "out")
    assert refused.value.condition == "amqp:not-found"


def test_a_server_that_does_not_answer_is_left_in_time():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        text = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey=k"
        with (
            pytest.raises(ConnectionLost, match="no answer within 50 ms"),
            TransactionClient(text, "test", Clock(), answer_s=0.05) as client,
        ):
            client.sender_via("in", "out")
