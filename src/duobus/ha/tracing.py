"""Spans around what a pair does with a message, through the OpenTelemetry API where that is installed.

Three processes send, syphon and receive a diverted message. Their spans are connected by ``traceparent``, which the SDK
writes into the application properties of the message. A message that has this property keeps it all the way; the span
of the diversion, the span of the syphon and the SDK's span of the receiver link to it. A message without the property
gets the ``traceparent`` of the diverting span if that span is recorded; otherwise nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:  # it is optional
    trace = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from azure.servicebus.amqp import AmqpAnnotatedMessage
    from opentelemetry.trace import Link

SCOPE: Final = "duobus.ha"
DIVERT: Final = "duobus.pair.divert"
SYPHON: Final = "duobus.pair.syphon"
#: The SDK's keys, in the form in which it looks for them: with text instead of bytes it would add its own beside them,
#: and the message would have two of one name.
TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
DIAGNOSTIC_ID: Final = b"Diagnostic-Id"
#: More links say no more.
LINKS_MAX: Final = 128


@contextmanager
def diverting(path: str, queue: str, messages: Sequence[AmqpAnnotatedMessage]) -> Iterator[None]:
    """Record that messages of an entity go to a backlog queue; messages without a context get that of this span."""
    if trace is None:
        yield
        return
    with trace.get_tracer(SCOPE).start_as_current_span(
        DIVERT,
        kind=trace.SpanKind.PRODUCER,
        links=_links(messages),
        attributes=_attributes(path, queue, len(messages), "send"),
    ) as span:
        if span.is_recording():
            headers: dict[str, str] = {}
            TraceContextTextMapPropagator().inject(headers)
            for message in messages:
                _inject(message, headers)
        yield


@contextmanager
def syphoning(path: str, queue: str, messages: Sequence[AmqpAnnotatedMessage]) -> Iterator[None]:
    """Record that messages go from a backlog queue to their entity, with links to the trace context of each message."""
    if trace is None:
        yield
        return
    with trace.get_tracer(SCOPE).start_as_current_span(
        SYPHON,
        kind=trace.SpanKind.PRODUCER,
        links=_links(messages),
        attributes=_attributes(path, queue, len(messages), "send"),
    ):
        yield


def _attributes(path: str, queue: str, number: int, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": "servicebus",
        "messaging.operation.type": operation,
        "messaging.destination.name": path,
        "messaging.batch.message_count": number,
        "duobus.backlog": queue,
    }


def _inject(message: AmqpAnnotatedMessage, headers: dict[str, str]) -> None:
    found = _context_of(message)
    if found or "traceparent" not in headers:
        return
    properties: dict[str | bytes, Any] = dict(message.application_properties or {})
    properties[DIAGNOSTIC_ID] = properties[TRACEPARENT] = headers["traceparent"]
    if "tracestate" in headers:
        properties[TRACESTATE] = headers["tracestate"]
    message.application_properties = properties


def _links(messages: Iterable[AmqpAnnotatedMessage]) -> list[Link]:
    links: list[Link] = []
    for message in messages:
        if len(links) == LINKS_MAX:
            break
        headers = _context_of(message)
        if headers:
            context = TraceContextTextMapPropagator().extract(headers)
            span_context = trace.get_current_span(context).get_span_context()
            if span_context.is_valid:
                links.append(trace.Link(span_context))
    return links


def _context_of(message: AmqpAnnotatedMessage) -> dict[str, str]:
    """The trace context of a message in the form that propagators read; empty without one."""
    properties: Any = message.application_properties or {}
    parent = _text(_value(properties, TRACEPARENT) or _value(properties, DIAGNOSTIC_ID))
    if not parent:
        return {}
    state = _text(_value(properties, TRACESTATE))
    return {"traceparent": parent, "tracestate": state} if state else {"traceparent": parent}


def _value(properties: Any, name: bytes) -> Any:
    found = properties.get(name)
    return properties.get(name.decode()) if found is None else found


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value or "")
