"""Messages without a key that wait for a sick store while another is well: PE4, watched as ``sim_waits`` does.

A client cannot tell which store its message waits for. So this looks into the message brokers before time moves on,
with a measure of its own of which stores are well: open, and done with what they were told last within a moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from duobus.broker.fragment.commands import Run
from duobus.testing.late_history import KeylessLate
from duobus.testing.sim_waits import WaitWatch

if TYPE_CHECKING:
    from duobus.broker import MessageBroker
    from duobus.testing.sim_world import World

#: Virtual time in which a message without a key is stored after a fault has begun.
LIMIT_S: Final = 5.0
#: A commit that takes longer shows a fault; without one they take milliseconds.
WELL_S: Final = 0.25


def watches(world: World) -> Callable[[float, float], None]:
    """Everything that is watched while nothing happens; for the loop."""
    waits, keyless = WaitWatch(world), KeylessWatch(world)

    def rest(now: float, until: float) -> None:
        waits.rest(now, until)
        keyless.rest(now, until)

    return rest


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
        commit = None if broker._work is None else broker._commit_no
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


class _Wait:
    """A message that waits; what it is known by is kept, so that nothing else gets its identity."""

    __slots__ = ("is_told", "known_by", "since")

    def __init__(self, known_by: Any, since: float) -> None:
        self.known_by = known_by
        self.since = since
        self.is_told = False


class KeylessWatch:
    """Tells the history of messages without a key that wait in vain."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stores: dict[int, _Store] = {}
        self._life = 0
        self._waits: dict[tuple[int, int], _Wait] = {}

    def rest(self, now: float, until: float) -> None:
        """Nothing happens from ``now`` to ``until``; called by the loop."""
        world = self._world
        if world.lives != self._life:
            self._life, self._stores, self._waits = world.lives, {}, {}
        if world.unit is None or not world.node.alive:
            return
        for number, broker in world.unit.brokers.items():
            self._stores.setdefault(number, _Store()).look(broker, now)
        waits: dict[tuple[int, int], _Wait] = {}
        for broker in world.unit.brokers.values():
            for command in (*broker._pending, *(broker._work or ())):
                if isinstance(command, Run) and command.placement is not None:
                    self._look(command, waits, now, until)
        self._waits = waits

    def _look(self, run: Run, waits: dict[tuple[int, int], _Wait], now: float, until: float) -> None:
        # Sent elsewhere it becomes another command, of the same batch and indices.
        key = (id(run.batch), id(run.indices))
        wait = waits[key] = self._waits.get(key) or _Wait((run.batch, run.indices), now)
        brokers = {handle.broker.store_id for handle in run.placement.fragments}
        sick = [since for number in brokers if (since := self._stores[number].sick_since) is not None]
        if len(sick) == len(brokers):
            # There is no other: its time begins when one comes back.
            wait.since = until
            return
        waited_s = until - max([wait.since, *sick])
        if waited_s >= LIMIT_S and not wait.is_told:
            wait.is_told = True
            entity = self._world.path_of(run.handle)
            self._world.history.append(KeylessLate(entity, run.handle.broker.store_id, round(waited_s * 1000)))
