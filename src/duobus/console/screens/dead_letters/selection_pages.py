"""A group or selection of dead letters: its messages, a sample, and the repair."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from duobus.console.formats import entity_url
from duobus.console.namespace.thread_client import namespace_of
from duobus.console.screens.dead_letters import looks
from duobus.console.screens.dead_letters.differences import lines_between
from duobus.console.screens.dead_letters.entity_pages import address_of
from duobus.console.screens.dead_letters.jobs import Jobs
from duobus.console.screens.dead_letters.message_texts import body_of, fields_of, properties_of, text_of
from duobus.console.screens.dead_letters.repairs import FIELDS, RepairForm, read_repair, summary_of
from duobus.console.screens.dead_letters.selection import Selection, number_of
from duobus.console.visits import Refusal, View

if TYPE_CHECKING:
    from duobus.console.visits import Visit

#: Messages on a page.
_ROWS: Final = 50


async def show_selection(visit: Visit, jobs: Jobs, selection: Selection, form: RepairForm | None = None) -> View:
    """The messages of a selection, one of them as a sample, and the form of the repair.

    Args:
        visit: The request.
        jobs: The runs of the console.
        selection: Which messages are meant.
        form: What a person has typed that makes no sense yet.
    """
    namespace = namespace_of(visit)
    first = visit.number("from", 0)
    look = partial(looks.find, namespace, selection, visit.clock, first=first, number=_ROWS)
    found = await looks.in_thread(jobs.lookers, look)
    chosen = visit.number("sample", 0) if form is None else number_of(visit.form.get("sample"))
    numbers = [record["sequenceNumber"] for record in found.records]
    record = next((one for one in found.records if one["sequenceNumber"] == chosen), None)
    if record is None and chosen:
        record = await looks.in_thread(jobs.lookers, partial(looks.sample, namespace, selection, chosen, None))
    if record is None and found.records:
        record = found.records[0]
    data: dict[str, Any] = {
        "selection": selection.data(),
        "path": selection.path,
        "subscription": selection.subscription,
        "fields": selection.fields,
        "is_group": selection.reason is not None,
        "count": found.count,
        "is_complete": found.is_complete,
        "is_too_large": found.is_too_large,
        "away": len(found.away),
        "messages": [_row(one, selection, first) for one in found.records],
        "next": None if found.following is None else address_of(selection, **{"from": found.following}),
        "first": address_of(selection) if first else None,
        "entity_url": address_of(Selection(selection.path, selection.is_transfer)),
        "download_url": entity_url(selection.path, "dead-letter-files")
        + address_of(selection).removeprefix(entity_url(selection.path, "dead-letters")),
        "repair_url": entity_url(selection.path, "dead-letter-repairs"),
        "numbers": numbers,
    }
    typed = form or read_repair({}, None)
    data |= {"repair_fields": FIELDS, "action": visit.form.get("action", ""), "target": visit.form.get("target", "")}
    status = 422 if typed.errors else 200
    return View("dead_letters/selection.html", _title(selection), data | sample_data(record, typed), status)


def _title(selection: Selection) -> str:
    kind = "Transfer dead letters" if selection.is_transfer else "Dead letters"
    return f"{kind} of {selection.path}"


def _row(record: dict[str, Any], selection: Selection, first: int) -> dict[str, Any]:
    number = record["sequenceNumber"]
    properties = record.get("message", {}).get("properties") or {}
    message_id = properties.get("messageId")
    return {
        "sequenceNumber": number,
        "messageId": message_id if isinstance(message_id, str) or message_id is None else str(message_id),
        "subject": properties.get("subject"),
        "enqueuedTime": record["enqueuedTime"],
        "deliveryCount": record["deliveryCount"],
        "reason": record["reason"],
        "description": (record["description"] or "")[:200],
        "isHeld": record["isHeld"],
        "url": address_of(selection, **{"sample": number, "from": first or None}) + "#sample",
    }


def sample_data(record: dict[str, Any] | None, form: RepairForm) -> dict[str, Any]:
    """The sample and the form of the repair, as the templates need both."""
    if record is None or "message" not in record:
        return {"sample": None, "body": None, "values": form.values, "errors": form.errors, "summary": []}
    message = record["message"]
    body = body_of(message)
    values = dict(form.values)
    if not values["body"]:
        values["body"] = body.text
    return {
        "sample": {
            "sequenceNumber": record["sequenceNumber"],
            "enqueuedTime": record["enqueuedTime"],
            "deliveryCount": record["deliveryCount"],
            "reason": record["reason"],
            "description": record["description"],
            "source": record["deadLetterSource"],
            "fields": fields_of(message),
            "properties": properties_of(message),
        },
        "body": body._asdict(),
        "values": values,
        "errors": form.errors,
        "summary": summary_of(form.repair),
    }


async def show_difference(visit: Visit, jobs: Jobs, selection: Selection) -> View:
    """What the repair of the form would make of the sample."""
    number = number_of(visit.form.get("sample"))
    namespace = namespace_of(visit)
    original = await looks.in_thread(jobs.lookers, partial(looks.sample, namespace, selection, number, None))
    if original is None:
        raise Refusal(
            409, f"The message {number} is no dead letter any more: somebody else has taken it. Choose another."
        )
    form = read_repair(visit.form, original["message"])
    data: dict[str, Any] = {"number": number, "errors": form.errors, "refused": None, "lines": [], "patch": ""}
    if not form.errors:
        look = partial(looks.sample, namespace, selection, number, form.repair)
        record = await looks.in_thread(jobs.lookers, look)
        if record is not None:
            data |= difference_of(record)
    data |= {"summary": summary_of(form.repair), "patch": form.values["patch"]}
    return View("dead_letters/parts/difference.html", "Difference", data, 422 if form.errors else 200)


def difference_of(record: dict[str, Any]) -> dict[str, Any]:
    """The sample as it is and as it would be, line by line."""
    if "refused" in record:
        return {"refused": record["refused"], "lines": []}
    lines = lines_between(text_of(record["message"]), text_of(record.get("repaired") or record["message"]))
    return {"refused": None, "lines": [line._asdict() for line in lines]}
