"""MessageView: a message as rules see it. Sections are decoded when a rule asks for them, once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final

from duobus.codec import DecodeError, decode
from duobus.codec.sections import APPLICATION_PROPERTIES, PROPERTIES, application_properties, find_section
from duobus.model.metadata import MessageMetadata
from duobus.rules.effort import READ_BYTES, READ_COST, LongTexts, Meter, head_size
from duobus.rules.property_reader import quick_properties, quick_user
from duobus.rules.system_properties import (
    APPLICATION_SECTION,
    CORRELATION_ID,
    COUNT,
    DEAD_LETTER_SOURCE,
    DELIVERY_COUNT,
    ENQUEUED_SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    ENVELOPE,
    EXPIRES_AT,
    FIELDS,
    MESSAGE_ID,
    PARTITION_KEY,
    PROPERTIES_SECTION,
    SCHEDULED_TIME,
    SEQUENCE_NUMBER,
    SIZE,
    TIME_TO_LIVE,
    VIA_PARTITION_KEY,
)
from duobus.rules.values import DateTime, EvaluationError, TimeSpan, from_amqp_table, id_text

_NOTHING_KNOWN: Final[list[Any]] = [None] * COUNT
_IDS: Final = frozenset((FIELDS[MESSAGE_ID], FIELDS[CORRELATION_ID]))


def casefold_name(name: str) -> str:
    """Return what names that differ in case only have in common."""
    return name.lower()


def values_of(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the values as expressions see them, by exact name."""
    values: dict[str, Any] = {}
    for name, value in raw.items():
        convert = from_amqp_table(type(value))
        values[name] = value if convert is None else convert(value)
    return values


def index_names(values: dict[str, Any]) -> dict[str, Any]:
    """Add the lower-case names to values by exact name, the exact ones first; the same mapping is returned."""
    names = "".join(values)
    if names == names.lower():
        return values
    lowered: list[tuple[str, Any]] | None = None
    for name, value in values.items():
        low = name.lower()
        if low != name:
            if lowered is None:
                lowered = []
            lowered.append((low, value))
    for low, value in lowered or ():
        # Of several that differ only in case the first counts; one that is written so counts before them.
        values.setdefault(low, value)
    return values


class MessageView:
    """One message that was published to a topic.

    Args:
        payload: The bare message, from the properties section on.
        metadata: Its metadata, or None.
        enqueued_ms: When the topic took it (or, scheduled, when it became due), ms since the epoch; None: not yet.
        sequence_number: The one that the topic gave it; None: not yet.

    Attributes:
        system: Values of the system properties, by place (``duobus.rules.system_properties``).
        user: Values of the user properties, by exact and by lower-case name.
        new_id: Gives ``newid()`` its values; set by the rule set.
        meter: Counts what rules do with long texts; set by the rule set, or not at all.
        is_quick: The quick reader has read all that was decoded so far.
    """

    __slots__ = (
        "_failure",
        "_loaded",
        "_texts",
        "enqueued_ms",
        "is_quick",
        "metadata",
        "meter",
        "new_id",
        "payload",
        "sequence_number",
        "system",
        "user",
    )

    meter: Meter
    new_id: Callable[[], uuid.UUID]

    def __init__(
        self,
        payload: bytes,
        metadata: MessageMetadata | None = None,
        enqueued_ms: int | None = None,
        sequence_number: int | None = None,
    ) -> None:
        self.payload = payload
        self.metadata = metadata
        self.enqueued_ms = enqueued_ms
        self.sequence_number = sequence_number
        self.system = _NOTHING_KNOWN
        self.user: dict[str, Any] = {}
        self.is_quick = True
        self._texts: LongTexts | None = None
        self._loaded = 0
        self._failure: EvaluationError | None = None

    @property
    def texts(self) -> LongTexts:
        """What is known of its long texts."""
        if self._texts is None:
            self._texts = LongTexts(getattr(self, "meter", None) or Meter())
        return self._texts

    def need(self, sections: int) -> None:
        """Decode what of these sections (bits of ``duobus.rules.system_properties``) is not decoded yet.

        Raises:
            EvaluationError: The message is malformed there, now or at an earlier call.
        """
        missing = sections & ~self._loaded
        if not missing:
            return
        if self._failure is not None:
            raise self._failure
        try:
            self._load(missing)
        except DecodeError as error:
            self._failure = EvaluationError(f"the message's properties cannot be read: {error}")
            raise self._failure from None
        self._loaded |= missing

    def _load(self, sections: int) -> None:
        if sections == APPLICATION_SECTION:
            # All that most rules look at, in most messages.
            values = quick_user(self.payload)
            if values is not None:
                self.user = index_names(values)
                return
        if self.system is _NOTHING_KNOWN:
            self.system = _NOTHING_KNOWN.copy()
        if sections & PROPERTIES_SECTION:
            self._load_properties()
        if sections & APPLICATION_SECTION:
            values = quick_user(self.payload)
            if values is None:
                self.is_quick = False
                self.texts.spend(READ_COST * min(head_size(self.payload), READ_BYTES))
                values = values_of(self.raw())
            self.user = index_names(values)
        if sections & ENVELOPE:
            self._load_envelope()

    def raw(self) -> dict[str, Any]:
        """Return the application properties as the codec gives them, a new mapping each time.

        Only after they were decoded, so that nothing can be wrong with them.
        """
        texts = self.texts
        if texts.raw is None:
            texts.raw = application_properties(self.payload)
        return texts.raw.copy()

    def _load_properties(self) -> None:
        if quick_properties(self.payload, self.system):
            return
        self.is_quick = False
        start, value, _ = find_section(self.payload, PROPERTIES)
        if start == value:
            return
        fields: list[Any] = decode(self.payload, value)[0]
        system = self.system
        for place, index in FIELDS.items():
            if index < len(fields):
                field = fields[index]
                if field is not None:
                    # Text as it should be, or whatever the sender took for it; ids have four types.
                    system[place] = id_text(field) if index in _IDS else str(field)

    def _load_envelope(self) -> None:
        system = self.system
        metadata = self.metadata
        # A message in a topic has not been delivered, locked or dead-lettered: what tells of that is null.
        system[DELIVERY_COUNT] = 0
        system[SIZE] = len(self.payload)
        system[SEQUENCE_NUMBER] = system[ENQUEUED_SEQUENCE_NUMBER] = self.sequence_number
        if self.enqueued_ms is not None:
            system[ENQUEUED_TIME] = DateTime.of_ms(self.enqueued_ms)
        if metadata is None:
            return
        system[PARTITION_KEY] = metadata.partition_key
        system[VIA_PARTITION_KEY] = metadata.via_partition_key
        system[DEAD_LETTER_SOURCE] = metadata.dead_letter_source
        if metadata.scheduled_ms is not None:
            system[SCHEDULED_TIME] = DateTime.of_ms(metadata.scheduled_ms)
        if metadata.ttl_ms is not None:
            system[TIME_TO_LIVE] = TimeSpan.of_ms(metadata.ttl_ms)
            if self.enqueued_ms is not None:
                system[EXPIRES_AT] = DateTime.of_ms(self.enqueued_ms + metadata.ttl_ms)
        if metadata.enqueued_sequence_number is not None:
            system[ENQUEUED_SEQUENCE_NUMBER] = metadata.enqueued_sequence_number

    def front_size(self) -> int:
        """Return where the application properties end; only after they were decoded."""
        return find_section(self.payload, APPLICATION_PROPERTIES)[2]
