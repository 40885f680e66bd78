"""One trace from the sender to the receiver, over the backlog: links by the traceparent of the message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import ServiceBusConnectionError
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from duobus.ha.tracing import DIVERT, SYPHON
from duobus.ha.transfer import from_backlog, to_backlog
from kits.virtual_pair import World, in_virtual_time, wire

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))
    yield exporter
    provider.shutdown()


def properties_of(payload: bytes) -> dict[Any, Any]:
    return dict(decode_payload(memoryview(payload)).application_properties or {})


async def outage(world: World, *messages: ServiceBusMessage) -> None:
    """Divert messages, and syphon them."""
    async with await world.pair(enable_syphon=True) as pair:
        sender = pair.get_queue_sender("orders")
        world.primary.away()
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("to its caller"))
        await asyncio.sleep(60.1)
        for message in messages:
            await sender.send_messages(message)
        world.primary.back()
        await asyncio.sleep(300)


def test_the_spans_that_divert_and_deliver_are_linked_by_the_message_between_them(spans: InMemorySpanExporter) -> None:
    async def story() -> None:
        world = World()
        await outage(world, ServiceBusMessage("x"))
        (stored,) = world.primary.queues["orders"]
        delivered = properties_of(stored.payload)
        (diverted, *_), carried = named(spans, DIVERT), named(spans, SYPHON)[-1]
        context = diverted.context
        parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}".encode()
        assert delivered == {b"traceparent": parent, b"Diagnostic-Id": parent}, "as the SDK writes it"
        assert [link.context.span_id for link in carried.links] == [context.span_id]
        assert diverted.attributes["messaging.destination.name"] == "orders"
        assert diverted.attributes["duobus.backlog"] == carried.attributes["duobus.backlog"]

    in_virtual_time(story)


def test_a_message_with_a_context_of_its_own_keeps_it_and_both_spans_link_to_it(spans: InMemorySpanExporter) -> None:
    async def story() -> None:
        world = World()
        await outage(world, ServiceBusMessage("x", application_properties={"traceparent": PARENT, "tracestate": "a=b"}))
        (stored,) = world.primary.queues["orders"]
        assert properties_of(stored.payload) == {b"traceparent": PARENT.encode(), b"tracestate": b"a=b"}
        for name in (DIVERT, SYPHON):
            (link,) = named(spans, name)[-1].links
            assert f"{link.context.trace_id:032x}" == PARENT.split("-")[1]
            assert link.context.trace_state.get("a") == "b"

    in_virtual_time(story)


def test_without_a_recording_nothing_is_written_into_messages() -> None:
    async def story() -> None:
        world = World()
        await outage(world, ServiceBusMessage("x"))
        (stored,) = world.primary.queues["orders"]
        assert properties_of(stored.payload) == {}

    in_virtual_time(story)


@pytest.mark.parametrize("parent", ["", "nonsense", "00-0-0-00", "x" * 10_000])
def test_a_context_that_is_none_is_carried_as_it_is_and_links_to_nothing(
    spans: InMemorySpanExporter, parent: str
) -> None:
    async def story() -> None:
        world = World()
        await outage(world, ServiceBusMessage("x", application_properties={"traceparent": parent, "n": 1}))
        (stored,) = world.primary.queues["orders"]
        delivered = properties_of(stored.payload)
        assert delivered[b"n"] == 1
        if parent:
            assert delivered[b"traceparent"] == parent.encode()
            assert named(spans, DIVERT)[-1].links == ()

    in_virtual_time(story)


def test_the_sdk_finds_the_context_of_a_restored_message_and_writes_no_second_one() -> None:
    sent = ServiceBusMessage("x", application_properties={"traceparent": PARENT})
    diverted = to_backlog(sent, "orders", 0)
    restored = from_backlog(diverted).message
    for message in (diverted, restored):
        outgoing = PyamqpTransport.to_outgoing_amqp_message(message)
        again = PyamqpTransport.update_message_app_properties(outgoing, b"traceparent", "another")  # type: ignore[arg-type]
        assert list(again.application_properties or {}).count(b"traceparent") == 1
        assert (again.application_properties or {})[b"traceparent"] == PARENT  # type: ignore[index]
        assert wire(message).count(b"traceparent") == 1


def named(spans: InMemorySpanExporter, name: str) -> list[Any]:
    return [span for span in spans.get_finished_spans() if span.name == name]
