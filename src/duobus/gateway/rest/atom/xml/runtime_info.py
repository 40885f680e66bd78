"""What an entry tells beside its description: counts, sizes and whether all of it can be reached."""

from __future__ import annotations

from typing import Final

from duobus.gateway.rest.atom.xml.reader import COUNTS

AVAILABLE: Final = "Available"
#: A fragment cannot be reached; its numbers are the last known ones.
LIMITED: Final = "Limited"


class RuntimeInfo:
    """Runtime numbers of one entity, summed over its fragments.

    Attributes:
        active: Available, locked and deferred messages.
        dead_letter: In the dead-letter queue.
        scheduled: Waiting for their time.
        transfer: On their way to a forwarding target.
        transfer_dead_letter: That never got there.
        size_bytes: Of all of them.
        availability: AVAILABLE or LIMITED.
        accessed_ms: When it was used last since the server's start; 0 for not.
    """

    __slots__ = (
        "accessed_ms",
        "active",
        "availability",
        "dead_letter",
        "scheduled",
        "size_bytes",
        "transfer",
        "transfer_dead_letter",
    )

    def __init__(
        self,
        active: int = 0,
        dead_letter: int = 0,
        scheduled: int = 0,
        transfer: int = 0,
        transfer_dead_letter: int = 0,
        *,
        size_bytes: int = 0,
        availability: str = AVAILABLE,
        accessed_ms: int = 0,
    ) -> None:
        self.active = active
        self.dead_letter = dead_letter
        self.scheduled = scheduled
        self.transfer = transfer
        self.transfer_dead_letter = transfer_dead_letter
        self.size_bytes = size_bytes
        self.availability = availability
        self.accessed_ms = accessed_ms

    @property
    def total(self) -> int:
        """What ``MessageCount`` says: the sum of the five."""
        return self.active + self.dead_letter + self.scheduled + self.transfer + self.transfer_dead_letter

    def details(self) -> str:
        """Return the element ``CountDetails``: one attribute, its prefix on every child (rule 0.9)."""
        counts = {
            "ActiveMessageCount": self.active,
            "DeadLetterMessageCount": self.dead_letter,
            "ScheduledMessageCount": self.scheduled,
            "TransferMessageCount": self.transfer,
            "TransferDeadLetterMessageCount": self.transfer_dead_letter,
        }
        inside = "".join(f"<d2p1:{name}>{count}</d2p1:{name}>" for name, count in counts.items())
        return f'<CountDetails xmlns:d2p1="{COUNTS}">{inside}</CountDetails>'
