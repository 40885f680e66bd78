"""Sending: a message that a person writes, a copy of another one, a file of messages; and what is scheduled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from http import HTTPStatus
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.exceptions import MessageSizeExceededError

from duobus.console.formats import entity_url
from duobus.console.namespace.failures import NamespaceError
from duobus.console.screens.messages import drafts, message_page
from duobus.console.screens.messages.places import (
    AUDITED,
    SCHEDULED,
    MessageEntity,
    entity_of,
    place_of,
    screen,
    tabs_of,
)
from duobus.console.screens.messages.records import visible
from duobus.console.uploads import MESSAGE_BYTES_MAX, Upload
from duobus.console.visits import Outcome, Redirect, Refusal, View, Visit
from duobus.dead_letters.sdk_messages import sdk_message

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusSender

#: Scheduled messages that one request cancels or sends at once.
CHOSEN_MAX: Final = 200
#: Largest text of another message that the field of the form gets; a longer one is sent as it is.
EDITED_MAX: Final = 1 << 20
#: How long the sending of one form may take, or of one portion of a file, in seconds.
_SEND_S: Final = 120.0
#: Messages of one portion of a file, and their bytes: so much of the file is in memory.
_PORTION: Final = 500
_PORTION_BYTES: Final = 4 << 20
#: Empty rows for properties that a form offers.
_ROWS: Final = 2
#: The fields of the form, as a person finds them.
_BEGUN: Final = dict.fromkeys(
    (
        *("original", "of", "place", "body", "type", "encoding", "subject", "id", "session", "partition"),
        *("correlation", "to", "reply", "reply_session", "ttl", "schedule"),
    ),
    "",
) | {"kind": drafts.TEXT, "count": "1"}


@screen.get("/send/{path:.+}", right="send")
async def show(visit: Visit) -> View:
    """The form, empty or with a message that is to be sent again."""
    entity = _sendable(visit)
    fields = dict(_BEGUN)
    properties: list[tuple[str, str, str]] = []
    if visit.query.get("original"):
        base = await _original(visit, visit.query)
        shown, properties = drafts.fields_of(base)
        if len(shown["body"]) > EDITED_MAX:
            shown |= {"body": "", "kind": drafts.ORIGINAL}
        fields |= shown | {name: visit.query.get(name, "") for name in ("original", "of", "place")}
    return _page(visit, entity, fields, properties)


@screen.post("/send/{path:.+}", right="send", file_max=MESSAGE_BYTES_MAX)
async def send(visit: Visit) -> Outcome:
    """Send what the form says; nothing that was typed is lost when it cannot be sent."""
    entity = _sendable(visit)
    fields = {name: visit.form.get(name, usual) for name, usual in _BEGUN.items()}
    names, kinds, texts = (visit.form.getall(name, []) for name in ("p_name", "p_type", "p_value"))
    properties = list(zip(names, kinds, texts, strict=False))[: drafts.PROPERTIES_MAX]
    if visit.form.get("do") == "rows":
        return _page(visit, entity, fields, properties, rows=len(properties) + _ROWS)
    try:
        count = _count(fields["count"])
        base = await _original(visit, fields) if fields["original"] else None
        file = visit.files.get("file")
        has_file = file is not None and file.size > 0
        form = drafts.form_of_fields(fields, properties, has_file=has_file, base=base, now_ms=visit.clock.now_ms())
        data = file.read() if file is not None and fields["kind"] == drafts.FILE else None
        sent = await send_forms(visit, entity, list(drafts.repeated(form, count)), data)
    except drafts.DraftFault as fault:
        return _page(visit, entity, fields, properties, fault=(fault.field, fault.text))
    except (NamespaceError, Refusal) as error:
        status = error.status if error.status < HTTPStatus.INTERNAL_SERVER_ERROR else HTTPStatus.UNPROCESSABLE_ENTITY
        return _page(visit, entity, fields, properties, fault=("", error.text), status=status)
    await visit.write_down("send", AUDITED, entity.path, note=f"{sent} messages")
    what = "1 message is" if sent == 1 else f"{sent:,} messages are"
    told = f"{what} {'scheduled' if form.get('scheduledEnqueueTime') else 'sent'} to {visible(entity.path)}."
    return Redirect(entity_url(entity.path, "send"), notice=told)


@screen.post("/send-file/{path:.+}", right="send", file_max=None)
async def send_file(visit: Visit) -> Outcome:
    """Send the messages of a JSONL file: nothing before each line is known to be one, then portion by portion."""
    entity = _sendable(visit)
    try:
        file = visit.files.get("lines")
        if file is None:
            raise drafts.DraftFault("lines", "The file has no message.")
        # Others have their turns while a large file is read.
        number = await asyncio.to_thread(lambda: drafts.count_lines(file.lines(drafts.LINE_BYTES_MAX)))
        sent = await _send_lines(visit, entity, file, number)
    except drafts.DraftFault as fault:
        return _page(visit, entity, dict(_BEGUN), [], fault=(fault.field, fault.text))
    except NamespaceError as error:
        return _page(visit, entity, dict(_BEGUN), [], fault=("lines", error.text))
    await visit.write_down("send", AUDITED, entity.path, note=f"{sent} messages of a file")
    return Redirect(entity_url(entity.path, "send"), notice=f"{sent:,} messages of the file are sent.")


@screen.post("/scheduled/{path:.+}", right="send")
async def change_scheduled(visit: Visit) -> Redirect:
    """Cancel scheduled messages, or send them at once."""
    entity = _sendable(visit)
    back = entity_url(entity.path, "messages", place=SCHEDULED)
    numbers = [int(text) for text in visit.form.getall("number", []) if text.isdecimal() and len(text) < 20]
    if not numbers:
        return Redirect(back, notice="Choose messages first.", kind="warning")
    if len(numbers) > CHOSEN_MAX:
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, f"At most {CHOSEN_MAX} messages at a time.")
    if visit.form.get("do") == "now":
        return await _send_now(visit, entity, numbers, back)
    await _cancel(visit, entity, numbers)
    await visit.write_down("cancel", AUDITED, entity.path, note=f"{len(numbers)} scheduled messages")
    what = f"Message {numbers[0]} is" if len(numbers) == 1 else f"{len(numbers)} messages are"
    return Redirect(back, notice=f"{what} cancelled.")


async def _send_now(visit: Visit, entity: MessageEntity, numbers: Sequence[int], back: str) -> Redirect:
    """Send a copy of each message, then cancel the message; the other order could lose one."""
    if not visit.namespace.rights.listen:
        raise Refusal(HTTPStatus.FORBIDDEN, "To send a scheduled message at once, it has to be read: Listen is needed.")
    if visit.namespace.rights.manage and not visit.namespace.entity and await _drops_duplicates(visit, entity):
        raise Refusal(
            HTTPStatus.CONFLICT,
            f"{entity.path} detects duplicates and would drop the copy. Send a copy with another message id, "
            "then cancel this one.",
        )
    for done, number in enumerate(numbers):
        try:
            delivery = await message_page.find(visit, entity, SCHEDULED, number)
            await send_forms(visit, entity, [drafts.fresh(delivery.form())])
            await _cancel(visit, entity, [number])
        except (NamespaceError, Refusal) as error:
            told = f"{done} of {len(numbers)} messages are sent. Message {number}: {error.text}"
            return Redirect(back, notice=told, kind="error")
    await visit.write_down("send at once", AUDITED, entity.path, note=f"{len(numbers)} scheduled messages")
    what = f"Message {numbers[0]} is" if len(numbers) == 1 else f"{len(numbers)} messages are"
    return Redirect(back, notice=f"{what} sent.")


async def _cancel(visit: Visit, entity: MessageEntity, numbers: Sequence[int]) -> None:
    sender = visit.namespace.messaging.get_queue_sender(entity.name)
    async with visit.namespace.telling(entity.what), sender:
        await sender.cancel_scheduled_messages(list(numbers))


async def _drops_duplicates(visit: Visit, entity: MessageEntity) -> bool:
    async with visit.namespace.telling(entity.what):
        try:
            queue = await visit.namespace.administration.get_queue(entity.name)
        except ValueError:
            topic = await visit.namespace.administration.get_topic(entity.name)
            return bool(topic.requires_duplicate_detection)
    return bool(queue.requires_duplicate_detection)


async def send_forms(
    visit: Visit, entity: MessageEntity, forms: Sequence[dict[str, Any]], data: bytes | None = None
) -> int:
    """Send messages in as few batches as hold them; return how many were sent.

    Args:
        visit: Of the person.
        entity: Where to.
        forms: The messages.
        data: The body of each of them, where a file has brought it.

    Raises:
        NamespaceError: The namespace refuses; the sentence tells how many were sent before.
    """
    sent = 0
    try:
        sender = visit.namespace.messaging.get_queue_sender(entity.name)
        async with visit.namespace.telling(entity.what, _SEND_S), sender:
            async for number in _sent(sender, forms, data):
                sent += number
    except NamespaceError as error:
        _tell_sent(error, sent, len(forms))
        raise
    return sent


async def _send_lines(visit: Visit, entity: MessageEntity, file: Upload, number: int) -> int:
    """Send the messages of a file of which each line was looked at.

    Raises:
        NamespaceError: The namespace refuses; the sentence tells how many were sent before.
    """
    sent = 0
    forms = drafts.forms_of_lines(file.lines(drafts.LINE_BYTES_MAX))
    try:
        sender = visit.namespace.messaging.get_queue_sender(entity.name)
        async with sender:
            while portion := await asyncio.to_thread(_portion, forms, file):
                async with visit.namespace.telling(entity.what, _SEND_S):
                    async for more in _sent(sender, portion, None):
                        sent += more
    except NamespaceError as error:
        _tell_sent(error, sent, number)
        raise
    return sent


def _portion(forms: Iterator[dict[str, Any]], file: Upload) -> list[dict[str, Any]]:
    """The next messages of a file."""
    found: list[dict[str, Any]] = []
    begin = file.file.tell()
    while len(found) < _PORTION and file.file.tell() - begin < _PORTION_BYTES:
        form = next(forms, None)
        if form is None:
            break
        found.append(form)
    return found


def _tell_sent(error: NamespaceError, sent: int, number: int) -> None:
    if sent:
        error.text = f"{sent:,} of {number:,} messages were sent before this: {error.text}"


async def _sent(sender: ServiceBusSender, forms: Sequence[dict[str, Any]], data: bytes | None) -> AsyncIterator[int]:
    """Send messages; tells the number of each batch once the batch is accepted."""
    for _, group in groupby(forms, drafts.key_of):
        async for number in _batches(sender, [sdk_message(form, data) for form in group]):
            yield number


async def _batches(sender: ServiceBusSender, messages: list[Any]) -> AsyncIterator[int]:
    """Send a run of messages; tells the number of each batch once the batch is accepted."""
    if len(messages) == 1:
        await sender.send_messages(messages[0])
        yield 1
        return
    batch, size = await sender.create_message_batch(), 0
    for message in messages:
        try:
            batch.add_message(message)
        except MessageSizeExceededError:
            if not size:
                raise
            await sender.send_messages(batch)
            yield size
            batch, size = await sender.create_message_batch(), 0
            batch.add_message(message)
        size += 1
    if size:
        await sender.send_messages(batch)
        yield size


def _sendable(visit: Visit) -> MessageEntity:
    entity = entity_of(visit.match["path"])
    if entity.subscription:
        raise Refusal(
            HTTPStatus.CONFLICT, f"Nothing can be sent to a subscription. Send to its topic, {visible(entity.name)}."
        )
    return entity


def _count(text: str) -> int:
    if not text.strip().isdecimal() or not 1 <= int(text) <= drafts.REPEATED_MAX:
        raise drafts.DraftFault("count", f"Give a number from 1 to {drafts.REPEATED_MAX:,}.")
    return int(text)


async def _original(visit: Visit, given: Any) -> dict[str, Any]:
    """The message that is sent again."""
    if not visit.namespace.rights.listen:
        raise Refusal(HTTPStatus.FORBIDDEN, "To send a message again, it has to be read: Listen is needed.")
    if not str(given.get("original", "")).isdecimal():
        raise Refusal(HTTPStatus.NOT_FOUND, "There is no such message.")
    place = place_of(given.get("place"))
    delivery = await message_page.find(visit, entity_of(given.get("of", "")), place, int(given["original"][:20]))
    form = delivery.form()
    if delivery.fault:
        raise Refusal(HTTPStatus.CONFLICT, "The bytes of this message cannot be read, so that no copy can be sent.")
    return form


def _page(
    visit: Visit,
    entity: MessageEntity,
    fields: dict[str, str],
    properties: list[tuple[str, str, str]],
    *,
    fault: tuple[str, str] | None = None,
    rows: int = 0,
    status: int = HTTPStatus.UNPROCESSABLE_ENTITY,
) -> View:
    rights = visit.namespace.rights
    named = [one for one in properties if any((one[0], one[2]))]
    empty = max(rows - len(named), _ROWS)
    data: dict[str, Any] = {
        "entity": entity.path,
        "fields": fields,
        "properties": [*named, *([("", "string", "")] * empty)],
        "fault": None if fault is None else {"field": fault[0], "text": fault[1]},
    }
    if not visit.wants_json:
        data |= {
            "tabs": tabs_of(entity, may_listen=rights.listen, may_send=rights.send),
            "types": drafts.TYPES,
            "kinds": [(drafts.TEXT, "Text"), (drafts.JSON, "JSON, checked"), (drafts.FILE, "A file")],
            "counter": drafts.COUNTER,
        }
    return View("messages/send.html", f"Send to {entity.path}", data, HTTPStatus.OK if fault is None else status)
