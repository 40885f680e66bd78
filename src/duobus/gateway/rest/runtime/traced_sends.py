"""Sends over HTTP that record a span for each message with a trace context, until the message is durable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duobus.broker import Queue
from duobus.gateway.rest.runtime.sends import Sends
from duobus.model.batches import Mailbox, SendBatch
from duobus.telemetry.spans import SEND, SpanRecorder

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class _SpanMailbox(Mailbox):
    """Ends the spans of a batch when its result comes, and hands that on, whether anybody waits for it still or not."""

    __slots__ = ("_inner", "_recorder", "_spans")

    def __init__(self, inner: Mailbox, recorder: SpanRecorder, spans: list[Span]) -> None:
        super().__init__()
        self._inner = inner
        self._recorder = recorder
        self._spans = spans

    def wake(self) -> None:
        """See Mailbox."""
        results, self.ready = self.ready, []
        for result in results:
            # A request has one result: its messages are stored together or not at all.
            spans, self._spans = self._spans, []
            for span in spans:
                self._recorder.end(span, "" if result.error is None else str(result.error))
        self._inner.ready += results
        self._inner.wake()


def traced_sends(recorder: SpanRecorder) -> type[Sends]:
    """Return what takes in sends whose spans go to a recorder."""

    class RecordedRequests(Sends):
        """Takes in what requests send, and records it."""

        def batch(self, *request: Any) -> SendBatch:
            """See Sends."""
            batch = super().batch(*request)
            queue: Queue = request[4]
            found = [] if batch.ping else [(one, recorder.context_of(one)) for one in batch.payloads]
            spans = [
                recorder.begin(SEND, about, queue.path, "send", **{"messaging.message.body.size": len(payload)})
                for payload, about in found
                if about is not None
            ]
            if spans:
                batch.reply = _SpanMailbox(batch.reply, recorder, spans)
            return batch

    return RecordedRequests
