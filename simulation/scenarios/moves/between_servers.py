"""Entities that move between the stores of several servers, whatever befalls these (``servers.py``, decision 0070).

Clients, faults and checkers are those of queues that are spread, and somebody moves shards and whole queues all the
time. Servers are killed, stopped and cut off at any step of a move. When all is over, every fragment has rows in one
store only, the one that the catalog names, and no move is left.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from unittest import mock

from duobus.broker.fragment_host import FragmentHost
from duobus.broker.protocols import FragmentPlan
from duobus.errors import ServiceBusError
from duobus.fragment.send import Run
from duobus.model.descriptions import QUEUE
from duobus.storage.catalog_rows import LIVE, EntityRow, MoveRow
from simulation.history import events as h
from simulation.history.events import FragmentsLate
from simulation.scenarios.servers import (
    NOT_ASKED,
    QUIET_S,
    Outcome,
    ServersRun,
    SimulatedServerProcess,
    play,
)
from simulation.scenarios.sharding import TURNS, NotifyingCatalog, ShardedScenario, ShardedWorld

#: Pauses between two moves, in virtual seconds.
PAUSE_S: Final = (0.0, 0.5)
#: So many times the messages of other worlds.
SENT_LONGER: Final = 4


class _MovingCatalog(NotifyingCatalog):
    """Servers see what becomes of moves, too."""

    def begin_move(self, move: MoveRow) -> None:
        self.changed()
        super().begin_move(move)

    def give_up_move(self, move: MoveRow) -> None:
        self.changed()
        super().give_up_move(move)

    def end_move(self, move: MoveRow) -> None:
        self.changed()
        super().end_move(move)


class MovingWorld(ShardedWorld):
    """Servers whose entities move.

    Attributes:
        moves: How many moves were begun, and have come to their end, by how they ended.
    """

    catalog_type = _MovingCatalog

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.moves: Counter[str] = Counter()
        self.on_event = self._note_event

    def _note_event(self, what: str) -> None:
        if what.startswith("move "):
            self.moves[what.removeprefix("move ")] += 1

    @contextmanager
    def watched(self) -> Iterator[None]:
        """As before, and when a fragment is held, or is there again: its locks are gone."""
        take_out, take_in = FragmentHost.export_fragment, FragmentHost.import_fragment

        def taken_out(host: FragmentHost, plan: FragmentPlan) -> list[Run]:
            runs = take_out(host, plan)
            self._forgot(plan)
            return runs

        async def taken_in(host: FragmentHost, plan: FragmentPlan, *rest: Any) -> None:
            self._forgot(plan)
            await take_in(host, plan, *rest)

        with (
            super().watched(),
            mock.patch.object(FragmentHost, "export_fragment", taken_out),
            mock.patch.object(FragmentHost, "import_fragment", taken_in),
        ):
            yield

    def _forgot(self, plan: FragmentPlan) -> None:
        if any(row.entity_id == plan.handle.entity_id for row in self.catalog.read().entities):
            held = frozenset({(self.path_of(plan.handle), plan.handle.number)})
            self.history.append(h.Crash(self.broker_ms(), held))
            self.history.append(FragmentsLate(held))

    def left_behind(self) -> Iterator[str]:
        """Whatever a store has of a fragment that the catalog knows elsewhere, or of a move that has not ended."""
        contents = self.catalog.read()
        homes = {(row.entity_id, slot.fragment_no): slot.store_id for row in contents.entities for slot in row.slots}
        for number, disk in self.disks.items():
            for entity_id, fragment_no, _ in disk.seen.fragments.values():
                if homes.get((entity_id, fragment_no)) != number:
                    yield f"I31: store {number} has fragment {fragment_no} of entity {entity_id}, which is not there"
        yield from (f"I31: {move} has not ended" for move in contents.moves)


class MovingRun(ServersRun):
    """A run in which entities move."""

    world: MovingWorld

    async def _nemesis(self) -> None:
        moving = asyncio.ensure_future(self._move())
        await super()._nemesis()
        await moving

    async def _move(self) -> None:
        rng = random.Random(f"moves:{self.world.seed}")
        await asyncio.sleep(QUIET_S)
        while self.in_phase:
            await asyncio.sleep(rng.uniform(*PAUSE_S))
            rows = [row for row in self.world.catalog.read().entities if row.kind == QUEUE and row.state == LIVE]
            row = rng.choice([row for row in rows if row.slots])
            stores = [number for number in self.world.disks if number != row.slots[0].store_id]
            server = self._owner_of(row)
            to = rng.choice(stores)
            if server is None or server.unit is None:
                continue
            with suppress(ServiceBusError):
                path, number = row.path, rng.choice(row.slots).fragment_no
                server.machine.call(server.unit.moves.start, row.namespace, path, number, to)

    def _owner_of(self, row: EntityRow) -> SimulatedServerProcess | None:
        return next((one for one in self.world.servers if one.is_well and one.unit and one.unit.has(row)), None)

    async def _come_to_rest(self) -> None:
        await super()._come_to_rest()
        self.world.stale += self.world.left_behind()


def run(seed: int) -> Outcome:
    """Run one seed."""
    return run_world(seed)[0]


def run_world(seed: int) -> tuple[Outcome, MovingWorld]:
    """Run one seed; the world as it was left, too."""
    scenario = ShardedScenario(seed)
    # So that they are sent while things move, which they do after everything was created.
    scenario.messages *= SENT_LONGER
    world = MovingWorld(seed, scenario.all_queues, scenario.stores)
    return play(scenario, world, NOT_ASKED | TURNS, MovingRun), world
