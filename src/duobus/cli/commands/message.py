"""``duobus message``: send, peek, receive; and the commands of ``message_files``."""

from __future__ import annotations

import base64
import datetime
import itertools
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from duobus.cli.message_files.commands import capture, export, import_
from duobus.cli.message_source import named, receiver_of, source_options, with_session_hint
from duobus.cli.options import pair
from duobus.cli.output import NUMBER, TIME, Column, Commands, Printer, Record, clean
from duobus.cli.remote import Remote, duration, remote_command
from duobus.console.namespace.sdk_forms import camel, plain
from duobus.model.durations import parse_duration

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, ServiceBusReceiver

#: Messages asked for at a time: what is received is locked, and printed before it is completed.
_CHUNK: Final = 100

_COUNT: Final = click.IntRange(1, 1_000_000)

#: What is printed of a message beside its properties and its body.
_MEMBERS: Final = (
    "sequence_number",
    "message_id",
    "session_id",
    "subject",
    "content_type",
    "correlation_id",
    "partition_key",
    "to",
    "reply_to",
    "reply_to_session_id",
    "time_to_live",
    "enqueued_time_utc",
    "scheduled_enqueue_time_utc",
    "delivery_count",
    "state",
    "dead_letter_reason",
    "dead_letter_error_description",
)

_COLUMNS: Final = ("sequenceNumber", "messageId", "sessionId", "subject", "enqueuedTimeUtc", "deliveryCount", "body")

_TABLE: Final = (
    Column("sequenceNumber", "number", NUMBER),
    Column("messageId", "id"),
    Column("sessionId", "session"),
    Column("subject", "subject"),
    Column("enqueuedTimeUtc", "enqueued", TIME),
    Column("deliveryCount", "tries", NUMBER),
    Column("body", "body"),
)

_SEND: Final = """
\b
Example:
  duobus message send orders hello --message-id 1 --property colour=red --property size:=5
  seq 1000 | duobus message send orders --lines
"""

_PEEK: Final = """
\b
Example:
  duobus message peek orders --count 10
  duobus message peek prices --subscription alerts --dead-letter -o json
"""

_RECEIVE: Final = """
\b
Example:
  duobus message receive orders --count 10 --wait 30s
  duobus message receive orders --mode receive-and-delete --session-id customer-7
  duobus message receive orders --next-session --count 100
"""


@click.group(name="message", cls=Commands, no_args_is_help=True)
def command() -> None:
    """Send, peek and receive messages."""


for _command in (capture, export, import_):
    command.add_command(_command)


@command.command(name="send", epilog=_SEND)
@click.argument("entity")
@click.argument("body", required=False)
@click.option("--lines", is_flag=True, help="Make a message of each line of standard input.")
@click.option("--count", type=_COUNT, default=1, show_default=True, help="Send the message this many times.")
@click.option("--message-id", help="Id, for duplicate detection.")
@click.option("--session-id", help="Session that it belongs to.")
@click.option("--partition-key", help="Messages with the same key stay in order.")
@click.option("--correlation-id", help="Id of the message that this one answers.")
@click.option("--subject", "--label", help="Subject.")
@click.option("--content-type", help="Content type of the body.")
@click.option("--to", help="Address.")
@click.option("--reply-to", help="Address to reply to.")
@click.option("--reply-to-session-id", help="Session to reply to.")
@click.option("--time-to-live", type=duration, help="How long it lives.")
@click.option(
    "--property", "properties", type=pair, multiple=True, help="NAME=TEXT, or NAME:=5 for a number. Repeatable."
)
@remote_command(has_endpoint=False, has_output=False)
def send(remote: Remote, entity: str, body: str | None, lines: bool, count: int, **given: Any) -> None:
    """Send messages to a queue or topic: BODY, or the content of standard input."""
    if lines and (body is not None or count > 1 or given["message_id"]):
        raise click.UsageError("--lines goes with neither BODY nor --count nor --message-id.")
    options = {name: value for name, value in given.items() if value not in (None, ())}
    if "time_to_live" in options:
        milliseconds = parse_duration(options["time_to_live"])
        options["time_to_live"] = milliseconds and datetime.timedelta(milliseconds=milliseconds)
    options["application_properties"] = dict(options.pop("properties", ()))
    sent = _Sent()
    try:
        with remote.messaging(f"entity {entity}") as client:
            _send(client, entity, _bodies(body, lines, count, sys.stdin.buffer), options, sent)
    except BaseException:
        if lines or count > 1:
            click.echo(sent.text, err=True)
        raise
    click.echo(sent.text, err=True)


def _bodies(body: str | None, lines: bool, count: int, stream: BinaryIO) -> Iterator[bytes]:
    if (lines or body is None) and sys.stdin.isatty():
        what = "Each line is a message" if lines else "What follows is the body"
        click.echo(f"{what}; Ctrl-D ends it.", err=True)
    if lines:
        return (line.removesuffix(b"\n").removesuffix(b"\r") for line in stream)
    return itertools.repeat(stream.read() if body is None else body.encode("utf-8", "surrogateescape"), count)


class _Sent:
    """How far sending has come.

    Attributes:
        number: Messages that were accepted: the first ones of all.
        trying: Those after them, which are on their way.
    """

    def __init__(self) -> None:
        self.number = 0
        self.trying = 0

    @property
    def text(self) -> str:
        """As the user is told, also when it went wrong: whoever goes on has to know where."""
        unknown = f" The next {self.trying} were refused, or, if the connection broke, may have been accepted."
        return f"Sent: {self.number}.{unknown if self.trying else ''}"


def _send(client: ServiceBusClient, entity: str, bodies: Iterable[bytes], options: dict[str, Any], sent: _Sent) -> None:
    """Send messages, as many at a time as a batch holds."""
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.exceptions import MessageSizeExceededError

    # To a topic as well: the address of an entity does not depend on its kind.
    with client.get_queue_sender(entity) as sender:

        def send(batch: ServiceBusMessageBatch, size: int) -> None:
            sent.trying = size
            sender.send_messages(batch)
            sent.number, sent.trying = sent.number + size, 0

        batch, size = sender.create_message_batch(), 0
        for body in bodies:
            message = ServiceBusMessage(body, **options)
            try:
                batch.add_message(message)
            except MessageSizeExceededError:
                if not size:
                    raise
                send(batch, size)
                batch, size = sender.create_message_batch(), 0
                batch.add_message(message)
            size += 1
        if size:
            send(batch, size)


@command.command(name="peek", epilog=_PEEK)
@source_options
@click.option("--count", type=_COUNT, default=1, show_default=True, help="At most this many messages.")
@click.option("--from", "first", type=click.IntRange(0), help="From this sequence number on.")
@remote_command(has_endpoint=False)
def peek(remote: Remote, output: str | None, count: int, first: int | None, **source: Any) -> None:
    """Look at messages of a queue or subscription without taking them."""
    with (
        with_session_hint(source),
        remote.messaging(named(source)) as client,
        receiver_of(client, **source) as receiver,
        Printer(output, _COLUMNS, table=_TABLE) as printer,
    ):
        left, start = count, {} if first is None else {"sequence_number": first}
        while left and (found := receiver.peek_messages(min(left, _CHUNK), **start)):
            printer.print(record_of(message) for message in found)
            left -= len(found)
            start = {}
    click.echo(f"Peeked: {count - left}.", err=True)


@command.command(name="receive", epilog=_RECEIVE)
@source_options
@click.option("--count", type=_COUNT, default=1, show_default=True, help="At most this many messages.")
@click.option("--wait", type=duration, default="5s", show_default=True, help="How long to wait for the next one.")
@click.option(
    "--mode",
    type=click.Choice(("peek-lock", "receive-and-delete")),
    default="peek-lock",
    show_default=True,
    help="Whether a message is completed once it is printed, or gone when it is sent here.",
)
@click.option(
    "--next-session", "takes_next", is_flag=True, help="Of the next session that has messages and that nobody holds."
)
@remote_command(has_endpoint=False)
def receive(
    remote: Remote, output: str | None, count: int, wait: str, mode: str, takes_next: bool, **source: Any
) -> None:
    """Take messages of a queue or subscription and print them."""
    if takes_next and (source["session_id"] is not None or source["dead_letter"]):
        raise click.UsageError("--next-session goes with neither --session-id nor --dead-letter.")
    milliseconds = parse_duration(wait)
    if not milliseconds:
        raise click.BadParameter("Must be longer than nothing, and end.", param_hint="--wait")
    seconds = milliseconds / 1000
    # To try again for the next session would be to wait twice as long as asked.
    retries = 0 if takes_next else 1
    received = _Received()
    with (
        with_session_hint(source),
        remote.messaging(named(source), retries) as client,
        Printer(output, _COLUMNS, table=_TABLE) as printer,
    ):
        if takes_next:
            from azure.servicebus import NEXT_AVAILABLE_SESSION

            # The server waits so long for a session, too.
            source |= {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": seconds}
        with _open_receiver(client, receive_mode=mode.replace("-", ""), **source) as receiver:
            if receiver is None:
                click.echo("No session has messages that nobody holds.", err=True)
            else:
                if takes_next:
                    click.echo(f"Session: {clean(receiver.session.session_id)}.", err=True)
                received.take(receiver, printer, count, seconds, is_locked=mode == "peek-lock")
    click.echo(f"Received: {received.number}.", err=True)


class _Received:
    """What was received.

    Attributes:
        number: Messages that were printed, and completed if they were locked.
    """

    def __init__(self) -> None:
        self.number = 0

    def take(
        self, receiver: ServiceBusReceiver, printer: Printer, count: int, wait_s: float, *, is_locked: bool
    ) -> None:
        """Receive until there are so many, or none comes in time; after a failure, tell how many there are."""
        try:
            while left := count - self.number:
                found = receiver.receive_messages(min(left, _CHUNK), max_wait_time=wait_s)
                if not found:
                    return
                printer.print(record_of(message) for message in found)
                for message in found:
                    if is_locked:
                        receiver.complete_message(message)
                    self.number += 1
        except BaseException:
            if self.number:
                click.echo(f"Received before the failure: {self.number}.", err=True)
            raise


@contextmanager
def _open_receiver(client: ServiceBusClient, **source: Any) -> Iterator[ServiceBusReceiver | None]:
    """An open receiver; None when there is no next session."""
    from azure.servicebus.exceptions import OperationTimeoutError

    with ExitStack() as stack:
        try:
            receiver = stack.enter_context(receiver_of(client, **source))
        except OperationTimeoutError:
            if "max_wait_time" not in source:
                raise
            receiver = None
        yield receiver


def record_of(message: ServiceBusMessage) -> Record:
    """What is printed of a message: members that are set, properties, and the body as text or in base64."""
    found = {camel(name): plain(getattr(message, name, None)) for name in _MEMBERS}
    return {
        **{name: value for name, value in found.items() if value is not None or name in _COLUMNS},
        "properties": plain(message.application_properties or {}),
        **_body_of(message),
    }


def _body_of(message: ServiceBusMessage) -> dict[str, Any]:
    body = message.body
    if isinstance(body, Iterable) and not isinstance(body, str | bytes | dict | list):
        parts = list(body)
        body = b"".join(parts) if all(isinstance(part, bytes) for part in parts) else parts
    if not isinstance(body, bytes):
        return {"body": plain(body)}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"bodyBase64": base64.b64encode(body).decode()}
