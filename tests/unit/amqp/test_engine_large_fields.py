"""Fields of frames that nobody reads are not decoded when they are large; what somebody reads is never lost."""

from __future__ import annotations

from typing import Any

import pytest
from engine_pair import Pair

from duobus.amqp import AttachReceived, Closed, Coordinator, LinkDetached, Source, Target
from duobus.amqp.errors import Error
from duobus.amqp.frames import frame
from duobus.amqp.performatives import Attach, Detach, Flow, Performative
from duobus.codec import Array, Described, Symbol, ULong, encode

LARGE = {Symbol(f"key-{index}"): index for index in range(3000)}
MANY = [f"capability-{index}" for index in range(3000)]
KNOWN = {Symbol("com.microsoft:timeout"): 5}


def opened() -> Pair:
    pair = Pair().open()
    pair.client.begin()
    pair.pump()
    return pair


def attached(**fields: Any) -> Attach:
    """What the server keeps of an attach with these fields."""
    pair = opened()
    values: dict[str, Any] = {"name": "l", "handle": 0, "role": True, "source": Source(address="q"), **fields}
    (event,) = pair.to_server(frame(0, Attach(**values).to_bytes()))
    assert isinstance(event, AttachReceived)
    assert event.link.remote is not None
    return event.link.remote


def closed(performative: Performative) -> Error:
    """Why the server closes the connection that such a frame comes on."""
    (event,) = opened().to_server(frame(0, performative.to_bytes()))
    assert isinstance(event, Closed)
    assert event.error is not None
    return event.error


@pytest.mark.parametrize("field", ["properties", "unsettled"])
def test_a_large_map_of_an_attach_is_taken_as_absent(field: str) -> None:
    remote = attached(**{field: LARGE})
    assert getattr(remote, field) is None
    assert remote.source == Source(address="q")


@pytest.mark.parametrize("field", ["offered_capabilities", "desired_capabilities"])
def test_large_capabilities_of_an_attach_are_taken_as_absent(field: str) -> None:
    assert getattr(attached(**{field: MANY}), field) is None


def test_large_fields_of_a_terminus_are_taken_as_absent_and_its_address_is_kept() -> None:
    source = Source(address="q", filter=LARGE, distribution_mode="move", durable=1)
    assert attached(source=source).source == Source(address="q", distribution_mode="move", durable=1)
    target = Target(address="me", dynamic_node_properties=LARGE, dynamic=True)
    assert attached(target=target).target == Target(address="me", dynamic=True)
    assert attached(target=Coordinator(capabilities=MANY)).target == Coordinator()


def test_small_fields_beside_large_ones_are_read() -> None:
    source = Source(address="q", filter={Symbol("com.microsoft:session-filter"): "s"})
    remote = attached(source=source, unsettled=LARGE, properties=KNOWN)
    assert remote.source == source
    assert remote.properties == KNOWN


@pytest.mark.parametrize(
    "fields",
    [
        {"properties": LARGE | KNOWN},
        {"source": Source(address="q", filter=LARGE | {Symbol("com.microsoft:session-filter"): "s"})},
    ],
)
def test_a_large_map_that_holds_what_would_have_to_be_read_is_an_error(fields: dict[str, Any]) -> None:
    error = closed(Attach(name="l", handle=0, role=True, **fields))
    assert error.condition == "amqp:decode-error"
    assert "1024 are allowed" in str(error.description)


def test_what_must_be_a_map_or_an_array_is_an_error_when_it_is_something_else_and_large() -> None:
    for position, value in ((13, [1] * 5000), (11, LARGE), (7, Array(ULong, [ULong(1000 + i) for i in range(5000)]))):
        fields: list[Any] = ["l", 0, True, *[None] * 11]
        fields[position] = value
        (event,) = opened().to_server(frame(0, encode(Described(ULong(0x12), fields))))
        assert isinstance(event, Closed)
        assert event.error is not None
        assert event.error.condition == "amqp:decode-error"


def test_an_address_that_is_a_large_list_is_an_error() -> None:
    error = closed(Attach(name="l", handle=0, role=True, source=Source(address=[1] * 5000)))
    assert "source.address" in str(error.description)


def test_large_properties_of_a_flow_are_passed_over() -> None:
    flow = Flow(next_incoming_id=0, incoming_window=5, next_outgoing_id=0, outgoing_window=5, properties=LARGE)
    assert opened().to_server(frame(0, flow.to_bytes())) == []


def test_of_an_error_with_a_large_map_condition_and_text_are_kept() -> None:
    pair = opened()
    pair.to_server(frame(0, Attach(name="l", handle=0, role=True, source=Source(address="q")).to_bytes()))
    error = Error("amqp:internal-error", "no", LARGE)
    events = pair.to_server(frame(0, Detach(handle=0, closed=True, error=error).to_bytes()))
    (detached,) = [event for event in events if isinstance(event, LinkDetached)]
    assert detached.error is not None
    assert (detached.error.condition, detached.error.description) == ("amqp:internal-error", "no")
    assert not detached.error.info
