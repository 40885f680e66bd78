"""A message in the JSON form, written as lines for people: what it has beside the body, and the body."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

#: Characters of a body that a page shows.
BODY_MAX: Final = 64 << 10
#: Longest JSON text that is laid out anew, in characters.
_LAID_OUT_MAX: Final = 1 << 20


#: What people call the fields of a message.
_LABELS: Final = {
    "messageId": "Message id",
    "userId": "User id",
    "to": "To",
    "subject": "Subject",
    "replyTo": "Reply to",
    "correlationId": "Correlation id",
    "contentType": "Content type",
    "contentEncoding": "Content encoding",
    "absoluteExpiryTime": "Absolute expiry time",
    "creationTime": "Creation time",
    "groupId": "Session id",
    "groupSequence": "Group sequence",
    "replyToGroupId": "Reply to session id",
    "partitionKey": "Partition key",
    "viaPartitionKey": "Via partition key",
    "scheduledEnqueueTime": "Scheduled enqueue time",
    "timeToLive": "Time to live",
    "priority": "Priority",
    "durable": "Durable",
}


class BodyText(NamedTuple):
    """The body of a message.

    Attributes:
        kind: ``json``, ``text``, ``binary``, ``value``, ``sequence`` or ``none``.
        text: As a page shows it.
        is_cut: Whether that is the beginning only.
        can_patch: Whether a JSON patch fits.
    """

    kind: str
    text: str
    is_cut: bool
    can_patch: bool


def body_of(form: Mapping[str, Any]) -> BodyText:
    """The body of a message in the JSON form."""
    body = form.get("body")
    if not isinstance(body, dict):
        return _cut("binary", str(form["raw"])) if "raw" in form else BodyText("none", "", False, False)
    kind, content = next(iter(body.items()), ("none", None))
    if kind == "data" and isinstance(content, list) and len(content) == 1:
        content = content[0]
    if kind in {"data", "value"} and isinstance(content, str):
        return _text(content)
    if kind == "data":
        return _cut("binary", _pretty(content))
    return _cut(kind, _pretty(content))


def _text(content: str) -> BodyText:
    if len(content) <= _LAID_OUT_MAX:
        try:
            document = json.loads(content)
            text = _pretty(document)
        except (ValueError, RecursionError):
            return _cut("text", content)
        if len(text) <= BODY_MAX:
            return BodyText("json", text, False, True)
        return BodyText("json", text[:BODY_MAX], True, True)
    return _cut("text", content)


def _cut(kind: str, text: str) -> BodyText:
    return BodyText(kind, text[:BODY_MAX], len(text) > BODY_MAX, False)


def _pretty(value: Any) -> str:
    try:
        return json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:
        return json.dumps(str(value))


def document_of(form: Mapping[str, Any]) -> Any:
    """The JSON document in the body.

    Raises:
        ValueError: The body is no JSON.
    """
    body = form.get("body") or {}
    content = body.get("value", body.get("data"))
    if isinstance(content, list) and len(content) == 1:
        content = content[0]
    if not isinstance(content, str):
        raise ValueError("The body is no text.")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("The body is nested too deeply.") from None


def fields_of(form: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a message has beside the body: pairs of a name and a text, in an order that stays."""
    found: list[tuple[str, str]] = []
    for name, value in (form.get("properties") or {}).items():
        found.append((_LABELS.get(name, name), _plain(value)))
    for name in ("partitionKey", "viaPartitionKey", "scheduledEnqueueTime"):
        if form.get(name) is not None:
            found.append((_LABELS[name], _plain(form[name])))
    found += [(_LABELS.get(name, name), _plain(value)) for name, value in (form.get("header") or {}).items()]
    for part in ("annotations", "footer"):
        found += [(f"{part}: {name}", _plain(value)) for name, value in (form.get(part) or {}).items()]
    return found


def properties_of(form: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The application properties: pairs of a name and a text, by name."""
    return sorted((name, _plain(value)) for name, value in (form.get("applicationProperties") or {}).items())


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def text_of(form: Mapping[str, Any]) -> str:
    """The whole message as lines, to be compared with another one."""
    lines = [f"{name}: {value}" for name, value in fields_of(form)]
    lines += [f"{name} = {value}" for name, value in properties_of(form)]
    return "\n".join([*lines, "", body_of(form).text])
