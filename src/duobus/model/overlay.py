"""Overlay: what a rule's action changed on one copy of a message, kept beside the bytes that came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from duobus.codec import (
    DecodeError,
    application_properties_section,
    decode,
    encode,
    has_made_id,
    properties_section,
    with_made_id,
)
from duobus.codec.sections import APPLICATION_PROPERTIES, PROPERTIES, application_properties, find_section
from duobus.errors import InternalError
from duobus.model.metadata import MessageMetadata

#: Members of Special that an action can change, in the order of the stored form; never reorder them.
ENVELOPE_MEMBERS: Final = ("ttl_ms", "scheduled_ms", "partition_key", "via_partition_key", "session_id")

#: Where ``session_id`` stands in the properties section.
GROUP_ID: Final = 10
#: Where the message id stands there.
_MESSAGE_ID: Final = 0


class Overlay:
    """Changes to one copy. Values are the codec's, so that what is written has the type that the action gave it.

    Attributes:
        properties: Index of a field of the properties section to its new value; None unsets it.
        application: Application properties that were set, ``RuleName`` among them.
        removed: Application properties that were removed, by the names that the message has them under.
        envelope: Name of a member of Special (see ENVELOPE_MEMBERS) to its new value; None unsets it. A session id is
            here and in ``properties``.
    """

    __slots__ = ("application", "envelope", "properties", "removed")

    def __init__(
        self,
        properties: dict[int, Any] | None = None,
        application: dict[str, Any] | None = None,
        removed: tuple[str, ...] = (),
        envelope: dict[str, Any] | None = None,
    ) -> None:
        self.properties = properties or {}
        self.application = application or {}
        self.removed = removed
        self.envelope = envelope or {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Overlay):
            return NotImplemented
        return self.encode() == other.encode()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Overlay({self.properties!r}, {self.application!r}, {self.removed!r}, {self.envelope!r})"

    def apply_to(self, payload: bytes) -> bytes:
        """Return the bare message with the changes in it; body and footer stay as they are, byte by byte.

        Raises:
            DecodeError: The message is malformed.
        """
        if self.properties:
            payload = _with_properties(payload, self.properties)
        if self.application or self.removed:
            payload = _with_application(payload, self.application, self.removed)
        return payload

    def metadata(self, original: MessageMetadata | None) -> MessageMetadata | None:
        """Return the metadata of the copy, given the metadata of the original, which stays as it is."""
        if not self.envelope:
            return original
        changed = MessageMetadata() if original is None else MessageMetadata.decode(original.encode())
        for name, value in self.envelope.items():
            setattr(changed, name, value)
        return None if changed == MessageMetadata() else changed

    def encode(self) -> bytes:
        """Return the stored form: an AMQP list of four; ``decode`` gives an equal object back."""
        return encode(
            [
                {int(index): value for index, value in self.properties.items()},
                dict(self.application),
                list(self.removed),
                {ENVELOPE_MEMBERS.index(name): value for name, value in self.envelope.items()},
            ]
        )

    @staticmethod
    def decode(data: bytes) -> Overlay:
        """Return what ``encode`` was given.

        Raises:
            InternalError: The bytes are no stored form.
        """
        try:
            properties, application, removed, envelope = decode(data)[0]
            return Overlay(
                properties,
                application,
                tuple(removed),
                {ENVELOPE_MEMBERS[index]: value for index, value in envelope.items()},
            )
        except (DecodeError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise InternalError(f"The stored changes of a rule cannot be read: {error}") from None


def _with_properties(payload: bytes, changes: Mapping[int, Any]) -> bytes:
    start, value, end = find_section(payload, PROPERTIES)
    fields: list[Any] = [] if start == value else decode(payload, value)[0]
    fields += [None] * (max(changes) + 1 - len(fields))
    own_id = fields[_MESSAGE_ID]
    for index, new in changes.items():
        fields[index] = new
    if fields[_MESSAGE_ID] is None:
        # No message is without one, so what unsets it leaves it the one that it has.
        fields[_MESSAGE_ID] = own_id
    if has_made_id(payload) and fields[_MESSAGE_ID] is own_id:
        fields[_MESSAGE_ID] = None
        return with_made_id(payload[:start] + properties_section(fields) + payload[end:], start, own_id.encode())
    return payload[:start] + properties_section(fields) + payload[end:]


def _with_application(payload: bytes, changes: Mapping[str, Any], removed: tuple[str, ...]) -> bytes:
    merged = application_properties(payload)
    for name in removed:
        merged.pop(name, None)
    merged.update(changes)
    start, _, end = find_section(payload, APPLICATION_PROPERTIES)
    return payload[:start] + application_properties_section(merged) + payload[end:]
