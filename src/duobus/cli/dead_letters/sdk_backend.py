"""The dead-letter service without a server that has one: the SDK receives, sends, and completes then.

Which messages are meant, and how they are repaired, is decided by the same code as on the server. What the SDK makes of
a message is all that is known of it, so that types of whole numbers among properties are not told apart.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from duobus.cli.dead_letters.work import Note, RateLimit, Totals, Work
from duobus.cli.remote import said
from duobus.codec import Symbol
from duobus.errors import ServiceBusError
from duobus.model.durations import format_duration, parse_duration
from duobus.model.json.messages import DESCRIPTION, REASON, form_of, message_of
from duobus.model.json.repair import resendable
from duobus.model.json.values import from_json, to_json
from duobus.model.metadata import MessageMetadata
from duobus.rules.selection import Selection

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    from duobus.cli.dead_letters.undo_file import UndoFile
    from duobus.cli.remote import Remote

#: Messages that are not meant and are held until the end, so that they do not come again meanwhile.
HELD_MAX: Final = 1_000
_WAIT_S: Final = 5.0

_FIELDS: Final = {
    "messageId": "message_id",
    "userId": "user_id",
    "to": "to",
    "subject": "subject",
    "replyTo": "reply_to",
    "correlationId": "correlation_id",
    "contentType": "content_type",
    "contentEncoding": "content_encoding",
    "absoluteExpiryTime": "absolute_expiry_time",
    "creationTime": "creation_time",
    "groupId": "group_id",
    "groupSequence": "group_sequence",
    "replyToGroupId": "reply_to_group_id",
}
_TEXTS: Final = frozenset(_FIELDS) - {"messageId", "userId", "correlationId"}
#: Annotations that are no sender's, or that a form has a member for.
_KNOWN: Final = {"x-opt-partition-key": "partitionKey", "x-opt-via-partition-key": "viaPartitionKey"}
_BROKERS: Final = frozenset(
    {
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-enqueue-sequence-number",
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-deadletter-source",
        "x-opt-scheduled-enqueue-time",
    }
)
_TYPES: Final = {
    "ubyte": "UBYTE",
    "ushort": "USHORT",
    "uint": "UINT",
    "ulong": "ULONG",
    "byte": "BYTE",
    "short": "SHORT",
    "int": "INT",
    "long": "LONG",
    "float": "FLOAT",
    "timestamp": "TIMESTAMP",
    "symbol": "SYMBOL",
    # As it is: the SDK would take it for text.
    "binary": "BINARY",
}


class SdkDeadLetters:
    """Does what a server's dead-letter service does, one message after the other."""

    can_undo = False

    def __init__(self, remote: Remote, work: Work) -> None:
        self._remote = remote
        self._work = work
        self._plan = work.plan
        self._selection = Selection(work.plan.sql, work.plan.condition)
        self._numbers = frozenset(work.plan.numbers or ())

    def pages(self, *, is_dry: bool = False) -> Iterator[list[dict[str, Any]]]:
        """See Executor; what would become of messages is told in any case."""
        left, first = self._work.limit, 1
        with self._remote.messaging(f"entity {self._work.named}") as client, self._receiver(client) as receiver:
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

    def run(self, pace: RateLimit, undo: UndoFile | None = None) -> Totals:
        """See Executor; nothing is written to an undo file."""
        totals = Totals()
        with ExitStack() as stack:
            client = stack.enter_context(self._remote.messaging(f"entity {self._work.named}"))
            receiver = stack.enter_context(self._receiver(client))
            target = self._target()
            sender = None if target is None else stack.enter_context(client.get_queue_sender(target))
            self._go_through(receiver, sender, totals, pace)
        return totals

    def _go_through(self, receiver: ServiceBusReceiver, sender: Any, totals: Totals, pace: RateLimit) -> None:
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
                pace.step(totals.moved, totals.left)
                if len(held) >= HELD_MAX:
                    raise click.ClickException(
                        f"{len(held)} messages in front are not meant, which is as many as can be held. Done: "
                        f"{totals.moved}."
                    )
        finally:
            for message in held:
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
            if not _is_sent(sender, sdk_message(form), record["sequenceNumber"], totals):
                return False
        receiver.complete_message(message)
        totals.moved += 1
        return True

    def bring(self, chunk: list[dict[str, Any]], totals: Totals, note: Note | None = None) -> None:
        """See Executor."""
        if self._work.action != "send":
            raise click.ClickException("This server cannot make dead letters of messages. Send them: leave it out.")
        with (
            self._remote.messaging(f"entity {self._work.named}") as client,
            client.get_queue_sender(self._work.entity) as sender,
        ):
            for record in chunk:
                try:
                    message = sdk_message(record["message"])
                except (ServiceBusError, ValueError, TypeError) as error:
                    totals.skip(record.get("sequenceNumber"), str(error))
                    continue
                totals.moved += _is_sent(sender, message, record.get("sequenceNumber"), totals)

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
        return self._selection.takes(
            payload, metadata, enqueued_ms=0, sequence_number=number, deliveries=record["deliveryCount"]
        )

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


def _is_sent(sender: Any, message: AmqpAnnotatedMessage, number: int | None, totals: Totals) -> bool:
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


def record_of(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """What the dead-letter service of a server would tell of a message."""
    form = form_of_sdk(message)
    properties = form.get("applicationProperties", {})
    return {
        "sequenceNumber": message.sequence_number,
        "enqueuedSequenceNumber": message.enqueued_sequence_number,
        "enqueuedTime": None if message.enqueued_time_utc is None else message.enqueued_time_utc.isoformat(),
        "deliveryCount": message.delivery_count or 0,
        "state": "active",
        "isHeld": False,
        "reason": properties.pop(REASON, None),
        "description": properties.pop(DESCRIPTION, None),
        "deadLetterSource": message.dead_letter_source,
        "message": form,
    }


def form_of_sdk(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """The form of a message that the SDK has received."""
    raw = message.raw_amqp_message
    form: dict[str, Any] = {}
    header = raw.header
    if header is not None:
        head = {
            "durable": header.durable,
            "priority": header.priority,
            "timeToLive": None if header.time_to_live is None else format_duration(header.time_to_live),
        }
        form["header"] = {name: value for name, value in head.items() if value is not None}
    annotations: dict[str, Any] = {}
    for key, value in (raw.annotations or {}).items():
        name = _plain(key)
        if name in _KNOWN:
            form[_KNOWN[name]] = _plain(value)
        elif name not in _BROKERS and value is not None:
            annotations[str(name)] = _typed(value)
    form["annotations"] = annotations
    if raw.properties is not None:
        found = {name: getattr(raw.properties, attribute) for name, attribute in _FIELDS.items()}
        form["properties"] = {
            name: _plain(value) if name in _TEXTS else _identity(name, value)
            for name, value in found.items()
            if value is not None
        }
    form["applicationProperties"] = {
        str(_plain(name)): _typed(value) for name, value in (raw.application_properties or {}).items()
    }
    if raw.footer:
        form["footer"] = {str(_plain(name)): _typed(value) for name, value in raw.footer.items()}
    form["body"] = _body_of(raw)
    return {name: value for name, value in form.items() if value}


def _body_of(raw: Any) -> dict[str, Any] | None:
    kind = raw.body_type.value
    if kind == "data":
        parts = []
        for part in raw.body:
            try:
                parts.append(bytes(part).decode())
            except UnicodeDecodeError:
                parts.append(to_json(bytes(part)))
        return {"data": parts}
    if kind == "sequence":
        return {"sequence": [_typed(list(part)) for part in raw.body]}
    return {"value": _typed(raw.body)}


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _identity(name: str, value: Any) -> Any:
    # pyamqp gives strings and binary as bytes alike; nearly all ids are text.
    return _plain(value) if isinstance(value, bytes | str) and name != "userId" else to_json(_coded(value))


def _typed(value: Any) -> Any:
    return to_json(_coded(value))


def _coded(value: Any) -> Any:
    """A value of pyamqp, where text comes as bytes, as one of the codec."""
    if isinstance(value, Mapping):
        return {_coded(key): _coded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_coded(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, datetime):
        return from_json({"$timestamp": value.isoformat()})
    if value is None or isinstance(value, bool | int | float | str | uuid.UUID):
        return value
    return str(value)


def sdk_message(form: dict[str, Any]) -> Any:
    """A message of the SDK that is sent as the form says.

    Raises:
        ArgumentInvalid: It is no form.
    """
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    # All that can be wrong with it is told here, in the words of the form.
    _, metadata = message_of(form)
    body = form.get("body") or {"data": [""]}
    options: dict[str, Any] = {}
    if "data" in body:
        options["data_body"] = [_binary(part) for part in body["data"]]
    elif "sequence" in body:
        options["sequence_body"] = [[_for_sdk(item) for item in part] for part in body["sequence"]]
    else:
        options["value_body"] = _for_sdk(body["value"])
    fields = {_FIELDS[name]: _field(name, value) for name, value in (form.get("properties") or {}).items()}
    annotations = {name: _for_sdk(value) for name, value in (form.get("annotations") or {}).items()}
    for annotation, member in _KNOWN.items():
        if form.get(member) is not None:
            annotations[annotation] = form[member]
    if metadata.scheduled_ms is not None:
        annotations["x-opt-scheduled-enqueue-time"] = {"TYPE": "TIMESTAMP", "VALUE": metadata.scheduled_ms}
    header: dict[str, Any] = {}
    if metadata.ttl_ms is not None:
        header["time_to_live"] = parse_duration(str(form["header"]["timeToLive"]))
    if metadata.priority is not None:
        header["priority"] = metadata.priority
    if metadata.durable is not None:
        header["durable"] = metadata.durable
    return AmqpAnnotatedMessage(
        header=header or None,
        properties=fields or None,
        annotations=annotations or None,
        application_properties={
            name: _for_sdk(value) for name, value in (form.get("applicationProperties") or {}).items()
        }
        or None,
        footer={name: _for_sdk(value) for name, value in (form.get("footer") or {}).items()} or None,
        **options,
    )


def _binary(part: Any) -> bytes:
    found = from_json(part)
    return found.encode() if isinstance(found, str) else bytes(found)


def _field(name: str, value: Any) -> Any:
    found = from_json(value)
    if isinstance(found, Symbol):
        return str(found)
    if name in ("absoluteExpiryTime", "creationTime"):
        return from_json({"$timestamp": value}) if not isinstance(value, dict) else found
    return found


def _for_sdk(value: Any) -> Any:
    """A typed value of JSON as pyamqp encodes it: with its type, where Python has none of its own."""
    if isinstance(value, dict) and len(value) == 1:
        ((name, inside),) = value.items()
        if name.startswith("$") and name[1:] in _TYPES:
            return {"TYPE": _TYPES[name[1:]], "VALUE": from_json(value) if name != "$float" else float(inside)}
        if name.startswith("$"):
            return from_json(value)
    if isinstance(value, dict):
        return {key: _for_sdk(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_for_sdk(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return {"TYPE": "LONG", "VALUE": value}
    return value


__all__ = ["HELD_MAX", "SdkDeadLetters", "form_of_sdk", "record_of", "sdk_message"]
