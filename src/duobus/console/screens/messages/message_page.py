"""One message: its body, its properties with their types, and its downloads."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from duobus.console.formats import entity_url
from duobus.console.namespace.absence import missing_of
from duobus.console.screens.messages import bodies
from duobus.console.screens.messages.node import node_for
from duobus.console.screens.messages.places import (
    ACTIVE,
    DEAD,
    PLACES,
    SCHEDULED,
    SESSION,
    TRANSFER,
    MessageEntity,
    node_of,
    place_of,
    tabs_of,
)
from duobus.console.screens.messages.records import (
    PARTITION_BITS,
    body_bytes,
    number_of,
    record_of,
    row_of,
    state_of,
    typed,
    values_of,
    visible,
)
from duobus.console.visits import Refusal, View, Visit
from duobus.model.json.deliveries import Delivery
from duobus.model.json.values import time_text, to_json

_CHUNK: Final = 1 << 20
#: Largest message whose properties and body go into an answer in JSON; the downloads have every message whole.
WHOLE_BYTES_MAX: Final = 4 << 20
_TIMES: Final = {"x-opt-enqueued-time", "x-opt-scheduled-enqueue-time", "x-opt-locked-until"}


async def find(visit: Visit, entity: MessageEntity, place: str, number: int) -> Delivery:
    """Look at one message.

    Raises:
        Refusal: The message is no longer there.
        NamespaceError: The namespace refuses, or does not answer.
    """
    return (await _find(visit, entity, place, number))[0]


async def _find(visit: Visit, entity: MessageEntity, place: str, number: int) -> tuple[Delivery, int | None]:
    """Look at one message, and tell the number of the next one where that came with it.

    Raises:
        Refusal: The message is no longer there.
        NamespaceError: The namespace refuses, or does not answer.
    """
    node = await node_for(visit.session, node_of(entity, place))
    found = await node.peek(number, 2)
    if not found or number_of(found[0]) != number:
        missing = await missing_of(visit.namespace, entity.name, None)
        for one in () if missing is None else missing["fragments"]:
            if one["fragment"] == number >> PARTITION_BITS:
                text = f"Store {one['store']} is away, which holds message {number} of {entity.path}, if it is there."
                raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, text)
        raise Refusal(
            HTTPStatus.NOT_FOUND,
            f"There is no message {number} in {PLACES[place].lower()} of {entity.path}. "
            "It was settled, has expired or was moved; or it never was there.",
        )
    return found[0], next((number_of(one) for one in found[1:] if _is_neighbour(found[0], one, place)), None)


def _is_neighbour(one: Delivery, other: Delivery, place: str) -> bool:
    same_session = place != SESSION or one.properties.get("groupId") == other.properties.get("groupId")
    return same_session and state_of(one) == state_of(other)


async def show(visit: Visit, entity: MessageEntity) -> View | web.StreamResponse:
    """The page of a message, or a download of it."""
    place = place_of(visit.query.get("place"))
    number = visit.number("number", 0)
    delivery, following = await _find(visit, entity, place, number)
    wanted = visit.query.get("download", "")
    if wanted == "body":
        return await _download(visit, body_bytes(delivery), f"message-{number}.bin", "application/octet-stream")
    if wanted == "message":
        line = json.dumps(record_of(delivery), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        return await _download(visit, line, f"message-{number}.jsonl", "application/jsonl")
    if visit.wants_json and len(delivery.payload) <= WHOLE_BYTES_MAX:
        return View("messages/message.html", str(number), record_of(delivery))
    view = visit.query.get("view", bodies.AUTO)
    view = view if view in bodies.VIEWS else bodies.AUTO
    session = visit.query.get("session") if place == SESSION else None
    address = {"place": None if place == ACTIVE else place, "session": session}
    rights = visit.namespace.rights
    here = entity_url(entity.path, "messages", **address, number=number)
    data: dict[str, Any] = {
        "entity": entity.path,
        "place": place,
        "label": PLACES[place],
        "number": number,
        "row": row_of(delivery),
        "state": state_of(delivery),
        "body": body_of(delivery, view)._asdict(),
        "body_type": _body_type(delivery),
        "view": view,
        "system": _system(delivery),
        "properties": values_of(delivery.application_properties),
        "annotations": _annotations(delivery),
        "delivery_annotations": values_of(delivery.delivery_annotations),
        "footer": values_of(delivery.footer),
    }
    if visit.wants_json:
        return View("messages/message.html", str(number), data)
    frame = {
        "tabs": tabs_of(entity, may_listen=rights.listen, may_send=rights.send),
        "current_tab": "sessions" if place == SESSION else place,
        "views": [(name, text, f"{here}&view={name}") for name, text in bodies.VIEWS.items()],
        "here": here,
        "absolute": f"{visit.request.url.origin()}{here}",
        "list_url": entity_url(entity.path, "messages", **address, **{"from": number}),
        "next_url": "" if following is None else entity_url(entity.path, "messages", **address, number=following),
        "copy_url": entity_url(entity.name, "send", original=number, of=entity.path, place=place)
        if rights.send
        else "",
        "is_scheduled": place == SCHEDULED and rights.send and not entity.subscription,
        "is_dead": place in (DEAD, TRANSFER),
        "dead_url": entity_url(entity.path, "dead-letters"),
    }
    return View("messages/message.html", f"Message {number}", data | frame)


def body_of(delivery: Delivery, view: str) -> bodies.Body:
    """The body for people; a body of AMQP values as JSON with the types of AMQP."""
    properties = delivery.properties
    plain = delivery.body_kind == "data" or (delivery.body_kind == "value" and type(delivery.body[0]) in (str, bytes))
    if view == bodies.AUTO and delivery.body_kind and not plain:
        value = to_json(delivery.body[0] if delivery.body_kind == "value" else delivery.body)
        text = json.dumps(value, indent=2, ensure_ascii=False)
        notes = ['Types of AMQP that JSON does not have are written with a dollar sign, as in {"$uint": 5}.']
        if len(text) > bodies.SHOWN_BYTES_MAX:
            notes.append(f"Only the first {bodies.SHOWN_BYTES_MAX >> 10} KiB are shown. The download has everything.")
        data = visible(text[: bodies.SHOWN_BYTES_MAX])
        return bodies.Body(bodies.JSON, data, len(body_bytes(delivery)), notes)
    return bodies.shown(
        body_bytes(delivery),
        str(properties.get("contentType", "")),
        str(properties.get("contentEncoding", "")),
        view,
    )


def _body_type(delivery: Delivery) -> str:
    """How AMQP carries the body."""
    if delivery.body_kind == "data":
        sections = len(delivery.body)
        return "data" if sections == 1 else f"data, {sections} sections"
    if delivery.body_kind == "value":
        return f"value ({typed(to_json(delivery.body[0]))['type']})"
    return f"sequence, {len(delivery.body)} sections" if delivery.body_kind else "none"


def _system(delivery: Delivery) -> list[dict[str, str]]:
    """Fields of the header and of the properties section, as a person reads them."""
    return [
        *({**one, "section": "header"} for one in values_of(delivery.header)),
        *({**one, "section": "properties"} for one in values_of(delivery.properties)),
    ]


def _annotations(delivery: Delivery) -> list[dict[str, str]]:
    found = values_of(delivery.annotations)
    for one in found:
        value = delivery.annotations.get(one["name"])
        if one["name"] in _TIMES and isinstance(value, int):
            one["time"] = str(time_text(int(value)))
    return found


async def _download(visit: Visit, data: bytes, name: str, content_type: str) -> web.StreamResponse:
    """Send bytes as a file, in parts, so that a slow reader costs no second copy."""
    response = web.StreamResponse(
        headers={
            "Content-Type": content_type,
            "Content-Disposition": f'attachment; filename="{re.sub(r"[^A-Za-z0-9._-]", "_", name)}"',
            "Content-Length": str(len(data)),
            "Cache-Control": "no-store",
        }
    )
    await response.prepare(visit.request)
    view = memoryview(data)
    for start in range(0, len(data), _CHUNK):
        await response.write(view[start : start + _CHUNK])
    await response.write_eof()
    return response
