"""Repair: from the fields of a form to what the dead-letter service is told, and back into the fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from duobus.console.screens.dead_letters.differences import patch_between
from duobus.console.screens.dead_letters.message_texts import document_of

#: Fields of the properties section that the form has, with what people call them.
FIELDS: Final = (
    ("subject", "Subject"),
    ("groupId", "Session id"),
    ("contentType", "Content type"),
    ("correlationId", "Correlation id"),
    ("to", "To"),
    ("replyTo", "Reply to"),
)
_PATCH_MAX: Final = 256 << 10


class RepairForm(NamedTuple):
    """What a person has asked for.

    Attributes:
        repair: For the dead-letter service; None when nothing is changed.
        errors: Name of a field to what is wrong with it.
        values: Fields of the form as they are shown again.
    """

    repair: dict[str, Any] | None
    errors: dict[str, str]
    values: dict[str, str]


def read_repair(fields: Mapping[str, str], original: Mapping[str, Any] | None) -> RepairForm:
    """Read the form.

    Args:
        fields: Of the form.
        original: The sample in the JSON form, whose body a person may have edited.
    """
    values = {name: fields.get(name, "") for name in ("set", "remove", "patch", "find", "with", "body")}
    values |= {name: fields.get(name, "") for name, _ in FIELDS}
    errors: dict[str, str] = {}
    repair: dict[str, Any] = {}
    if values["set"].strip():
        repair["set"] = _properties(values["set"], errors)
    removed = [name.strip() for name in values["remove"].replace(",", "\n").splitlines() if name.strip()]
    if removed:
        repair["remove"] = removed
    changed = {name: values[name].strip() for name, _ in FIELDS if values[name].strip()}
    if changed:
        repair["properties"] = changed
    if values["find"]:
        repair["replace"] = [{"find": values["find"], "with": values["with"]}]
    _read_body(fields, original, values, errors, repair)
    return RepairForm(repair or None, errors, values)


def _read_body(
    fields: Mapping[str, str],
    original: Mapping[str, Any] | None,
    values: dict[str, str],
    errors: dict[str, str],
    repair: dict[str, Any],
) -> None:
    edited = _plain_lines(values["body"])
    if original is not None and "body" in fields and edited != _plain_lines(fields.get("body_was", "")):
        # A person has edited the body of the sample: the patch is what makes all bodies alike in that.
        try:
            before = document_of(original)
        except ValueError:
            repair["body"] = edited
            return
        try:
            patch = patch_between(before, json.loads(edited))
        except (ValueError, RecursionError) as error:
            errors["body"] = f"This is no JSON: {error}."
            return
        values["patch"] = json.dumps(patch, indent=2, ensure_ascii=False) if patch else ""
        if patch:
            repair["patch"] = patch
        return
    text = values["patch"].strip()
    if not text:
        return
    try:
        if len(text) > _PATCH_MAX:
            raise ValueError(f"it has more than {_PATCH_MAX >> 10} KiB")
        repair["patch"] = json.loads(text)
    except (ValueError, RecursionError) as error:
        errors["patch"] = f"This is no JSON patch: {error}."


def _plain_lines(text: str) -> str:
    # Browsers send line ends in the form of the mail.
    return text.replace("\r\n", "\n")


def _properties(text: str, errors: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, sign, value = line.partition("=")
        is_json = name.rstrip().endswith(":")
        name = name.rstrip().removesuffix(":").strip()
        if not sign or not name:
            errors["set"] = f"Line {number} is not of the form name = text, or name := 5."
            continue
        if not is_json:
            found[name] = value.strip()
            continue
        try:
            found[name] = json.loads(value)
        except (ValueError, RecursionError):
            errors["set"] = f"Line {number}: {value.strip()[:40]} is neither a number nor true or false."
    return found


def summary_of(repair: Mapping[str, Any] | None) -> list[str]:
    """What a repair does, in a line for each part."""
    found: list[str] = []
    for name, value in ((repair or {}).get("set") or {}).items():
        found.append(f"set property {name} = {value if isinstance(value, str) else json.dumps(value)}")
    found += [f"remove property {name}" for name in (repair or {}).get("remove") or ()]
    names = dict(FIELDS)
    for name, value in ((repair or {}).get("properties") or {}).items():
        found.append(f"set {names.get(name, name).lower()} to {value}")
    for step in (repair or {}).get("patch") or ():
        value = f" {json.dumps(step['value'], ensure_ascii=False)[:80]}" if "value" in step else ""
        found.append(f"body: {step.get('op')} {step.get('path') or 'the whole document'}{value}")
    for step in (repair or {}).get("replace") or ():
        found.append(f"body: every {step['find'][:80]} becomes {step['with'][:80] or 'nothing'}")
    if (repair or {}).get("body") is not None:
        found.append("body: replaced by another text in every message")
    return found
