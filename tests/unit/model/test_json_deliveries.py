"""A whole message as it comes, with the AMQP types of its values."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from duobus.codec import (
    Int,
    Symbol,
    Timestamp,
    annotations_section,
    application_properties_section,
    data_section,
    header_section,
    properties_section,
)
from duobus.model.json.deliveries import Delivery
from duobus.model.json.messages import message_of


def front(**annotations: Any) -> bytes:
    named = {Symbol(name.replace("_", "-")): value for name, value in annotations.items()}
    return header_section(ttl_ms=60_000, delivery_count=2) + annotations_section(named)


def test_a_message_comes_apart_and_into_its_form_without_what_the_broker_added() -> None:
    payload = (
        front(
            x_opt_sequence_number=7,
            x_opt_enqueued_time=Timestamp(5),
            x_opt_partition_key="k",
            x_opt_scheduled_enqueue_time=Timestamp(1_000),
            x_own=Int(1),
        )
        + properties_section(["id", None, None, "s"])
        + application_properties_section({"a": Int(1), "b": None})
        + data_section(b"one")
        + data_section(b"\xff")
    )
    found = Delivery(payload)
    assert found.fault == ""
    assert found.header == {"ttl": 60_000, "deliveryCount": 2}
    assert found.annotations["x-opt-sequence-number"] == 7
    assert found.properties == {"messageId": "id", "subject": "s"}
    assert type(found.application_properties["a"]) is Int
    assert (found.body_kind, found.body) == ("data", [b"one", b"\xff"])
    form = found.form()
    assert form == {
        "header": {"timeToLive": "PT1M"},
        "partitionKey": "k",
        "scheduledEnqueueTime": "1970-01-01T00:00:01.000Z",
        "annotations": {"x-own": {"$int": 1}},
        "properties": {"messageId": "id", "subject": "s"},
        "applicationProperties": {"a": {"$int": 1}, "b": None},
        "body": {"data": ["one", {"$binary": base64.b64encode(b"\xff").decode()}]},
    }
    assert message_of(form)[0] == found.bare


@pytest.mark.parametrize("payload", [b"\x00", b"\x40", b"\x00\x53\x75\xa0\x05ab", b"\x00\x53\x99\x40", b"x" * 50])
def test_bytes_that_are_no_message_are_kept_as_they_are(payload: bytes) -> None:
    found = Delivery(payload)
    assert found.fault
    assert found.form() == {"raw": base64.b64encode(payload).decode()}
