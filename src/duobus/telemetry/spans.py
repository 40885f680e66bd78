"""The broker's own spans: what it does with a message whose sender has put a trace context into it.

The context is the ``traceparent`` among the application properties, or the ``Diagnostic-Id`` of older SDKs. The broker
passes both on as they came; its spans are children of the sender's, so that a trace shows how long a message took until
it was durable, when it was handed out, and when it was settled. A message without a context gets no spans: nobody looks
at a trace that begins in the middle.

This needs the SDK of OpenTelemetry, which is loaded only where spans are asked for. Which traces are recorded is the
sender's decision, unless ``OTEL_TRACES_SAMPLER`` says otherwise; the other variables of the SDK hold as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from duobus.codec import DecodeError, application_properties, scan
from duobus.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

SCOPE: Final = "duobus.broker"
SEND: Final = "duobus.send"
DELIVER: Final = "duobus.deliver"
SETTLE: Final = "duobus.settle"

#: Names of the properties that a context may be in, the first that is there.
_CONTEXT: Final = ("traceparent", "Diagnostic-Id")
_STATE: Final = "tracestate"
#: Both are in no message that has none of these bytes: most are told by this, and not taken apart.
_MARKS: Final = (b"traceparent", b"Diagnostic-Id")


class MessageContext:
    """What a message brings for its spans.

    Attributes:
        context: The sender's context.
        message_id: Text of the message id; empty when there is none.
    """

    __slots__ = ("context", "message_id")

    def __init__(self, context: Context, message_id: str) -> None:
        self.context = context
        self.message_id = message_id


class SpanRecorder:
    """Begins spans; whoever begins one ends it.

    Args:
        provider: Where they go.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer(SCOPE)
        self._kind = SpanKind.SERVER
        self._extract = TraceContextTextMapPropagator().extract
        self._status = Status
        self._error = StatusCode.ERROR

    def context_of(self, bare: bytes) -> MessageContext | None:
        """Return the context that is in a message; None when there is none, or none that can be read."""
        if not any(mark in bare for mark in _MARKS):
            return None
        try:
            carrier = _carrier(application_properties(bare))
            message_id = scan(bare).message_id if carrier else None
        except DecodeError:
            return None
        context = self._extract(carrier)
        # A context that is not one leaves nothing in it.
        return MessageContext(context, "" if message_id is None else str(message_id)) if carrier and context else None

    def begin(self, name: str, about: MessageContext, path: str, kind: str, **more: Any) -> Span:
        """Begin a span; ``kind`` is what is done: send, deliver, complete, abandon and so on."""
        attributes: dict[str, Any] = {
            "messaging.system": "servicebus",
            "messaging.destination.name": path,
            "messaging.operation.name": kind,
            **more,
        }
        if about.message_id:
            attributes["messaging.message.id"] = about.message_id
        return self._tracer.start_span(name, about.context, self._kind, attributes)

    def end(self, span: Span, reason: str = "") -> None:
        """End a span; ``reason`` is why what it is about has failed."""
        if reason:
            span.set_status(self._status(self._error, reason))
        span.end()

    def close(self) -> None:
        """Hand over what was recorded and end; this may take as long as the collector."""
        self._provider.shutdown()


def _carrier(properties: Mapping[str, Any]) -> dict[str, str]:
    """The headers of a context, from application properties; SDKs write them as text or as bytes."""
    parent = next((text for name in _CONTEXT if (text := _text(properties.get(name)))), "")
    if not parent:
        return {}
    state = _text(properties.get(_STATE))
    return {"traceparent": parent, **({"tracestate": state} if state else {})}


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii", "replace")
    return str(value) if isinstance(value, str) else ""


def recorder_for(exporter: SpanExporter, version: str) -> SpanRecorder:
    """Return a recorder whose spans go out in batches, from a thread of the SDK.

    Raises:
        ConfigurationError: The SDK of OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise _missing(error) from error
    found = Resource.create({SERVICE_VERSION: version})
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        # The environment gives no other name.
        found = found.merge(Resource({SERVICE_NAME: "duobus"}))
    provider = TracerProvider(resource=found, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return SpanRecorder(provider)


def otlp_recorder(endpoint: str, version: str) -> SpanRecorder:
    """Return a recorder whose spans go to a collector.

    Raises:
        ConfigurationError: The SDK of OpenTelemetry is not installed.
    """
    try:
        from duobus.telemetry.otlp import OtlpExporter
    except ImportError as error:
        raise _missing(error) from error
    return recorder_for(OtlpExporter(endpoint), version)


def _missing(error: ImportError) -> ConfigurationError:
    return ConfigurationError(
        f"--otlp-endpoint needs more than is installed ({error}): pip install 'duobus[telemetry]'"
    )
