"""A message on its way to disk and back is the one that the application gave."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from duobus.ha.outbox import message as outbox_message
from duobus.ha.outbox.message import pack, unpack

WHEN = datetime(2026, 11, 21, 12, 0, 0, 250_000, tzinfo=UTC)


def back(message: ServiceBusMessage | AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    packed = pack(message)
    return unpack(packed.head, packed.data)


def test_every_property_comes_back_with_its_type() -> None:
    users = {"text": "é", "number": 7, "half": 0.5, "yes": True, "none": None, "id": UUID(int=5), "raw": b"\0\xff"}
    message = ServiceBusMessage(
        "body",
        application_properties={**users, "when": WHEN, "price": Decimal("1.10")},
        session_id="s",
        message_id="m",
        scheduled_enqueue_time_utc=WHEN,
        time_to_live=timedelta(minutes=5),
        content_type="text/plain",
        correlation_id="c",
        subject="label",
        partition_key="s",
        to="to",
        reply_to="reply",
        reply_to_session_id="rs",
    )
    found = ServiceBusMessage("")
    found._raw_amqp_message = back(message)
    names = """application_properties session_id message_id scheduled_enqueue_time_utc time_to_live content_type
        correlation_id subject partition_key to reply_to reply_to_session_id"""
    for name in names.split():
        assert getattr(found, name) == getattr(message, name), name
    assert b"".join(found.body) == b"body"


@pytest.mark.parametrize(
    "body",
    [
        {"value_body": "text"},
        {"value_body": None},
        {"value_body": {"a": [1, b"x", {"b": WHEN}]}},
        {"sequence_body": [[1, "two"], [b"three"]]},
        {"data_body": [b"one", b"", b"\0three"]},
        {"data_body": []},
    ],
)
def test_every_kind_of_body_comes_back(body: dict[str, object]) -> None:
    message = AmqpAnnotatedMessage(**body)
    found = back(message)
    assert found.body_type is message.body_type
    if message.body_type is AmqpMessageBodyType.VALUE:
        assert found.body == message.body
    else:
        assert list(found.body) == list(message.body)


def test_data_is_kept_as_it_is_and_not_inside_of_the_json() -> None:
    packed = pack(ServiceBusMessage(b"\xff" * 10_000))
    assert packed.data == b"\xff" * 10_000
    assert len(packed.head) < 500


@pytest.mark.parametrize(
    ("how", "key"), [({}, ""), ({"session_id": "s", "partition_key": "s"}, "s"), ({"partition_key": "p"}, "p")]
)
def test_the_key_is_the_session_else_the_partition_key_else_none(how: dict[str, str], key: str) -> None:
    assert pack(ServiceBusMessage("x", **how)).key == key


def test_a_key_of_bytes_is_the_same_as_its_text() -> None:
    """As the SDK hands keys out, so that what was received is sent on in the order of its session."""
    key = "größe".encode()
    of_session = AmqpAnnotatedMessage(data_body=b"x", properties={"group_id": key})
    of_partition = AmqpAnnotatedMessage(data_body=b"x", annotations={b"x-opt-partition-key": key})
    assert pack(of_session).key == pack(of_partition).key == "größe"


def test_the_time_to_live_counts_from_the_send_to_the_namespace() -> None:
    properties = back(ServiceBusMessage("x", time_to_live=timedelta(seconds=9))).properties
    assert properties is not None
    assert properties.absolute_expiry_time is None


def test_what_amqp_does_not_have_is_refused_before_it_is_stored() -> None:
    with pytest.raises(TypeError, match="object"):
        pack(AmqpAnnotatedMessage(value_body=object()))


def test_a_message_that_no_namespace_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_message, "MESSAGE_BYTES_MAX", 1_000)
    with pytest.raises(ValueError, match="1,000 bytes"):
        pack(ServiceBusMessage(b"x" * 1_000))


@pytest.mark.parametrize("head", [b"", b"{}", b"[]", b'{"$":"map","v":[]}', b'{"$":"map","v":[["body_type","no"]]}'])
def test_other_bytes_are_no_message(head: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack(head, b"")


def test_what_is_said_to_the_next_node_and_behind_the_body_comes_back() -> None:
    message = AmqpAnnotatedMessage(
        data_body=b"x",
        delivery_annotations={b"to": b"next"},
        footer={b"sum": 5},
        annotations={b"mine": 1},
        application_properties={"a": 1},
    )
    found = back(message)
    assert found.delivery_annotations == {b"to": b"next"}
    assert (found.footer, found.annotations, found.application_properties) == ({b"sum": 5}, {b"mine": 1}, {"a": 1})
