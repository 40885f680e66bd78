"""Spans as OTLP: one POST of JSON for each batch, to a collector's ``/v1/traces`` (OpenTelemetry Protocol, 1.0).

Every collector takes JSON beside Protocol Buffers, and JSON needs no library. The SDK calls the exporter from a thread
of its own.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final
from urllib.parse import unquote

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from duobus.telemetry.logs import Log

#: Below the address of a collector.
PATH: Final = "/v1/traces"
#: The variable of the environment with further headers, such as one with a token: ``name=value,name=value``.
HEADERS: Final = "OTEL_EXPORTER_OTLP_HEADERS"
#: How long a collector may take for a batch.
_TIMEOUT_S: Final = 5.0
#: OTLP counts kinds of spans from 1, where 0 is none.
_KIND_FIRST: Final = 1


class OtlpExporter(SpanExporter):
    """Sends batches of spans to a collector; what it does not take is dropped, and said once.

    Args:
        endpoint: Its address, as in ``http://localhost:4318``.
    """

    def __init__(self, endpoint: str) -> None:
        self._url = endpoint.rstrip("/") + PATH
        self._headers = {"Content-Type": "application/json", **headers_of(os.environ.get(HEADERS, ""))}
        self._log = Log("tracing")
        self._is_failing = False
        # Without the proxies of the environment: a collector is near.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See SpanExporter."""
        body = json.dumps(request_of(spans), separators=(",", ":")).encode()
        request = urllib.request.Request(self._url, body, self._headers)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                answer.read()
        except (OSError, ValueError) as error:
            if not self._is_failing:
                self._is_failing = True
                self._log.warning("spans not delivered", collector=self._url, error=str(error))
            return SpanExportResult.FAILURE
        if self._is_failing:
            self._is_failing = False
            self._log.info("spans delivered again", collector=self._url)
        return SpanExportResult.SUCCESS


def headers_of(text: str) -> dict[str, str]:
    """Return the headers that a variable of the environment gives; their values are percent-encoded."""
    pairs = (part.partition("=") for part in text.split(",") if "=" in part)
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs if name.strip()}


def request_of(spans: Iterable[ReadableSpan]) -> dict[str, Any]:
    """Return the request that hands spans over."""
    by_resource = groupby(spans, lambda span: span.resource)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource.attributes)},
                "scopeSpans": [
                    {"scope": {"name": name}, "spans": [_span(span) for span in group]}
                    for name, group in groupby(found, _scope_of)
                ],
            }
            for resource, found in by_resource
        ]
    }


def _scope_of(span: ReadableSpan) -> str:
    return "" if span.instrumentation_scope is None else span.instrumentation_scope.name


def _span(span: ReadableSpan) -> dict[str, Any]:
    context, parent = span.get_span_context(), span.parent
    assert context is not None  # of a span that has ended
    found: dict[str, Any] = {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "name": span.name,
        "kind": span.kind.value + _KIND_FIRST,
        # 64 bits are text in the JSON of Protocol Buffers.
        "startTimeUnixNano": str(span.start_time or 0),
        "endTimeUnixNano": str(span.end_time or 0),
        "attributes": _attributes(span.attributes or {}),
        "status": {"code": span.status.status_code.value, "message": span.status.description or ""},
        "flags": int(context.trace_flags),
    }
    if context.trace_state:
        found["traceState"] = context.trace_state.to_header()
    if parent is not None:
        found["parentSpanId"] = f"{parent.span_id:016x}"
    return found


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": str(value)}
