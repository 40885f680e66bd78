"""Moves of fragments under faults: the whole simulation, with somebody who moves fragments all the time.

Everything is as in ``run.py``, the checkers too: a move must not be seen but as a short outage of the fragment
(I1, I2, I7, I9, I31, I56). When all is over, a fragment has rows in one store only.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final
from unittest import mock

from duobus.broker.commit_loop import CommitLoop
from duobus.broker.fragment_host import FragmentHost
from duobus.broker.fragment_moves.copy_tracker import SourceCopyTracker
from duobus.broker.fragment_moves.move import FragmentMove
from duobus.broker.protocols import FragmentPlan
from duobus.errors import ServiceBusError
from duobus.fragment.send import Run
from duobus.storage.interface import CommitBatch
from simulation.checkers import Violation, check
from simulation.history import events as h
from simulation.run import RUN_LIMIT_S, Scenario, SimulatedRun
from simulation.world.world import World

#: Pauses between two moves, in virtual seconds.
PAUSE_S: Final = (0.0, 0.6)


class _MovingRun(SimulatedRun):
    """A run in which fragments move."""

    async def _nemesis(self) -> None:
        moving = asyncio.ensure_future(self._move())
        await super()._nemesis()
        await moving

    async def _move(self) -> None:
        rng = random.Random(f"moves:{self.world.seed}")
        while self.in_phase:
            await asyncio.sleep(rng.uniform(*PAUSE_S))
            unit = self.world.unit
            queue = self.world.queue(rng.choice(self.scenario.all_queues).name)
            if unit is None or queue is None:
                continue
            handle = rng.choice(queue.fragments)
            others = [number for number in unit.brokers if number != handle.store.store_id]
            with suppress(ServiceBusError):
                self.world.node.call(unit.moves.start, queue.namespace, queue.path, handle.number, rng.choice(others))


class _Watch:
    """Tells the history when a fragment is held."""

    def __init__(self, world: World) -> None:
        self._world = world

    @contextmanager
    def watching(self) -> Iterator[None]:
        take_out, take_in = FragmentHost.export_fragment, FragmentHost.import_fragment

        def taken_out(host: FragmentHost, plan: FragmentPlan) -> list[Run]:
            held = self._named(plan)
            runs = take_out(host, plan)
            self._world.history.append(h.Crash(self._world.broker_ms(), held))
            self._world.history.append(h.FragmentsDown(held))
            return runs

        async def taken_in(host: FragmentHost, plan: FragmentPlan, *rest: Any) -> None:
            await take_in(host, plan, *rest)
            if plan.handle.online:
                self._world.history.append(h.FragmentsUp(self._named(plan)))

        with (
            mock.patch.object(FragmentHost, "export_fragment", taken_out),
            mock.patch.object(FragmentHost, "import_fragment", taken_in),
        ):
            yield

    def _named(self, plan: FragmentPlan) -> frozenset[tuple[str, int]]:
        return frozenset({(self._world.path_of(plan.handle), plan.handle.number)})


def run(seed: int) -> tuple[list[Violation | str], int]:
    """Run one seed; what is wrong, and how many moves came to their end."""
    scenario = Scenario(seed)
    scenario.stores = max(2, scenario.stores)
    done: list[str] = []
    with ExitStack() as stack:
        world = World(seed, scenario.all_queues, scenario.stores)
        stack.enter_context(world.watched())
        stack.enter_context(_Watch(world).watching())
        world.on_event = lambda what: done.append(what) if what == "move done" else None
        try:
            world.loop.run(_MovingRun(world, scenario).play(), time_limit_s=RUN_LIMIT_S)
        finally:
            world.loop.close()
    wrong: list[Violation | str] = [*check(world.history, scenario.setup(frozenset(world.removed_uids)))]
    return wrong + list(_left_behind(world)), len(done)


def _left_behind(world: World) -> Iterator[str]:
    """Whatever a store has of a fragment that the catalog knows elsewhere, or of a move that has not ended."""
    homes = {
        (entity.entity_id, slot.fragment_no): slot.store_id
        for entity in world.catalog.read().entities
        for slot in entity.slots
    }
    for number, disk in world.disks.items():
        for entity_id, fragment_no, _ in disk.held().fragments.values():
            if homes.get((entity_id, fragment_no)) != number:
                yield f"I31: store {number} has fragment {fragment_no} of entity {entity_id}, which is not there"
    yield from (f"I31: {move} has not ended" for move in world.catalog.read().moves)


# -- planted bugs -----------------------------------------------------------------------------------------------


@contextmanager
def row_left_behind() -> Iterator[None]:
    """What came while the copy was made is not fetched when the fragment is held."""
    original = FragmentMove.finish

    async def finish(self: FragmentMove, fragment: Any) -> None:
        with mock.patch.object(FragmentMove, "_round", _nothing):
            await original(self, fragment)

    with mock.patch.object(FragmentMove, "finish", finish):
        yield


async def _nothing(_mover: FragmentMove) -> None:
    """Do nothing."""


@contextmanager
def changes_not_noted() -> Iterator[None]:
    """What commits change of rows that were copied is not brought up to date: what was removed comes back."""
    with mock.patch.object(SourceCopyTracker, "note_removal"), mock.patch.object(FragmentMove, "_compare", _looked):
        yield


async def _looked(_mover: FragmentMove, _source: SourceCopyTracker) -> None:
    """Find nothing."""


@contextmanager
def open_in_both() -> Iterator[None]:
    """The fragment is not taken out of the message broker that had it."""

    def take_out(_broker: FragmentHost, _plan: FragmentPlan) -> list[Run]:
        return []

    def decide(self: CommitLoop, command: Any, now_ms: int, commit: CommitBatch) -> bool:
        # Nor does it look whose the fragment is by now.
        handle = command.handle if hasattr(command, "handle") else None
        if handle is not None and handle.fragment is not None and handle.broker is not self._broker:
            handle.broker, moved = self._broker, handle.broker
            try:
                return original(self, command, now_ms, commit)
            finally:
                handle.broker = moved
        return original(self, command, now_ms, commit)

    original = CommitLoop._decide
    with mock.patch.object(FragmentHost, "export_fragment", take_out), mock.patch.object(CommitLoop, "_decide", decide):
        yield


@contextmanager
def numbers_from_the_rows() -> Iterator[None]:
    """The next number is made from the highest message that came along."""
    original = FragmentMove._moved

    def moved(self: FragmentMove, one: SourceCopyTracker, fragment: Any) -> Any:
        row = original(self, one, fragment)
        row.next_count = one.next_count
        return row

    with mock.patch.object(FragmentMove, "_moved", moved):
        yield


@contextmanager
def nothing_cleared_up() -> Iterator[None]:
    """A move that a crash has ended is forgotten at the start."""

    async def clear_up(catalog: Any, move: Any, _brokers: Any) -> bool:
        catalog.end_move(move)
        return True

    with mock.patch("duobus.broker.fragment_moves.coordinator.clear_up", clear_up):
        yield


BUGS: dict[str, Callable[[], Any]] = {
    "row-left-behind": row_left_behind,
    "changes-not-noted": changes_not_noted,
    "fragment-open-in-both": open_in_both,
    "numbers-from-the-rows": numbers_from_the_rows,
    "nothing-cleared-up": nothing_cleared_up,
}
