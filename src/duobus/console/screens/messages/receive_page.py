"""Receiving and settling by hand, with the locks of the console's session; sessions accepted and their state edited."""

from __future__ import annotations

import base64
import binascii
import json
from http import HTTPStatus
from typing import Any, Final

from duobus.console.formats import entity_url
from duobus.console.namespace.failures import NamespaceError
from duobus.console.screens.messages import held
from duobus.console.screens.messages.bodies import hex_dump
from duobus.console.screens.messages.places import (
    ACTIVE,
    AUDITED,
    DEAD,
    PLACES,
    TRANSFER,
    MessageEntity,
    entity_of,
    screen,
    tabs_of,
)
from duobus.console.screens.messages.records import visible
from duobus.console.visits import Redirect, Refusal, View, Visit

#: Longest time that one request waits for messages, in seconds.
WAIT_MAX_S: Final = 20
#: Largest state of a session that is shown and edited.
STATE_BYTES_MAX: Final = 256 << 10
_RECEIVABLE: Final = (ACTIVE, DEAD, TRANSFER)


@screen.get("/receive/{path:.+}", right="listen")
async def show(visit: Visit) -> View:
    """What the person holds, and the forms to receive more."""
    entity = entity_of(visit.match["path"])
    receivers = held.receivers_of(visit.session).of(entity)
    data: dict[str, Any] = {
        "entity": entity.path,
        "receivers": [await _shown(one) for one in receivers],
    }
    if not visit.wants_json:
        rights = visit.namespace.rights
        data |= {
            "tabs": tabs_of(entity, may_listen=rights.listen, may_send=rights.send),
            "places": [(place, PLACES[place]) for place in _RECEIVABLE],
            "place": visit.query.get("place", ACTIVE),
            "session": visit.query.get("session", ""),
            "numbers": visit.query.get("number", ""),
            "longest": WAIT_MAX_S,
        }
    return View("messages/receive.html", f"Receive from {entity.path}", data)


async def _shown(one: held.HeldMessages) -> dict[str, Any]:
    until = one.session_locked_until
    found: dict[str, Any] = {
        "place": one.place,
        "label": PLACES[one.place],
        "session": one.session_id,
        "until": None if until is None else until.isoformat(),
        "rows": one.rows,
        "state": None,
        "fault": "",
    }
    if one.session_id is not None:
        try:
            found["state"] = state_for_page(await one.state())
        except NamespaceError as error:
            found["fault"] = error.text
    for row in found["rows"]:
        row["url"] = entity_url(one.entity.path, "messages", place=one.place, number=row["number"])
    return found


def state_for_page(state: bytes) -> dict[str, Any]:
    """The state of a session: as text where it is text, and as hexadecimal digits."""
    part = state[:STATE_BYTES_MAX]
    try:
        text: str | None = part.decode()
    except UnicodeDecodeError:
        text = None
    is_text = text is not None and text == visible(text)
    return {"size": len(state), "text": text if is_text else None, "hex": hex_dump(part)}


@screen.post("/receive/{path:.+}", right="listen")
async def act(visit: Visit) -> Redirect:
    """Receive, accept a session, settle, renew or give back."""
    entity = entity_of(visit.match["path"])
    deeds = {
        "receive": _receive,
        "accept": _receive,
        "deferred": _receive_deferred,
        "renew-session": _renew_session,
        "state": _set_state,
        "release": _release,
        **dict.fromkeys(held.SETTLEMENTS, _settle),
    }
    deed = deeds.get(visit.form.get("do", ""))
    if deed is None:
        raise Refusal(HTTPStatus.BAD_REQUEST, "There is no such action.")
    back = entity_url(entity.path, "receive")
    try:
        told, kind = await deed(visit, entity)
    except NamespaceError as error:
        # The person stays where the messages are that are held.
        hint = ""
        if "requires sessions to create a non-sessionful" in error.text:
            hint = " Accept a session below, then receive from that session."
        tracking = "" if error.tracking_id is None or error.tracking_id in error.text else f" ({error.tracking_id})"
        return Redirect(back, notice=f"{error.text}{tracking}{hint}", kind="error")
    except Refusal as error:
        return Redirect(back, notice=error.text, kind="warning")
    return Redirect(back, notice=told, kind=kind)


@screen.post("/receive-and-delete/{path:.+}", right="listen", destructive=True)
async def receive_and_delete(visit: Visit) -> View:
    """Receive messages and remove them; a message is removed only after the console has all of it to show."""
    entity = entity_of(visit.match["path"])
    visit.confirmed(entity.path)
    place = _place(visit)
    one = held.HeldMessages(visit.session, entity, place, _session_id(visit))
    rows: list[dict[str, Any]] = []
    records: list[dict[str, Any]] = []
    try:
        wait_s = _wait(visit)
        await one.open(wait_s)
        await one.receive(_number(visit, "count", 10, held.HELD_MAX), wait_s)
        rows, records = one.rows, one.records
        outcome = await one.settle(held.COMPLETE, [row["number"] for row in rows])
    finally:
        await one.close()
    await visit.write_down("receive and delete", AUDITED, entity.path, note=f"{outcome.done} messages")
    failed = {number for number, _ in outcome.failed}
    data: dict[str, Any] = {
        "entity": entity.path,
        "label": PLACES[place],
        "rows": [row for row in rows if row["number"] not in failed],
        "records": [record for record in records if record["sequenceNumber"] not in failed],
        "lines": "",
        "failed": [{"number": number, "text": text} for number, text in outcome.failed],
    }
    if not visit.wants_json:
        data["lines"] = "\n".join(json.dumps(record, ensure_ascii=False) for record in data["records"])
    return View("messages/removed.html", f"Removed from {entity.path}", data)


# -- deeds ----------------------------------------------------------------------------------------------------------


async def _receive(visit: Visit, entity: MessageEntity) -> tuple[str, str]:
    place, session_id, wait_s = _place(visit), _session_id(visit), _wait(visit)
    receivers = held.receivers_of(visit.session)
    one = None if session_id == "" else receivers.find(entity, place, session_id)
    if one is None:
        one = held.HeldMessages(visit.session, entity, place, session_id)
        await receivers.add(one, wait_s)
    try:
        number = await one.receive(_number(visit, "count", 10, 100), wait_s)
    except NamespaceError:
        await receivers.remove(one)
        raise
    where = "" if one.session_id is None else f" of session {visible(one.session_id)}"
    if not number:
        return f"No message{where} came within {wait_s:g} s.", "info"
    return f"{number} {'message is' if number == 1 else 'messages are'} received{where} and locked for you.", "done"


async def _receive_deferred(visit: Visit, entity: MessageEntity) -> tuple[str, str]:
    texts = visit.form.get("numbers", "").replace(",", " ").split()
    if not texts or not all(text.isdecimal() and len(text) < 20 for text in texts) or len(texts) > held.HELD_MAX:
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "Give the sequence numbers of deferred messages.")
    place, session_id = _place(visit), _session_id(visit)
    receivers = held.receivers_of(visit.session)
    one = receivers.find(entity, place, session_id)
    if one is None:
        one = held.HeldMessages(visit.session, entity, place, session_id)
        await receivers.add(one, WAIT_MAX_S)
    number = await one.receive_deferred([int(text) for text in texts])
    return f"{number} deferred {'message is' if number == 1 else 'messages are'} locked for you.", "done"


async def _settle(visit: Visit, entity: MessageEntity) -> tuple[str, str]:
    settlement = visit.form["do"]
    numbers = [int(text) for text in visit.form.getall("number", []) if text.isdecimal() and len(text) < 20]
    if not numbers:
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "Choose messages first.")
    outcome = await _found(visit, entity).settle(
        settlement, numbers, reason=visit.form.get("reason", ""), description=visit.form.get("description", "")
    )
    if outcome.done and settlement != held.RENEW:
        await visit.write_down(settlement, AUDITED, entity.path, note=f"{outcome.done} messages")
    told = f"{outcome.done} {'message is' if outcome.done == 1 else 'messages are'} {held.SETTLEMENTS[settlement]}."
    if settlement == held.RENEW:
        told = f"{outcome.done} {'lock is' if outcome.done == 1 else 'locks are'} renewed."
    if outcome.failed:
        number, text = outcome.failed[0]
        more = f" So were {len(outcome.failed) - 1} more." if len(outcome.failed) > 1 else ""
        return f"{told} Message {number} was not: {text}{more}", "error"
    return told, "done"


async def _renew_session(visit: Visit, entity: MessageEntity) -> tuple[str, str]:
    await _found(visit, entity).renew_session()
    return "The lock of the session is renewed.", "done"


async def _set_state(visit: Visit, entity: MessageEntity) -> tuple[str, str]:
    text = visit.form.get("state", "")
    if visit.form.get("form") == "base64":
        try:
            state = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "The state is not changed: this is no base64.") from None
    else:
        state = text.replace("\r\n", "\n").encode()
    one = _found(visit, entity)
    await one.set_state(state)
    await visit.write_down("set session state", AUDITED, entity.path, note=f"session {one.session_id}"[:200])
    return ("The state is set." if state else "The state is cleared."), "done"


async def _release(visit: Visit, entity: MessageEntity) -> tuple[str, str]:
    await held.receivers_of(visit.session).remove(_found(visit, entity))
    return "Everything that was held there is given back.", "done"


def _found(visit: Visit, entity: MessageEntity) -> held.HeldMessages:
    session_id = visit.form.get("session") if visit.form.get("has_session") else None
    one = held.receivers_of(visit.session).find(entity, _place(visit), session_id)
    if one is None:
        raise Refusal(HTTPStatus.GONE, "Nothing is held there any more.")
    return one


def _place(visit: Visit) -> str:
    place = visit.form.get("place", ACTIVE)
    return place if place in _RECEIVABLE else ACTIVE


def _session_id(visit: Visit) -> str | None:
    """The session that is meant: None for no session, empty for the next one."""
    if visit.form.get("do") == "accept" or visit.form.get("has_session"):
        return visit.form.get("session", "")
    return visit.form.get("session") or None


def _wait(visit: Visit) -> float:
    return float(_number(visit, "wait", 3, WAIT_MAX_S))


def _number(visit: Visit, name: str, usual: int, most: int) -> int:
    text = visit.form.get(name, "")
    return max(1, min(int(text[:9]), most)) if text.isdecimal() else usual
