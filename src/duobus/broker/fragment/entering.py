"""What is rare about the messages of a run, and the state in which it lets them enter a source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duobus.broker.fragment.slot import SCHEDULED, TRANSFER, stored_state

if TYPE_CHECKING:
    from duobus.broker.fragment.commands import Run
    from duobus.model.special import Special


def with_specials(
    extra: dict[int, Special], run: Run, indices: list[int] | None, now_ms: int
) -> dict[int, tuple[int, int, bytes | None]]:
    """Attach the specials of a batch to the run's slots; the store's form of them, by position in the run."""
    specials: dict[int, tuple[int, int, bytes | None]] = {}
    for position, index in enumerate(range(run.batch.n) if indices is None else indices):
        special = extra.get(index)
        if special is None:
            continue
        slot = run.slots[position]
        slot.special = special
        if special.way is not None and special.way.to is not None:
            slot.state = TRANSFER
        elif special.scheduled_ms is not None and special.scheduled_ms > now_ms:
            # A past or present time: enqueue at once (contract 13.1).
            slot.state = SCHEDULED
        specials[position] = (stored_state(slot.state, special), 0, special.encode())
    return specials
