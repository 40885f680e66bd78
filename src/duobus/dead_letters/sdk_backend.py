"""The dead-letter service without a server that has one: the SDK receives, sends, and completes then.

Which messages are meant, and how they are repaired, is decided by the same code as on the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from duobus.dead_letters.namespace import DeadLetterError
from duobus.dead_letters.sdk_messages import record_of, sdk_message
from duobus.dead_letters.work import Note, Pace, Totals, Work
from duobus.errors import ServiceBusError
from duobus.model.json.messages import form_of, message_of
from duobus.model.json.repair import resendable
from duobus.model.metadata import MessageMetadata
from duobus.rules.selection import Selection

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    from duobus.dead_letters.namespace import Namespace
    from duobus.dead_letters.undo_file import UndoFile

#: Messages that are not meant and are held until the end, so that they do not come again meanwhile.
HELD_MAX: Final = 1_000
_WAIT_S: Final = 5.0


class SdkDeadLetters:
    """Does what a server's dead-letter service does, one message after the other."""

    can_undo = False

    def __init__(self, namespace: Namespace, work: Work) -> None:
        self._namespace = namespace
        self._work = work
        self._plan = work.plan
        self._selection = Selection(work.plan.sql, work.plan.condition)
        self._numbers = frozenset(work.plan.numbers or ())

    def pages(self, *, is_dry: bool = False) -> Iterator[list[dict[str, Any]]]:
        """See Executor; what would become of messages is told in any case."""
        left, first = self._work.limit, max(1, self._plan.first)
        with self._namespace.messaging(f"entity {self._work.named}") as client, self._receiver(client) as receiver:
            while left is None or left > 0:
                found = receiver.peek_messages(self._work.chunk, sequence_number=first)
                if not found:
                    return
                first = (found[-1].sequence_number or 0) + 1
                records = [record for record in map(record_of, found) if self._takes(record)]
                if left is not None:
                    records = records[:left]
                    left -= len(records)
                yield [self._previewed(record) for record in records]

    def run(self, pace: Pace, undo: UndoFile | None = None) -> Totals:
        """See Executor; nothing is written to an undo file."""
        totals = Totals()
        with ExitStack() as stack:
            client = stack.enter_context(self._namespace.messaging(f"entity {self._work.named}"))
            receiver = stack.enter_context(self._receiver(client))
            target = self._target()
            sender = None if target is None else stack.enter_context(client.get_queue_sender(target))
            self._go_through(receiver, sender, totals, pace)
        return totals

    def _go_through(self, receiver: ServiceBusReceiver, sender: Any, totals: Totals, pace: Pace) -> None:
        from azure.servicebus.exceptions import MessageLockLostError

        held: list[ServiceBusReceivedMessage] = []
        seen: set[int] = set()
        limit = self._work.limit
        try:
            while limit is None or totals.moved + totals.left < limit:
                wanted = self._work.chunk if limit is None else min(self._work.chunk, limit)
                found = receiver.receive_messages(wanted, max_wait_time=_WAIT_S)
                fresh = [message for message in found if message.sequence_number not in seen]
                held += [message for message in found if message.sequence_number in seen]
                if not fresh:
                    return
                for message in fresh:
                    seen.add(message.sequence_number or 0)
                    is_enough = limit is not None and totals.moved + totals.left >= limit
                    if is_enough or not self._done(receiver, sender, message, totals):
                        held.append(message)
                pace.step(totals)
                if len(held) >= HELD_MAX:
                    raise DeadLetterError(
                        f"{len(held)} messages in front are not meant, which is as many as can be held. Done: "
                        f"{totals.moved}."
                    )
        finally:
            for message in held:
                # A lock that is over meanwhile has given the message back already.
                with suppress(MessageLockLostError):
                    receiver.abandon_message(message)

    def _done(
        self, receiver: ServiceBusReceiver, sender: Any, message: ServiceBusReceivedMessage, totals: Totals
    ) -> bool:
        """Move one message; False when it is not meant, or cannot be moved."""
        record = record_of(message)
        if not self._takes(record):
            return False
        if sender is not None:
            try:
                form = self._resendable(record)
            except ServiceBusError as error:
                totals.skip(record["sequenceNumber"], str(error))
                return False
            if not _is_sent(sender, sdk_message(form), record["sequenceNumber"], totals, self._namespace.said):
                return False
        receiver.complete_message(message)
        totals.moved += 1
        return True

    def bring(self, chunk: list[dict[str, Any]], totals: Totals, note: Note | None = None) -> None:
        """See Executor."""
        if self._work.action != "send":
            raise DeadLetterError("This server cannot make dead letters of messages. Send them: leave it out.")
        with (
            self._namespace.messaging(f"entity {self._work.named}") as client,
            client.get_queue_sender(self._work.entity) as sender,
        ):
            for record in chunk:
                try:
                    message = sdk_message(record["message"])
                except (ServiceBusError, ValueError, TypeError) as error:
                    totals.skip(record.get("sequenceNumber"), str(error))
                    continue
                totals.moved += _is_sent(sender, message, record.get("sequenceNumber"), totals, self._namespace.said)

    # -- parts --------------------------------------------------------------------------------------------------

    def _receiver(self, client: ServiceBusClient) -> ServiceBusReceiver:
        sub_queue: Any = "transferdeadletter" if self._work.is_transfer else "deadletter"
        if self._work.subscription is None:
            return client.get_queue_receiver(self._work.entity, sub_queue=sub_queue)
        return client.get_subscription_receiver(self._work.entity, self._work.subscription, sub_queue=sub_queue)

    def _target(self) -> str | None:
        if self._work.action == "purge":
            return None
        # Nothing can be sent to one subscription: its topic has to.
        return self._plan.to or self._work.entity

    def _takes(self, record: dict[str, Any]) -> bool:
        number = record["sequenceNumber"]
        if self._numbers and number not in self._numbers:
            return False
        payload, metadata = _bare_of(record)
        if not self._selection.takes(
            payload, metadata, enqueued_ms=0, sequence_number=number, deliveries=record["deliveryCount"]
        ):
            return False
        return self._work.takes is None or self._work.takes(record)

    def _previewed(self, record: dict[str, Any]) -> dict[str, Any]:
        if self._work.action in ("list", "purge"):
            return record
        try:
            return record | {"repaired": self._resendable(record)}
        except ServiceBusError as error:
            return record | {"refused": str(error)}

    def _resendable(self, record: dict[str, Any]) -> dict[str, Any]:
        payload, metadata = _bare_of(record)
        return form_of(*resendable(payload, metadata, self._plan.repair, keeps_reason=self._plan.keeps_reason))


def _is_sent(
    sender: Any,
    message: AmqpAnnotatedMessage,
    number: int | None,
    totals: Totals,
    said: Callable[[BaseException], str],
) -> bool:
    """Send a message; one that is at fault itself is skipped, and all else is for whoever gave the command."""
    from duobus.ha.sdk_errors import is_message_fault

    try:
        sender.send_messages(message)
    except Exception as error:
        if not is_message_fault(error):
            raise
        totals.skip(number, said(error))
        return False
    return True


def _bare_of(record: dict[str, Any]) -> tuple[bytes, MessageMetadata]:
    payload, metadata = message_of(record["message"])
    metadata.reason, metadata.description = record["reason"], record["description"]
    return payload, metadata
