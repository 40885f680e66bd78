"""Which stores of a simulated broker are well, by a measure of the watches' own: the broker's must not judge itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from duobus.broker import MessageBroker
    from simulation.world.world import World

#: A commit that takes longer shows a fault; without one they take milliseconds.
WELL_S: Final = 0.25


class _Store:
    """What was seen of a message broker: its commit under way and since when, and since when it is sick, or None.

    It is sick until a commit was quick, or it had nothing to do for a moment: slow commits in a row are one fault.
    """

    __slots__ = ("commit", "sick_since", "since")

    def __init__(self) -> None:
        self.commit: object = None
        self.since = 0.0
        self.sick_since: float | None = None

    def look(self, broker: MessageBroker, now: float) -> None:
        commit = None if broker.commit_loop.work is None else broker.commit_loop.commit_no
        if commit != self.commit:
            if self.commit is not None and now - self.since < WELL_S:
                self.sick_since = None
            self.commit, self.since = commit, now
        is_long = now - self.since >= WELL_S
        if broker.state != "open" or (commit is not None and is_long):
            if self.sick_since is None:
                self.sick_since = now
        elif commit is None and is_long:
            self.sick_since = None


class StoreHealth:
    """The health of all stores of the broker's present life."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stores: dict[int, _Store] = {}
        self._life = 0

    def look(self, now: float) -> None:
        """Look at every store; called before whoever asks."""
        world = self._world
        if world.lives != self._life:
            self._life, self._stores = world.lives, {}
        if world.unit is None or not world.node.alive:
            return
        for number, broker in world.unit.brokers.items():
            store = self._stores.get(number)
            if store is None:
                store = self._stores[number] = _Store()
            store.look(broker, now)

    def sick_since(self, store_id: int) -> float | None:
        """Since when a store is sick, or None: it is well."""
        return self._stores[store_id].sick_since
