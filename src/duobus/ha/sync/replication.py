# Generated from duobus/ha/aio/replication.py by `make twins`; change that one.
"""Two entities of the same name in two namespaces: senders to both or to either, and a receiver from both.

Requirements IN8 to IN10. Both copies of a message carry one identifier; the receiver hands each identifier out once.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from duobus.clock import Entropy
from duobus.concurrency import sync as tasks
from duobus.ha.events import Event, ReplicaFailed, Reporter, RolesSwapped
from duobus.ha.outage import Classifier, Verdict, outage
from duobus.ha.sdk import prompt

if TYPE_CHECKING:
    from types import TracebackType

    from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiver, ServiceBusSender

    from duobus.ha.deduplication import SeenMessages

MESSAGE_ID, SUBJECT = "message_id", "subject"
#: Pause after a namespace gave no messages because of an error, in seconds; doubled up to the second one.
RETRY_FIRST_S, RETRY_LAST_S = 0.5, 30.0
#: Longest that the renewal of a message waits for that of its copy, whose namespace may be away.
COPY_RENEWAL_S: Final = 5.0
_TWO: Final = 2
_UNKNOWN: Final = "The message was not received here, or is settled."


def identifier_of(message: ServiceBusMessage | AmqpAnnotatedMessage, identifier: str = MESSAGE_ID) -> str | None:
    """Return the identifier that two copies of a message have in common.

    Args:
        message: A message that was sent or received.
        identifier: ``message_id``, ``subject``, or the name of an application property.
    """
    if identifier in (MESSAGE_ID, SUBJECT):
        found = getattr(message.properties if isinstance(message, AmqpAnnotatedMessage) else message, identifier, None)
    else:
        properties = message.application_properties or {}
        found = properties.get(identifier, properties.get(identifier.encode()))
    if found is None:
        return None
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)


class _ReplicationSender:
    """What both kinds of senders share: two senders, and messages with an identifier."""

    def __init__(
        self,
        senders: Sequence[ServiceBusSender],
        *,
        identifier: str = MESSAGE_ID,
        on_event: Callable[[Event], None] | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        if len(senders) != _TWO:
            raise ValueError(f"replication needs two senders, not {len(senders)}")
        self._senders = list(senders)
        self._identifier = identifier
        self._entropy = entropy if entropy is not None else Entropy()
        self.reporter = Reporter(on_event)

    @property
    def entity_name(self) -> str:
        """Path of the entity of the first sender."""
        return str(self._senders[0].entity_name)

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close both senders."""
        for sender in self._senders:
            with contextlib.suppress(Exception):
                prompt(sender).close()

    def _prepared(self, message: Any) -> Any:
        """Return the message, or the list, with an identifier in each; one that has one keeps it."""
        if isinstance(message, (ServiceBusMessage, AmqpAnnotatedMessage)):
            if identifier_of(message, self._identifier) is None:
                self._stamp(message, str(self._entropy.uuid()))
            return message
        if isinstance(message, Mapping):
            return self._prepared(ServiceBusMessage(**message))
        if hasattr(message, "add_message"):
            raise TypeError("a batch cannot be replicated, as it cannot be given identifiers; send a list")
        if isinstance(message, list) and self._identifier == MESSAGE_ID and all(map(_has_message_id, message)):
            return message
        # One draw for all of them: randomness is dear beside the rest of this.
        text = str(self._entropy.uuid())
        prepared = []
        for number, one in enumerate(message):
            made = ServiceBusMessage(**one) if isinstance(one, Mapping) else one
            if identifier_of(made, self._identifier) is None:
                self._stamp(made, f"{text}-{number}")
            prepared.append(made)
        return prepared

    def _stamp(self, message: ServiceBusMessage | AmqpAnnotatedMessage, text: str) -> None:
        if self._identifier in (MESSAGE_ID, SUBJECT):
            if isinstance(message, AmqpAnnotatedMessage):
                properties = message.properties = message.properties or AmqpMessageProperties()
                setattr(properties, self._identifier, text)
            else:
                setattr(message, self._identifier, text)
        else:
            message.application_properties = {**(message.application_properties or {}), self._identifier: text}


def _has_message_id(message: Any) -> bool:
    """Tell whether a message has an id, without the SDK's property: it is many times as slow as this."""
    try:
        return message.raw_amqp_message.properties.message_id is not None
    except AttributeError:  # it has no properties, or is a mapping
        return False


class ActiveReplicationSender(_ReplicationSender):
    """Sends every message to both namespaces; succeeds when one took it (IN8). Twice the operations.

    Args:
        senders: Two senders of the SDK, or paired ones, of entities of the same purpose in two namespaces.
        identifier: The place where both copies have the same value: ``message_id``, ``subject``, or an application
            property. A message without a value gets a random one.
        on_event: Called with ``ReplicaFailed``.
        entropy: Randomness.
    """

    def send_messages(self, message: Any, **kwargs: Any) -> None:
        """Send to both at the same time.

        Args:
            message: A message, a mapping, or an iterable of them; no batch.
            **kwargs: Go to both senders.

        Raises:
            ServiceBusError: Neither namespace took the message; this is the error of the first. A retry with the same
                message makes no duplicate for a receiver that suppresses repeated messages.
        """
        prepared = self._prepared(message)
        answers = tasks.together(*(partial(sender.send_messages, prepared, **kwargs) for sender in self._senders))
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        for failure in failures:
            if len(failures) == _TWO or not isinstance(failure, Exception):
                raise failure
        for sender, answer in zip(self._senders, answers, strict=True):
            if answer is not None:
                self.reporter.tell(ReplicaFailed(sender.entity_name, sender.fully_qualified_namespace, str(answer)))


class PassiveReplicationSender(_ReplicationSender):
    """Sends to the active namespace; when that is away to the backup, which then is the active one (IN9).

    Passive replication has two anomalies that its receiver has to tolerate (IN10): a message that the active namespace
    accepted but could not hand out arrives late, behind messages that were sent to the backup later; and a send that
    was not answered may be there twice.

    Args:
        senders: The sender of the active namespace and that of the backup, of the SDK.
        identifier: As in ``ActiveReplicationSender``.
        classifier: Which errors are an outage. Other errors are raised, and the roles are not swapped.
        on_event: Called with ``RolesSwapped``.
        entropy: Randomness.
    """

    def __init__(self, senders: Sequence[ServiceBusSender], *, classifier: Classifier = outage, **kwargs: Any) -> None:
        super().__init__(senders, **kwargs)
        self._classifier = classifier

    @property
    def active(self) -> str:
        """Host name of the active namespace."""
        return self._senders[0].fully_qualified_namespace

    def send_messages(self, message: Any, **kwargs: Any) -> None:
        """Send to the active namespace, or else to the backup.

        Args:
            message: A message, a mapping, or an iterable of them; no batch.
            **kwargs: Go to the sender.

        Raises:
            ServiceBusError: The active namespace refused the message; or both are away, and this is the error of the
                active one. The roles are as they were.
        """
        prepared = self._prepared(message)
        active, backup = self._senders
        try:
            active.send_messages(prepared, **kwargs)
        except Exception as error:
            if self._classifier(error) is not Verdict.OUTAGE:
                raise
            try:
                backup.send_messages(prepared, **kwargs)
            except Exception as second:
                raise error from second
            # Another task may have swapped them meanwhile.
            self._senders = [backup, active]
            self.reporter.tell(RolesSwapped(backup.entity_name, backup.fully_qualified_namespace, str(error)))


class ReplicatedReceiver:
    """Receives from the same entity of two namespaces, and hands out each identifier once (IN8, IN10, I51).

    The second copy of a completed message is completed without being handed out. While the program works on the first
    copy the second one waits: it is completed when the first copy is completed or dead-lettered, and handed out when
    the first copy is abandoned or deferred. ``seen`` remembers completed messages over restarts. Messages without an
    identifier are handed out as they come. When one namespace is away, the other one is still received from.

    Args:
        receivers: Two peek-lock receivers of the SDK.
        seen: The identifiers of completed messages.
        identifier: The place where both copies have the same value.
        on_event: Called with ``ReplicaFailed``.
    """

    def __init__(
        self,
        receivers: Sequence[ServiceBusReceiver],
        seen: SeenMessages,
        *,
        identifier: str = MESSAGE_ID,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        if len(receivers) != _TWO:
            raise ValueError(f"replication needs two receivers, not {len(receivers)}")
        #: Set when a side has an answer.
        self._answered = tasks.Signal()
        self._sides = [_Side(receiver, self._answered) for receiver in receivers]
        self._seen = seen
        self._identifier = identifier
        #: Identifier to the side of the copy that is at work, and the copies that wait for it.
        self._at_work: dict[str, tuple[_Side, list[tuple[_Side, ServiceBusReceivedMessage]]]] = {}
        self._sides_of: dict[int, _Side] = {}
        self.reporter = Reporter(on_event)

    def __enter__(self) -> ReplicatedReceiver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close both receivers; locked messages come again."""
        for side in self._sides:
            side.close()

    def receive_messages(
        self, max_message_count: int = 1, max_wait_time: float = 60.0
    ) -> list[ServiceBusReceivedMessage]:
        """Return messages that are not completed yet; an empty list when none came in time.

        Args:
            max_message_count: Most messages to ask each namespace for.
            max_wait_time: Seconds to wait for the first message.
        """
        deadline = tasks.now() + max_wait_time
        while True:
            left_s = deadline - tasks.now()
            if left_s <= 0:
                return []
            self._answered.clear()
            for side in self._sides:
                side.ask(max_message_count, max_wait_time)
            if not any(side.has_answer for side in self._sides):
                self._answered.wait(left_s)
            found: list[ServiceBusReceivedMessage] = []
            for side in self._sides:
                if side.has_answer:
                    found += self._new(side)
            if found:
                return found

    def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """Remember that a message is done, then complete it and its copy in both namespaces.

        Raises:
            ServiceBusError: The completion failed. The message comes again, and is recognised and completed then: the
                work is not repeated.
        """
        identifier = identifier_of(message, self._identifier)
        copies: list[tuple[_Side, ServiceBusReceivedMessage]] = []
        if identifier is not None:
            self._seen.record(identifier)
            copies = self._at_work.pop(identifier, (None, []))[1]
        for side, copy in copies:
            side.later.append((side.receiver.complete_message, copy))
        self._side_of(message).receiver.complete_message(message)

    def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """Give a message back; the message or its copy comes again."""
        self._release(message)
        self._side_of(message).receiver.abandon_message(message)

    def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        """Move a message to the dead-letter queue of the namespace from which it came.

        Afterwards the message is remembered as done, and its copy in the other namespace is completed, so that there is
        one dead letter. When the process dies between the two steps, the copy is handed out and dead-lettered as well:
        there are two dead letters rather than none.

        Args:
            message: A message that this receiver returned.
            reason: At most 4,096 characters; a property of the dead letter.
            error_description: At most 4,096 characters; a property of the dead letter.

        Raises:
            ServiceBusError: The message was not dead-lettered, or the answer was lost; nothing is remembered, and the
                message or its copy comes again.
            ValueError: It was not received here, or is settled.
        """
        side = self._side_of(message)
        try:
            side.receiver.dead_letter_message(message, reason=reason, error_description=error_description)
            # Not before: a copy of what is remembered is completed, and then there would be no dead letter.
            identifier = identifier_of(message, self._identifier)
            if identifier is not None:
                self._seen.record(identifier)
                for other, copy in self._at_work.pop(identifier, (None, []))[1]:
                    other.later.append((other.receiver.complete_message, copy))
        finally:
            self._release(message)

    def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        """Defer a message in the namespace from which it came, until it is received by its sequence number.

        A deferred message is not done. Its copy is handed out in its turn, as after ``abandon_message``: the program
        may work on the copy while the namespace of the first message is away, or defer it, too. When one of the two is
        done, ``receive_deferred_messages`` completes the other one and does not hand it out. A sequence number belongs
        to one namespace, so keep ``position_of(message)`` beside the number, for both copies: deferred messages do not
        expire by themselves.

        Raises:
            ServiceBusError: The message was not deferred, or the answer was lost; the message or its copy comes again,
                unless it is deferred now.
            ValueError: It was not received here, or is settled.
        """
        side = self._side_of(message)
        self._release(message)
        side.receiver.defer_message(message)

    def receive_deferred_messages(
        self, sequence_numbers: int | list[int], position: int
    ) -> list[ServiceBusReceivedMessage]:
        """Return deferred messages of one namespace that are not done yet; those that are done are completed.

        A message whose copy is at work is not among them either: it is given back, and stays deferred.

        Args:
            sequence_numbers: One or several, as that namespace gave them.
            position: Which of the two receivers brought them; see ``position_of``.

        Raises:
            ServiceBusError: That namespace is away, or has no such message.
            ValueError: There is no such position.
        """
        if position not in range(_TWO):
            raise ValueError(f"position has to be 0 or 1, not {position!r}")
        side = self._sides[position]
        messages = side.receiver.receive_deferred_messages(sequence_numbers)
        return self._sift(side, messages, are_deferred=True)

    def position_of(self, message: ServiceBusReceivedMessage) -> int:
        """Return which of the two receivers brought a message that is not settled: 0 or 1.

        Raises:
            ValueError: It was not received here, or is settled.
        """
        side = self._sides_of.get(id(message))
        if side is None:
            raise ValueError(_UNKNOWN)
        return self._sides.index(side)

    def renew_message_lock(self, message: ServiceBusReceivedMessage) -> datetime.datetime:
        """Renew the lock of a message, and return until when it is locked now.

        The lock of a copy that waits in the other namespace is renewed with it where that is possible. Where it is not,
        as the namespace is away or its receiver is receiving, nothing is raised: when that lock ends, the copy comes
        again and waits again. Its delivery count is one more then.

        Raises:
            MessageLockLostError: It is not locked any more, and comes again.
            ServiceBusError: It was not renewed; try again before the lock ends.
            ValueError: It was not received here, or is settled.
        """
        side = self._sides[self.position_of(message)]
        until: datetime.datetime = side.receiver.renew_message_lock(message)
        identifier = identifier_of(message, self._identifier)
        if identifier is not None:
            for other, copy in self._at_work.get(identifier, (None, []))[1]:
                other.renew(copy)
        return until

    def _release(self, message: ServiceBusReceivedMessage) -> None:
        """Nobody works on a message any more: give back the copies that wait for it."""
        identifier = identifier_of(message, self._identifier)
        if identifier is not None:
            for side, copy in self._at_work.pop(identifier, (None, []))[1]:
                side.later.append((side.receiver.abandon_message, copy))

    def _side_of(self, message: ServiceBusReceivedMessage) -> _Side:
        side = self._sides_of.pop(id(message), None)
        if side is None:
            raise ValueError(_UNKNOWN)
        return side

    def _new(self, side: _Side) -> list[ServiceBusReceivedMessage]:
        """Return what a side brought, without what is done and what is at work."""
        try:
            messages = side.take()
        except Exception as error:  # noqa: BLE001 - the other namespace goes on, whatever it was
            text = str(error) or type(error).__name__
            receiver = side.receiver
            self.reporter.tell(ReplicaFailed(receiver.entity_path, receiver.fully_qualified_namespace, text))
            return []
        return self._sift(side, messages)

    def _sift(
        self, side: _Side, messages: Iterable[ServiceBusReceivedMessage], *, are_deferred: bool = False
    ) -> list[ServiceBusReceivedMessage]:
        """Return messages of a side without what is done and what is at work."""
        found = []
        for message in messages:
            identifier = identifier_of(message, self._identifier)
            if identifier is not None and identifier in self._seen:
                with contextlib.suppress(Exception):
                    side.receiver.complete_message(message)
                continue
            if identifier is not None and identifier in self._at_work:
                first, copies = self._at_work[identifier]
                if first is not side and are_deferred:
                    # It is asked for by its number, so it need not wait here.
                    with contextlib.suppress(Exception):
                        side.receiver.abandon_message(message)
                    continue
                if first is not side:
                    # One whose lock has ended in the meantime takes its own place again.
                    copies[:] = [one for one in copies if one[1].sequence_number != message.sequence_number]
                    copies.append((side, message))
                    continue
                # The lock of the copy at work is gone: the same copy comes again.
            if identifier is not None:
                self._at_work[identifier] = (side, [])
            self._sides_of[id(message)] = side
            found.append(message)
        return found


class _Side:
    """One of the two namespaces. Its receiver does one thing at a time: the SDK's are for one task."""

    def __init__(self, receiver: ServiceBusReceiver, answered: tasks.Signal) -> None:
        self.receiver = receiver
        self.has_answer = False
        #: Settlements that wait until the receiver is free.
        self.later: list[tuple[Callable[..., Any], ServiceBusReceivedMessage]] = []
        self._answered = answered
        self._answer: list[ServiceBusReceivedMessage] | Exception = []
        self._task: tasks.Task | None = None
        self._pause_s = 0.0

    def ask(self, count: int, wait_s: float) -> None:
        """Begin to receive, unless that is under way."""
        if self._task is None:
            self._task = tasks.spawn(self._receive, count, wait_s, name="duobus replica")

    def take(self) -> list[ServiceBusReceivedMessage]:
        """Return what came; raises what receiving raised."""
        answer, self._answer = self._answer, []
        self._task, self.has_answer = None, False
        if isinstance(answer, Exception):
            self._pause_s = min(max(RETRY_FIRST_S, 2 * self._pause_s), RETRY_LAST_S)
            raise answer
        self._pause_s = 0.0
        return answer

    def renew(self, message: ServiceBusReceivedMessage) -> None:
        """Renew the lock of a copy that waits, if nothing is in the way of that."""
        if self._task is None:
            with contextlib.suppress(Exception):
                self.receiver.renew_message_lock(message, timeout=COPY_RENEWAL_S)

    def close(self) -> None:
        """End what is under way, and the receiver."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            task.ended()
        with contextlib.suppress(Exception):
            self._settle_later()
            prompt(self.receiver).close()

    def _receive(self, count: int, wait_s: float) -> None:
        try:
            if self._pause_s:
                tasks.sleep(self._pause_s)
            self._settle_later()
            self._answer = self.receiver.receive_messages(count, max_wait_time=wait_s)
        except Exception as error:  # noqa: BLE001 - whoever takes the answer judges it
            self._answer = error
        self.has_answer = True
        self._answered.set()

    def _settle_later(self) -> None:
        later, self.later = self.later, []
        for settle, message in later:
            # A lock that is gone is no loss: the copy comes again, and is recognised.
            with contextlib.suppress(Exception):
                settle(message)
