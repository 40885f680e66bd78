"""What the simulation notes of stores that are late, and of messages that wait for them although they need not."""

from __future__ import annotations

from simulation.history.events import Event


class FragmentsLate(Event):
    """The store of these fragments, (entity, fragment), has not answered for a while: it is passed over until it does.

    Turns that are taken meanwhile are not in the history. Or they have a new owner, which begins anew with their turns.
    """

    __slots__ = ("fragments",)

    def __init__(self, fragments: frozenset[tuple[str, int]]) -> None:
        self.fragments = fragments


class KeylessLate(Event):
    """A message without a key waited for a store although another of its entity was well (PE4).

    Attributes:
        entity: The queue.
        store: Where it waits.
        waited_ms: For so long, counted from the beginning of the last fault of a store of its entity.
    """

    __slots__ = ("entity", "store", "waited_ms")

    def __init__(self, entity: str, store: int, waited_ms: int) -> None:
        self.entity = entity
        self.store = store
        self.waited_ms = waited_ms
