"""Messages without a key that wait for a sick store while another is well: PE4, watched as ``waiting`` does.

A client cannot tell which store its message waits for. So this looks into the message brokers before time moves on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from duobus.fragment.send import Run
from simulation.history.events import KeylessLate
from simulation.parts.waiting import WaitWatch
from simulation.world.store_health import StoreHealth

if TYPE_CHECKING:
    from simulation.world.world import World

#: Virtual time in which a message without a key is stored after a fault has begun.
LIMIT_S: Final = 5.0


def watches(world: World) -> Callable[[float, float], None]:
    """Everything that is watched while nothing happens; for the loop."""
    health = StoreHealth(world)
    waits, keyless = WaitWatch(world, health), KeylessWatch(world, health)

    def rest(now: float, until: float) -> None:
        health.look(now)
        waits.rest(now, until)
        keyless.rest(now, until)

    return rest


class _Wait:
    """A message that waits; what it is known by is kept, so that nothing else gets its identity."""

    __slots__ = ("is_told", "known_by", "since")

    def __init__(self, known_by: Any, since: float) -> None:
        self.known_by = known_by
        self.since = since
        self.is_told = False


class KeylessWatch:
    """Tells the history of messages without a key that wait in vain."""

    def __init__(self, world: World, health: StoreHealth) -> None:
        self._world = world
        self._health = health
        self._life = 0
        self._waits: dict[tuple[int, int], _Wait] = {}

    def rest(self, now: float, until: float) -> None:
        """Nothing happens from ``now`` to ``until``; called by the loop."""
        world = self._world
        if world.lives != self._life:
            self._life, self._waits = world.lives, {}
        if world.unit is None or not world.node.alive:
            return
        waits: dict[tuple[int, int], _Wait] = {}
        for broker in world.unit.brokers.values():
            loop = broker.commit_loop
            for commands in (loop.pending, loop.lines, loop.work):
                for command in commands or ():
                    if isinstance(command, Run) and command.placement is not None:
                        self._look(command, waits, now, until)
        self._waits = waits

    def _look(self, run: Run, waits: dict[tuple[int, int], _Wait], now: float, until: float) -> None:
        # Sent elsewhere it becomes another command, of the same batch and indices.
        key = (id(run.batch), id(run.indices))
        wait = waits[key] = self._waits.get(key) or _Wait((run.batch, run.indices), now)
        brokers = {handle.store.store_id for handle in run.placement.fragments}
        sick = [since for number in brokers if (since := self._health.sick_since(number)) is not None]
        if len(sick) == len(brokers):
            # There is no other: its time begins when one comes back.
            wait.since = until
            return
        waited_s = until - max([wait.since, *sick])
        if waited_s >= LIMIT_S and not wait.is_told:
            wait.is_told = True
            entity = self._world.path_of(run.handle)
            self._world.history.append(KeylessLate(entity, run.handle.store.store_id, round(waited_s * 1000)))
