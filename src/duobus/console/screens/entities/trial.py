"""Trying rules on a message: whether they match, what each term evaluated to, and what their actions change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from duobus.console.formats import entity_url
from duobus.console.screens.entities.calls import read_rule
from duobus.console.screens.entities.paths import EntityPath
from duobus.console.screens.entities.rule_forms import (
    MESSAGE_FIELDS,
    changes_between,
    property_lines,
    trial_of,
    typed_message,
    typed_rule,
)
from duobus.console.screens.entities.rules import FIELDS, mistake_in, shown_mistake, subscription_in, typed_texts
from duobus.console.visits import Screen, View, Visit

screen: Final = Screen("entities")

_TEMPLATE: Final = "entities/trial.html"
#: The property that an action brings along: the name of its rule, which is this one for a rule that is tried.
_RULE_NAME: Final = "RuleName"
_TRIED: Final = "tried"
_NUMBER_MAX: Final = 2**63 - 1


@screen.get("/try-rule/{path:.+}", right="listen", only_duobus=True)
async def show(visit: Visit) -> View:
    """The form of a message."""
    path = subscription_in(visit.match["path"])
    return _view(path, {"rule": visit.query.get("rule", "")}, {})


@screen.post("/try-rule/{path:.+}", right="listen", only_duobus=True)
async def run(visit: Visit) -> View:
    """Try the rules of the subscription, one of them, or the one that is being written."""
    path = subscription_in(visit.match["path"])
    texts = {f"m_{name}": visit.form.get(f"m_{name}", "") for name, _ in MESSAGE_FIELDS}
    texts |= {"m_properties": visit.form.get("m_properties", "").replace("\r\n", "\n")}
    texts |= {"rule": visit.form.get("rule", "").strip(), "number": visit.form.get("number", "").strip()}
    # The field of a rule that is being written; such a rule comes with the request.
    unsaved = typed_texts(visit) if visit.form.get("filter") else {}
    if visit.form.get("peek"):
        return await _peeked(visit, path, texts, unsaved)
    message, faults = typed_message(texts)
    rule: dict[str, Any] | None = None
    if unsaved:
        rule, more = typed_rule(texts["rule"], unsaved)
        faults |= more
    if faults:
        return _view(path, texts, unsaved, faults=faults, status=HTTPStatus.UNPROCESSABLE_ENTITY)
    if rule is None and texts["rule"]:
        rule = (await read_rule(visit.namespace, EntityPath(path.parent, path.subscription, texts["rule"]))).form
    if rule is None:
        query = {"entity": path.text}
        found = await visit.namespace.operation("POST", "/$duobus/try-rule", query=query, body={"message": message})
        return _view(path, texts, unsaved, several=_of_several(path, message, found))
    found = await visit.namespace.operation("POST", "/$duobus/try-rule", body=trial_of(rule, message))
    return _view(path, texts, unsaved, one=_of_one(rule, message, found))


def _view(
    path: EntityPath,
    texts: Mapping[str, str],
    unsaved: Mapping[str, str],
    *,
    faults: Mapping[str, str] | None = None,
    one: dict[str, Any] | None = None,
    several: dict[str, Any] | None = None,
    peeked: str = "",
    status: int = HTTPStatus.OK,
) -> View:
    data = {
        "subscription": path.text,
        "topic": path.parent,
        "message_fields": [list(pair) for pair in MESSAGE_FIELDS],
        "message_texts": dict(texts),
        "message_faults": dict(faults or {}),
        "unsaved": {name: unsaved[name] for name in FIELDS} if unsaved else {},
        "one": one,
        "several": several,
        "peeked": peeked,
    }
    return View(_TEMPLATE, f"Try the rules of {path.name}", data, status)


# -- results ----------------------------------------------------------------------------------------------------


def _of_one(rule: Mapping[str, Any], message: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rule": rule["name"],
        "matches": found["matches"],
        "error": found["error"],
        "action_error": found["actionError"],
        "mistake": shown_mistake(mistake_in(rule, found["mistake"])),
        "terms": with_depths(found["terms"]),
        "has_action": bool(rule.get("action")),
        "changes": _changes(message, found["message"], str(rule["name"])),
    }


def _of_several(path: EntityPath, message: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    rules = [
        dict(one)
        | {
            "url": entity_url(f"{path.text}/Rules/{one['rule']}", "rules"),
            "changes": _changes(message, one["message"], str(one["rule"])),
        }
        for one in found["rules"]
    ]
    return {"matches": found["matches"], "rules": rules, "left_out": found["leftOut"]}


def _changes(before: Mapping[str, Any], after: Mapping[str, Any] | None, rule: str) -> list[dict[str, Any]]:
    if after is None:
        return []
    found = changes_between(before, after)
    return [
        change._asdict()
        | ({"after": rule or "the name of the rule"} if (change.name, change.after) == (_RULE_NAME, _TRIED) else {})
        for change in found
    ]


def with_depths(terms: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The terms, each with the number of terms that it is a part of."""
    found: list[dict[str, Any]] = []
    around: list[int] = []
    for term in terms:
        if term["start"] is None:
            found.append(dict(term) | {"depth": 0})
            continue
        while around and around[-1] < term["start"]:
            around.pop()
        found.append(dict(term) | {"depth": min(len(around), 8)})
        around.append(term["end"])
    return found


# -- a message that is there ------------------------------------------------------------------------------------


async def _peeked(visit: Visit, path: EntityPath, texts: dict[str, str], unsaved: Mapping[str, str]) -> View:
    """The form, filled from a message of the subscription; nothing is taken off it."""
    number = texts["number"]
    if number and not (number.isascii() and number.isdecimal() and int(number) <= _NUMBER_MAX):
        return _view(path, texts, unsaved, faults={"number": "A sequence number is a whole number."}, status=422)
    what = f"subscription {path.text}"
    receiver = visit.namespace.messaging.get_subscription_receiver(path.parent, path.subscription or "")
    async with visit.namespace.telling(what), receiver:
        found = await receiver.peek_messages(max_message_count=1, sequence_number=int(number or 0))
    if not found or (number and found[0].sequence_number != int(number)):
        told = f"The subscription has no message {number}." if number else "The subscription has no message to peek."
        return _view(path, texts, unsaved, faults={"number": told}, status=HTTPStatus.UNPROCESSABLE_ENTITY)
    message = found[0]
    peeked = f"Message {message.sequence_number} of {path.text}"
    return _view(path, texts | texts_of_message(message), unsaved, peeked=peeked)


def texts_of_message(message: Any) -> dict[str, str]:
    """What stands in the fields for a message of the SDK."""
    values = {
        "messageId": message.message_id,
        "subject": message.subject,
        "correlationId": message.correlation_id,
        "to": message.to,
        "replyTo": message.reply_to,
        "groupId": message.session_id,
        "replyToGroupId": message.reply_to_session_id,
        "contentType": message.content_type,
    }
    properties = {_plain(name): _plain(value) for name, value in (message.application_properties or {}).items()}
    return {f"m_{name}": "" if value is None else str(value) for name, value in values.items()} | {
        "m_properties": property_lines(properties)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, bool | int | float) else str(value)
