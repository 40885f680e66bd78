"""Repair: what is changed on a message before it is tried again.

Application properties are set and removed, fields of the properties section (a session id among them) replaced, text in
a body is replaced, and a body that holds JSON is patched. A message that a repair does not fit is refused, and never
altered halfway.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from duobus.codec import DecodeError, EncodeError, TooLargeError, data_section, decode, encode, scan
from duobus.codec.sections import DATA, FOOTER, VALUE, application_properties, find_section
from duobus.errors import ArgumentInvalid
from duobus.model.json.messages import DESCRIPTION, FIELDS, REASON, field_of, merged
from duobus.model.json.patch import Operation, parse_patch, patched
from duobus.model.json.values import from_json
from duobus.model.metadata import MessageMetadata
from duobus.model.overlay import GROUP_ID, Overlay

#: Properties that one repair sets or removes.
CHANGES_MAX: Final = 100

#: Texts that one repair replaces in bodies, and the characters of each.
REPLACEMENTS_MAX: Final = 20
REPLACED_LENGTH_MAX: Final = 4_096
#: Characters of a text that takes the place of bodies, and bytes of a body in which a text is replaced.
BODY_LENGTH_MAX: Final = 1 << 20

_MEMBERS: Final = ("set", "remove", "properties", "partitionKey", "patch", "body", "replace")


class Repair:
    """A checked repair.

    Attributes:
        asked: The object that it was read from; None for a repair that changes nothing.
        application: Application properties to set.
        removed: Names of application properties to remove, in lower case.
        fields: Index of a field of the properties section to its new value; None unsets it.
        envelope: The same for members of ``MessageMetadata``.
        body: A text that takes the place of the body; None for none.
        replacements: Texts that are replaced in a body of text, in this order: what is found, and by what.
        patch: Changes to a JSON body; they come last.
    """

    __slots__ = ("application", "asked", "body", "envelope", "fields", "patch", "removed", "replacements")

    def __init__(self, asked: dict[str, Any] | None = None) -> None:
        self.asked = asked
        self.application: dict[str, Any] = {}
        self.removed: frozenset[str] = frozenset()
        self.fields: dict[int, Any] = {}
        self.envelope: dict[str, Any] = {}
        self.body: str | None = None
        self.replacements: list[tuple[str, str]] = []
        self.patch: list[Operation] = []

    @property
    def changes_key(self) -> bool:
        """Whether it may change where messages belong."""
        return bool(self.envelope)


def parse_repair(asked: Any) -> Repair:
    """Check a repair as it was asked for: an object with any of ``_MEMBERS``.

    Raises:
        ArgumentInvalid: It is none; the text says what is wrong.
    """
    if asked is None:
        return Repair()
    if not isinstance(asked, dict) or asked.keys() - set(_MEMBERS):
        raise ArgumentInvalid(f"A repair is an object with members out of {', '.join(_MEMBERS)}.")
    repair = Repair(asked)
    values, names = asked.get("set") or {}, asked.get("remove") or []
    fields = asked.get("properties") or {}
    if not isinstance(values, dict) or not isinstance(fields, dict):
        raise ArgumentInvalid("'set' and 'properties' of a repair are objects.")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ArgumentInvalid("'remove' of a repair is a list of names.")
    if len(values) + len(names) > CHANGES_MAX:
        raise ArgumentInvalid(f"A repair changes at most {CHANGES_MAX} properties.")
    if fields.keys() - set(FIELDS):
        raise ArgumentInvalid(f"'properties' of a repair has members out of {', '.join(FIELDS)}.")
    repair.application = {name: from_json(value) for name, value in values.items()}
    repair.removed = frozenset(name.lower() for name in names)
    repair.fields = {FIELDS.index(name): field_of(name, value) for name, value in fields.items()}
    if GROUP_ID in repair.fields:
        repair.envelope["session_id"] = repair.fields[GROUP_ID]
    if "partitionKey" in asked:
        key = asked["partitionKey"]
        if key is not None and not isinstance(key, str):
            raise ArgumentInvalid("'partitionKey' of a repair is text, or null.")
        repair.envelope["partition_key"] = key
    repair.body = _text_of(asked, "body", BODY_LENGTH_MAX)
    repair.replacements = _replacements(asked.get("replace") or [])
    repair.patch = parse_patch(asked.get("patch") or [])
    return repair


def _replacements(asked: Any) -> list[tuple[str, str]]:
    if not isinstance(asked, list) or len(asked) > REPLACEMENTS_MAX:
        raise ArgumentInvalid(f"'replace' of a repair is a list of at most {REPLACEMENTS_MAX} objects.")
    found = []
    for item in asked:
        if not isinstance(item, dict) or item.keys() != {"find", "with"} or not item["find"]:
            raise ArgumentInvalid("An object in 'replace' of a repair has 'find', which is not empty, and 'with'.")
        texts = [_text_of(item, name, REPLACED_LENGTH_MAX) or "" for name in ("find", "with")]
        found.append((texts[0], texts[1]))
    return found


def _text_of(asked: dict[str, Any], name: str, most: int) -> str | None:
    text = asked.get(name)
    if text is not None and (not isinstance(text, str) or len(text) > most):
        raise ArgumentInvalid(f"'{name}' of a repair is a text of at most {most} characters.")
    return text


def resendable(
    payload: bytes, metadata: MessageMetadata | None, repair: Repair, *, keeps_reason: bool
) -> tuple[bytes, MessageMetadata]:
    """Return a dead letter as it is when it is tried again: (bare message, the metadata of it).

    Its keys, session, header, annotations and time to live stay; the reasons why it died go, or become properties of
    its own when they are to be kept. It is no forwarded message any more, so its hops start again.

    Raises:
        ArgumentInvalid: The repair does not fit it, or makes something of it that cannot be sent.
    """
    old = metadata or MessageMetadata()
    try:
        bare = merged(payload, metadata)
        changes, removed = _changes(bare, old, repair, keeps_reason)
        if changes or removed or repair.fields:
            bare = Overlay(repair.fields, changes, removed).apply_to(bare)
        if repair.patch or repair.replacements or repair.body is not None:
            bare = _with_body(bare, repair)
        has_expiry = scan(bare).absolute_expiry_ms is not None
    except TooLargeError as error:
        raise ArgumentInvalid(f"With the repair the message is too large: {error}.") from None
    except (DecodeError, EncodeError, UnicodeEncodeError) as error:
        raise ArgumentInvalid(f"The message cannot be repaired: {error}.") from None
    new = MessageMetadata(
        ttl_ms=old.ttl_ms,
        partition_key=old.partition_key,
        via_partition_key=old.via_partition_key,
        session_id=old.session_id,
        priority=old.priority,
        annotations=old.annotations,
        annotations_count=old.annotations_count,
        durable=old.durable,
        delivery_annotations=old.delivery_annotations,
        has_expiry=has_expiry,
    )
    for name, value in repair.envelope.items():
        setattr(new, name, value)
    if new.session_id is not None and new.partition_key is not None and new.session_id != new.partition_key:
        # As a sender is told (Azure: message sequencing): both say where it belongs.
        new.partition_key = new.session_id
    return bare, new


def _changes(
    bare: bytes, metadata: MessageMetadata, repair: Repair, keeps_reason: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Application properties to set, and exact names of those to remove."""
    changes = dict(repair.application)
    unwanted = set(repair.removed)
    if keeps_reason:
        for name, text in ((REASON, metadata.reason), (DESCRIPTION, metadata.description)):
            if text is not None:
                changes.setdefault(name, text)
    else:
        # They are there as properties when it was forwarded, or sent on by a tool that copies all it sees.
        unwanted |= {REASON.lower(), DESCRIPTION.lower()}
    removed = _names_in(bare, unwanted) if unwanted else ()
    return changes, tuple(name for name in removed if name not in changes)


def _names_in(bare: bytes, lowered: set[str]) -> tuple[str, ...]:
    return tuple(name for name in application_properties(bare) if name.lower() in lowered)


def _with_body(bare: bytes, repair: Repair) -> bytes:
    """The message with its body changed; it stays the kind of body that it was.

    Raises:
        ArgumentInvalid: The body is of another kind, or the repair does not fit it.
    """
    start, value, end = find_section(bare, DATA)
    is_data = start != value
    if not is_data:
        start, value, end = find_section(bare, VALUE)
    content = decode(bare, value)[0] if start != value else None
    footer = find_section(bare, FOOTER)[0]
    what = "no JSON patch fits" if repair.patch else "no text can be changed"
    if is_data and end != footer:
        raise ArgumentInvalid(f"The body is in several sections, so that {what}.")
    if not isinstance(content, bytes | str):
        raise ArgumentInvalid(f"The body is neither bytes nor text, so that {what}.")
    text = _changed_text(content, repair)
    if is_data:
        section = data_section(text)
    else:
        section = b"\x00\x53" + bytes([VALUE]) + encode(text if isinstance(content, bytes) else text.decode())
    return bare[:start] + section + bare[end:]


def _changed_text(content: bytes | str, repair: Repair) -> bytes:
    text = content.encode() if isinstance(content, str) else content
    if repair.body is not None:
        text = repair.body.encode()
    for find, by in repair.replacements:
        found = text.count(find.encode())
        if not found:
            raise ArgumentInvalid(f"The body does not contain {find!r:.60}.")
        if len(text) + found * (len(by.encode()) - len(find.encode())) > BODY_LENGTH_MAX:
            raise ArgumentInvalid(f"With the repair the body would have more than {BODY_LENGTH_MAX} bytes.")
        text = text.replace(find.encode(), by.encode())
    if not repair.patch:
        return text
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ArgumentInvalid("The body is no JSON, so that no JSON patch fits.") from None
    return msgspec.json.encode(patched(document, repair.patch))
