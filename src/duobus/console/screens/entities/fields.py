"""The fields of the forms that create and change queues, topics and subscriptions; pure.

A field is a row of the table of properties. What stands in a field is text that a person can type again; the form that
goes to the namespace is made of the texts and has the names and values of the topology document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from duobus.console.screens.entities.durations import UNLIMITED, exact_duration, typed_duration
from duobus.errors import ArgumentInvalid
from duobus.model.descriptions import STATUSES
from duobus.model.durations import format_duration
from duobus.model.properties import Form, Property, Surface, properties_of
from duobus.model.tiers import ALL, BASIC, PREMIUM, STANDARD, Tier

_STATUS_LABELS: Final = {"SendDisabled": "Send disabled", "ReceiveDisabled": "Receive disabled"}
_YES_NO: Final = (("true", "Yes"), ("false", "No"))
_KIB: Final = 1024
_LABELS: Final = {
    "maxSizeInMegabytes": "Maximum size (MB)",
    "maxMessageSizeInKilobytes": "Maximum message size (KB)",
    "defaultMessageTimeToLive": "Message time to live",
    "autoDeleteOnIdle": "Delete when idle",
    "deadLetteringOnMessageExpiration": "Dead-letter expired messages",
    "deadLetteringOnFilterEvaluationExceptions": "Dead-letter when a filter fails",
    "requiresDuplicateDetection": "Duplicate detection",
    "duplicateDetectionHistoryTimeWindow": "Duplicate detection window",
    "requiresSession": "Sessions",
    "enablePartitioning": "Partitioning",
    "enableBatchedOperations": "Batched operations",
    "enableExpress": "Express",
    "maxDeliveryCount": "Maximum delivery count",
    "forwardDeadLetteredMessagesTo": "Forward dead letters to",
    "filteringMessagesBeforePublishing": "Refuse messages that no filter takes",
    "supportOrdering": "Support ordering",
}
_GROUPS: Final = (
    ("Messages", ("defaultMessageTimeToLive", "lockDuration", "maxDeliveryCount", "maxMessageSizeInKilobytes")),
    (
        "Dead letters and forwarding",
        (
            "deadLetteringOnMessageExpiration",
            "deadLetteringOnFilterEvaluationExceptions",
            "forwardTo",
            "forwardDeadLetteredMessagesTo",
        ),
    ),
    (
        "Features",
        (
            "requiresSession",
            "requiresDuplicateDetection",
            "duplicateDetectionHistoryTimeWindow",
            "enablePartitioning",
            "supportOrdering",
            "filteringMessagesBeforePublishing",
        ),
    ),
    (
        "Entity",
        (
            "status",
            "maxSizeInMegabytes",
            "autoDeleteOnIdle",
            "enableBatchedOperations",
            "enableExpress",
            "userMetadata",
        ),
    ),
)
_HINTS: Final = {
    "filteringMessagesBeforePublishing": "A message that matches no subscription is refused.",
    "supportOrdering": "Messages reach subscriptions in the order in which they were sent.",
    "enableExpress": "Messages may be kept in memory only.",
    "enablePartitioning": "Over several fragments.",
}
#: How the broker and Azure begin and end a sentence about a request.
_FRAME: Final = re.compile(
    r"^(?:There is no [^.]*\. )?(?:SubCode=\d+\.\s*)?"
    r"(?:(?:Bad Request|Conflict|Not Found|Forbidden|Unauthorized)\.\s*)?(?:SubCode=\d+\.\s*)?"
)
_TAIL: Final = re.compile(r"\s*(?:To know more visit \S+\s*)?TrackingId:.*$", re.DOTALL)
_NAME_WORDS: Final = re.compile(
    r"(?i)\b(?:exists already|already exists|the (?:entity )?name\b|\w+ name has|empty segment|control character)"
)


class Field(NamedTuple):
    """A field of a form.

    Attributes:
        name: Of the property, as the topology document has it.
        label: For people.
        form: What its value is.
        hint: What it does, its unit, its default and its bounds.
        default: What holds when nothing is given; empty when nothing is set then.
        options: Values and texts where only some are possible.
        is_fixed: Whether it cannot be changed later.
        element: Its name in the sentences of a namespace.
    """

    name: str
    label: str
    form: Form
    hint: str
    default: str
    options: tuple[tuple[str, str], ...]
    is_fixed: bool
    element: str


class Group(NamedTuple):
    """Fields that stand together."""

    title: str
    fields: list[Field]


def tier_of(sku: str | None, *, is_duobus: bool) -> Tier:
    """The tier by which defaults are told."""
    found = {"Basic": BASIC, "Standard": STANDARD, "Premium": PREMIUM}.get(sku or "", STANDARD)
    return ALL if is_duobus and found is PREMIUM else found


def groups_of(kind: str, tier: Tier) -> list[Group]:
    """The fields of a kind, in groups."""
    rows = {item.json_name: item for item in properties_of(kind, Surface.SDK)}
    placed = [(title, [rows.pop(name) for name in names if name in rows]) for title, names in _GROUPS]
    placed[-1][1].extend(rows.values())
    return [Group(title, [_field(kind, item, tier) for item in items]) for title, items in placed if items]


def fields_of(kind: str, tier: Tier = ALL) -> list[Field]:
    """All fields of a kind."""
    return [field for group in groups_of(kind, tier) for field in group.fields]


def statuses_of(kind: str) -> tuple[tuple[str, str], ...]:
    """The statuses that a kind can have, and what people call them."""
    return tuple((status, _STATUS_LABELS.get(status, status)) for status in STATUSES[kind])


def label_of(name: str) -> str:
    """The name of a property for people."""
    if name in _LABELS:
        return _LABELS[name]
    words = re.findall(r"[A-Z]?[a-z]+", name)
    return " ".join(words).capitalize()


def _field(kind: str, item: Property, tier: Tier) -> Field:
    options: tuple[tuple[str, str], ...] = ()
    if item.form is Form.FLAG:
        options = _YES_NO
    elif item.form is Form.STATUS:
        options = statuses_of(kind)
    elif item.form is Form.SIZE:
        options = tuple((str(size), f"{size // _KIB} GB") for size in tier.sizes_mib)
    default = _default(item, tier)
    return Field(
        item.json_name,
        label_of(item.json_name),
        item.form,
        _hint(item, tier, default),
        default,
        options,
        item.is_fixed,
        item.element,
    )


def _default(item: Property, tier: Tier) -> str:
    value = item.default_in(tier)
    if item.form is Form.DURATION or (item.form is Form.FINITE and value is not None):
        return exact_duration(format_duration(value))
    if item.form is Form.FLAG:
        return "" if value is None else str(value).lower()
    if item.form is Form.MESSAGE_SIZE:
        return str(value // _KIB)
    return "" if value is None else str(value)


def _hint(item: Property, tier: Tier, default: str) -> str:
    parts = [_HINTS.get(item.json_name, item.help)]
    if item.form in (Form.DURATION, Form.FINITE):
        bounds = _bounds(item, tier)
        parts.append(f"As 30s, 5m, 14d or PT5M{bounds}.")
    if default and item.form is not Form.STATUS:
        told = {"true": "yes", "false": "no"}.get(default, default)
        parts.append(f"Default: {told}.")
    return " ".join(part for part in parts if part)


def _bounds(item: Property, tier: Tier) -> str:
    if item.limits is None:
        return ""
    least, most = item.limits(tier.profile)
    low = exact_duration(format_duration(least))
    return f", at least {low}" if most is None else f", {low} to {exact_duration(format_duration(most))}"


# -- between forms and texts ------------------------------------------------------------------------------------


def texts_of(kind: str, form: Mapping[str, Any]) -> dict[str, str]:
    """What stands in the fields for an entity."""
    return {field.name: _text(field, form.get(field.name)) for field in fields_of(kind)}


def _text(field: Field, value: Any) -> str:
    if field.form is Form.DURATION and value is None:
        return UNLIMITED
    if value is None:
        return ""
    if field.form in (Form.DURATION, Form.FINITE):
        return exact_duration(str(value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def typed_form(kind: str, texts: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of what a person typed, and what is wrong by the name of the field.

    A field that is empty is not in the values: the namespace's default holds, or nothing is set.
    """
    form: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for field in fields_of(kind):
        text = texts.get(field.name, "").strip()
        if not text:
            continue
        try:
            form[field.name] = _value(field, text)
        except ArgumentInvalid as error:
            faults[field.name] = str(error)
    return form, faults


def _value(field: Field, text: str) -> Any:
    if field.form in (Form.DURATION, Form.FINITE):
        found = typed_duration(text)
        if field.form is Form.FINITE and exact_duration(found) == UNLIMITED:
            raise ArgumentInvalid("This duration has to end: write 30s, 5m or PT5M.")
        return found
    if field.form is Form.FLAG:
        if text not in ("true", "false"):
            raise ArgumentInvalid("Choose yes or no.")
        return text == "true"
    if field.form in (Form.NUMBER, Form.SIZE, Form.MESSAGE_SIZE):
        if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
            raise ArgumentInvalid("A whole number is needed.")
        return int(text)
    return text


class Difference(NamedTuple):
    """A property of which two texts differ.

    Attributes:
        name: Of the property.
        label: For people.
        shown: What the page showed.
        now: What is there.
        yours: What the person typed.
    """

    name: str
    label: str
    shown: str
    now: str
    yours: str


def differences(shown: Mapping[str, str], now: Mapping[str, str], yours: Mapping[str, str]) -> list[Difference]:
    """What somebody else has changed since the page was shown."""
    return [
        Difference(name, label_of(name), shown.get(name, ""), text, yours.get(name, ""))
        for name, text in now.items()
        if shown.get(name, "") != text
    ]


def merged(shown: Mapping[str, str], now: Mapping[str, str], yours: Mapping[str, str]) -> dict[str, str]:
    """What the person typed over what is there; what the person left alone is as it is there."""
    return {name: yours[name] if yours.get(name, "") != shown.get(name, "") else text for name, text in now.items()}


def changes_of(now: Mapping[str, str], yours: Mapping[str, str], fields: Iterable[Field]) -> list[str]:
    """Names of the properties that are to change; those that cannot are none of them."""
    return [
        field.name for field in fields if not field.is_fixed and yours.get(field.name, "").strip() != now[field.name]
    ]


# -- sentences of a namespace -----------------------------------------------------------------------------------


def plain_sentence(text: str) -> str:
    """The sentence of a namespace without what frames it: sub-code, tracking id, time."""
    return _TAIL.sub("", _FRAME.sub("", text, count=1)).strip() or text


def place_of(text: str, fields: Iterable[Field], texts: Mapping[str, str]) -> str:
    """Name of the field that a sentence of the namespace is about; ``name`` for that of the entity, or empty."""
    sentence = plain_sentence(text)
    if "forward" in sentence.lower():
        for field in fields:
            if field.form is Form.TARGET and texts.get(field.name) and repr(texts[field.name]) in sentence:
                return field.name
    found = [field for field in fields if re.search(rf"\b{_stem(field.element)}", sentence)]
    if found:
        return max(found, key=lambda field: len(field.element)).name
    return "name" if _NAME_WORDS.search(sentence) else ""


def _stem(element: str) -> str:
    # The unit in a sentence may be another one than that in the name of the property.
    return re.escape(element.removesuffix("Kilobytes").removesuffix("Megabytes"))
