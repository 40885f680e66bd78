"""Rules between the fields of a form, the topology document, and requests that try a rule; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from duobus.errors import ArgumentInvalid

SQL: Final = "sql"
CORRELATION: Final = "correlation"
FILTERS: Final = ((SQL, "SQL filter"), (CORRELATION, "Correlation filter"), ("true", "True filter: every message"))
#: A rule that matches nothing: what it is good for is rare, so it stands last.
ALL_FILTERS: Final = (*FILTERS, ("false", "False filter: no message"))

#: Properties of a correlation filter, and what Service Bus calls them.
CORRELATION_FIELDS: Final = (
    ("correlationId", "Correlation id"),
    ("messageId", "Message id"),
    ("label", "Subject (label)"),
    ("to", "To"),
    ("replyTo", "Reply to"),
    ("sessionId", "Session id"),
    ("replyToSessionId", "Reply to session id"),
    ("contentType", "Content type"),
)
#: Fields of a message in the form of a try-out, and their names in a message in JSON.
MESSAGE_FIELDS: Final = (
    ("messageId", "Message id"),
    ("subject", "Subject (label)"),
    ("correlationId", "Correlation id"),
    ("to", "To"),
    ("replyTo", "Reply to"),
    ("groupId", "Session id"),
    ("replyToGroupId", "Reply to session id"),
    ("contentType", "Content type"),
)
_WHOLE_MAX: Final = 1 << 63
_POSITION: Final = re.compile(r"at position (\d{1,9})", re.ASCII)
_LINE: Final = re.compile(r"^\s*([^=:]{1,200}?)\s*[=:]\s*(.*?)\s*$")
_WHOLE: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_FRACTION: Final = re.compile(r"[+-]?\d{1,18}\.\d{1,18}", re.ASCII)


# -- properties as lines ----------------------------------------------------------------------------------------


def typed_properties(text: str) -> dict[str, Any]:
    """Application properties that were typed: a JSON object, or a line each, as ``colour = red``.

    A number, true and false are what they are; everything in quotes, and everything else, is text.

    Raises:
        ArgumentInvalid: It is neither; the text says which line.
    """
    if text.lstrip().startswith("{"):
        return _object(text, "The properties")
    found: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        match = _LINE.match(line)
        if match is None:
            raise ArgumentInvalid(f"Line {number}: write a property as name = value.")
        found[match[1]] = _typed_value(match[2])
    return found


def _typed_value(text: str) -> Any:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _FRACTION.fullmatch(text) else text


def property_lines(values: Mapping[str, Any]) -> str:
    """Properties as lines that can be typed again; as JSON where lines cannot say them."""
    lines = []
    for name, value in values.items():
        text = json.dumps(value) if isinstance(value, bool | int | float) else str(value)
        if isinstance(value, str) and (
            text != text.strip() or not isinstance(_typed_value(text), str) or text[:1] in "\"'"
        ):
            text = f'"{text}"'
        line = f"{name} = {text}"
        try:
            is_same = typed_properties(line) == {name: value} and "\n" not in line
        except ArgumentInvalid:
            is_same = False
        if not is_same:
            return json.dumps(dict(values), indent=2, ensure_ascii=False)
        lines.append(line)
    return "\n".join(lines)


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ArgumentInvalid(f"{what} are no JSON: {error}.") from None
    except RecursionError:
        raise ArgumentInvalid(f"{what} are nested too deeply.") from None
    if not isinstance(found, dict):
        raise ArgumentInvalid(f"{what} have to be a JSON object.")
    return found


# -- between fields and the topology document -------------------------------------------------------------------


def rule_texts(rule: Mapping[str, Any]) -> dict[str, str]:
    """What stands in the fields for a rule."""
    condition, action = rule.get("filter") or {"type": "true"}, rule.get("action") or {}
    texts = {
        "filter": str(condition["type"]),
        "sql": str(condition.get("sqlExpression", "")),
        "parameters": _json_text(condition.get("parameters")),
        "properties": property_lines(condition.get("properties") or {}),
        "action": str(action.get("sqlExpression", "")),
        "action_parameters": _json_text(action.get("parameters")),
    }
    return texts | {name: str(condition.get(name, "")) for name, _ in CORRELATION_FIELDS}


def _json_text(values: Any) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False) if values else ""


def typed_rule(name: str, texts: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The rule that was typed, as the topology document has it, and what is wrong by the name of the field."""
    faults: dict[str, str] = {}
    kind = texts.get("filter", "true")
    condition: dict[str, Any] = {"type": kind}
    if kind == SQL:
        condition["sqlExpression"] = texts.get("sql", "").strip()
        if not condition["sqlExpression"]:
            faults["sql"] = "An SQL filter needs an expression."
        _put(condition, "parameters", _read(texts, "parameters", faults))
    elif kind == CORRELATION:
        condition |= {field: texts[field] for field, _ in CORRELATION_FIELDS if texts.get(field, "")}
        _put(condition, "properties", _read(texts, "properties", faults))
        if len(condition) == 1 and not faults:
            faults["filter"] = "A correlation filter needs at least one property to compare."
    elif kind not in ("true", "false"):
        faults["filter"] = "Choose what the filter is."
    rule: dict[str, Any] = {"name": name, "filter": condition}
    if texts.get("action", "").strip():
        rule["action"] = {"sqlExpression": texts["action"].strip()}
        _put(rule["action"], "parameters", _read(texts, "action_parameters", faults))
    return rule, faults


def _put(form: dict[str, Any], name: str, value: dict[str, Any]) -> None:
    if value:
        form[name] = value


def _read(texts: Mapping[str, str], name: str, faults: dict[str, str]) -> dict[str, Any]:
    text = texts.get(name, "").strip()
    try:
        if name == "properties":
            return _scalars(typed_properties(text))
        return _scalars(_object(text, "The parameters")) if text else {}
    except ArgumentInvalid as error:
        faults[name] = str(error)
        return {}


def _scalars(values: dict[str, Any]) -> dict[str, Any]:
    """The same values; a rule compares texts, numbers and booleans only."""
    for name, value in values.items():
        is_number = isinstance(value, int | float) and -_WHOLE_MAX <= value < _WHOLE_MAX
        if not (isinstance(value, str | bool) or is_number):
            raise ArgumentInvalid(f"{name[:64]}: a value is a text, a number, true or false.")
    return values


def rule_words(rule: Mapping[str, Any]) -> dict[str, str]:
    """What a rule does, in a line: kind of its filter, the condition, and the action."""
    condition = rule.get("filter") or {"type": "true"}
    kind = str(condition["type"])
    if kind == SQL:
        text = str(condition.get("sqlExpression", ""))
    elif kind == CORRELATION:
        labels = dict(CORRELATION_FIELDS)
        parts = [f"{labels[name]} = {value}" for name, value in condition.items() if name in labels]
        parts += [f"{name} = {value}" for name, value in (condition.get("properties") or {}).items()]
        text = " AND ".join(parts)
    else:
        text = "every message" if kind == "true" else "no message"
    return {"kind": kind, "condition": text, "action": str((rule.get("action") or {}).get("sqlExpression", ""))}


# -- requests that try a rule -----------------------------------------------------------------------------------


def trial_of(rule: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, Any]:
    """The body of ``POST /$duobus/try-rule`` for a rule."""
    condition, action = rule.get("filter") or {"type": "true"}, rule.get("action") or {}
    kind = condition["type"]
    body: dict[str, Any] = {"message": message}
    if kind == SQL:
        body["filter"] = {"sql": condition["sqlExpression"]}
        _put(body["filter"], "parameters", condition.get("parameters") or {})
    elif kind == CORRELATION:
        fields = {name[0].upper() + name[1:]: condition[name] for name, _ in CORRELATION_FIELDS if name in condition}
        _put(fields, "Properties", condition.get("properties") or {})
        body["filter"] = {"correlation": fields}
    else:
        body["filter"] = {"isTrue": kind == "true"}
    if action:
        body["action"] = action["sqlExpression"]
        _put(body, "actionParameters", action.get("parameters") or {})
    return body


def typed_message(texts: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The message that was typed, in JSON, and what is wrong by the name of the field."""
    faults: dict[str, str] = {}
    message: dict[str, Any] = {}
    properties = {name: texts[f"m_{name}"] for name, _ in MESSAGE_FIELDS if texts.get(f"m_{name}", "")}
    _put(message, "properties", properties)
    try:
        _put(message, "applicationProperties", typed_properties(texts.get("m_properties", "")))
    except ArgumentInvalid as error:
        faults["m_properties"] = str(error)
    return message, faults


class Mistake(NamedTuple):
    """Where a text is wrong.

    Attributes:
        part: ``filter`` or ``action``.
        line: From 1 on; 0 where nobody knows.
        column: From 1 on.
        source: The line itself.
        text: What is wrong.
    """

    part: str
    line: int
    column: int
    source: str
    text: str

    @property
    def pointer(self) -> str:
        """A line with a caret below the place; tabs stay, so that both lines are equally far."""
        before = self.source[: self.column - 1]
        return "".join(sign if sign == "\t" else " " for sign in before) + "^"


def mistake_at(part: str, expression: str, position: int | None, text: str) -> Mistake:
    """The mistake at a position of an expression, which counts characters from 1 on."""
    if position is None:
        found = _POSITION.search(text)
        position = None if found is None else int(found[1])
    if position is None:
        return Mistake(part, 0, 0, "", text)
    before = expression[: max(0, position - 1)]
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    lines = expression.split("\n")
    return Mistake(part, line, column, lines[line - 1] if line <= len(lines) else "", text)


class Change(NamedTuple):
    """What an action does to a property; None where there is none."""

    name: str
    before: Any
    after: Any


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """The properties that differ between two messages in JSON."""
    found = []
    for section in ("properties", "applicationProperties"):
        one, other = before.get(section) or {}, after.get(section) or {}
        names = [*one, *(name for name in other if name not in one)]
        found += [Change(name, one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)]
    return found
