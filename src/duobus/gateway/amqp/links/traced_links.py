"""Links that record spans of what they do with messages that carry a trace context.

A span of a send lasts from the arrival of the message until its commit is durable and its outcome is about to be
written; one of a delivery is the moment of writing; one of a settlement lasts from the client's disposition until the
commit. What is done within transactions, through ``$management`` and on links of other servers has no spans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import RELEASED, DeliveryState
from duobus.broker import ABANDON, COMPLETE, DEAD_LETTER_OUTCOME, DEFER, QueuedMessage, SettleBatch, lock_lost
from duobus.gateway.amqp.links.incoming_link import IncomingLink
from duobus.gateway.amqp.links.link_kinds import LinkKinds
from duobus.gateway.amqp.links.outgoing_link import OutgoingLink, outcome_of
from duobus.gateway.amqp.links.session_link import SessionLink
from duobus.model.address import SUB_QUEUE_SEGMENTS
from duobus.model.batches import DeliveryBatch, SendBatch
from duobus.telemetry.spans import DELIVER, SEND, SETTLE, MessageContext, SpanRecorder

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from duobus.gateway.amqp.deliveries import DeliveryRun

#: Deliveries whose contexts a link keeps for their settlement; of more, the oldest have no span of that.
KEPT_MAX: Final = 10_000

_NAMES: Final = {COMPLETE: "complete", ABANDON: "abandon", DEFER: "defer", DEAD_LETTER_OUTCOME: "dead-letter"}

#: A lock: first half of its token, and its counter.
_Lock = tuple[bytes, int]


def traced(recorder: SpanRecorder) -> LinkKinds:
    """Return kinds of links whose spans go to a recorder."""

    class RecordedSends(_TracedIncoming):
        spans = recorder

    class RecordedReceives(_TracedDeliveries):
        spans = recorder

    class RecordedSessions(_TracedSession):
        spans = recorder

    return LinkKinds(RecordedSends, RecordedReceives, RecordedSessions)


class _TracedIncoming(IncomingLink):
    """A client sends."""

    spans: SpanRecorder

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Of the batches that are on their way: index of a message to its span.
        self._begun: dict[SendBatch, dict[int, Span]] = {}

    def _send(self, batch: SendBatch) -> None:
        if not batch.ping:
            spans = {}
            for index, payload in enumerate(batch.payloads):
                about = self.spans.context_of(payload)
                if about is not None:
                    spans[index] = self.spans.begin(
                        SEND, about, self.queue.path, "send", **{"messaging.message.body.size": len(payload)}
                    )
            if spans:
                self._begun[batch] = spans
        super()._send(batch)

    def deliver_answers(self) -> None:
        answers = list(self.ready)
        super().deliver_answers()
        if self._begun:
            for answer in answers:
                self._end(answer.batch, answer.indices, answer.error)

    def _end(self, batch: SendBatch, indices: list[int] | None, error: Exception | None) -> None:
        spans = self._begun.get(batch)
        if spans is None:
            return
        reason = "" if error is None else str(error)
        for index in list(spans) if indices is None else indices:
            span = spans.pop(index, None)
            if span is not None:
                self.spans.end(span, reason)
        if not spans:
            del self._begun[batch]


class _TracedDeliveries(OutgoingLink):
    """A client receives."""

    spans: SpanRecorder

    def __init__(self, *args: Any, **options: Any) -> None:
        # What was delivered and is not settled; and what is on its way to a store with the span of its settlement.
        self._kept: dict[_Lock, MessageContext] = {}
        self._unanswered: dict[_Lock, Span] = {}
        super().__init__(*args, **options)

    def _write(self, batch: DeliveryBatch, messages: list[QueuedMessage], first_lock: int) -> None:
        begun = []
        for offset, message in enumerate(messages):
            about = self.spans.context_of(message.payload)
            if about is not None:
                if not self.is_removing:
                    self._keep((batch.prefix, first_lock + offset), about)
                more = {"messaging.servicebus.message.delivery_count": message.deliveries + 1}
                begun.append(self.spans.begin(DELIVER, about, self._place, "deliver", **more))
        super()._write(batch, messages, first_lock)
        for span in begun:
            self.spans.end(span)

    @property
    def _place(self) -> str:
        return "/".join((self.queue.path, *SUB_QUEUE_SEGMENTS[self.sub_queue]))

    def _keep(self, lock: _Lock, about: MessageContext) -> None:
        if len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[lock] = about

    def settle(
        self, found: list[tuple[DeliveryRun, int, int, int]], state: DeliveryState | None, *, settled: bool
    ) -> None:
        outcome = None if state is RELEASED else outcome_of(state)
        name = "release" if state is RELEASED else _NAMES.get(outcome if outcome is not None else -1, "unknown")
        begun: list[_Lock] = []
        for run, _, first_lock, number in found:
            for lock in ((run.prefix, first_lock + offset) for offset in range(number)):
                about = self._kept.pop(lock, None)
                if about is not None:
                    self._unanswered[lock] = self.spans.begin(SETTLE, about, self._place, name)
                    begun.append(lock)
        owed = self.owed
        super().settle(found, state, settled=settled)
        if self.owed == owed:
            # Nobody waits for an outcome: it is done, or will be without a word.
            self._end(begun, "")

    def _answer_settlements(self, commands: list[SettleBatch]) -> None:
        super()._answer_settlements(commands)
        for command in commands if self._unanswered else ():
            lost = set(command.lost)
            for first_lock, number in command.ranges:
                for counter in range(first_lock, first_lock + number):
                    error = command.error or (lock_lost() if counter in lost else None)
                    self._end([(command.prefix, counter)], "" if error is None else str(error))

    def _end(self, locks: list[_Lock], reason: str) -> None:
        for lock in locks:
            span = self._unanswered.pop(lock, None)
            if span is not None:
                self.spans.end(span, reason)


class _TracedSession(_TracedDeliveries, SessionLink):
    """A client receives the messages of a session."""

    def entity_changed(self) -> None:
        super().entity_changed()
        # Each link writes and settles its own: what links do together has no place for the spans of one message.
        self.receiver.group = None
