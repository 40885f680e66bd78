"""MessageView: a message as rules see it. Sections are decoded when a rule asks for them, once."""

from __future__ import annotations

from duobus.model.special import Special


class MessageView:
    """One message that was published to a topic.

    Args:
        payload: The bare message, from the properties section on.
        special: What is rare about it, or None.
        enqueued_ms: When the topic took it (or, scheduled, when it became due), ms since the epoch; None: not yet.
        sequence_number: The one that the topic gave it; None: not yet.
    """

    __slots__ = ("enqueued_ms", "payload", "sequence_number", "special")

    def __init__(
        self,
        payload: bytes,
        special: Special | None = None,
        enqueued_ms: int | None = None,
        sequence_number: int | None = None,
    ) -> None:
        self.payload = payload
        self.special = special
        self.enqueued_ms = enqueued_ms
        self.sequence_number = sequence_number
