"""FragmentMoves: the moves of fragments that a server makes, one at a time, and what is left of unfinished ones."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from duobus.broker.fragment_moves.copy import MoveAborted
from duobus.broker.fragment_moves.move import FragmentMove, clear_up, store_of
from duobus.errors import (
    ArgumentInvalid,
    EntityNotFound,
    RowsExist,
    ServerBusy,
    ServiceBusError,
    StoreFailed,
)
from duobus.storage.catalog_rows import MoveRow

if TYPE_CHECKING:
    from duobus.broker.entities.entity_host import EntityHost
    from duobus.broker.entities.queue import Queue

#: Moves that a server tells of, the latest first.
MOVES_SHOWN_MAX: Final = 100


class RunningMove(Protocol):
    """A move that is made.

    Attributes:
        held_s: For how long nobody could use what moves.
        has_switched: It is in the other store, for good.
    """

    held_s: float
    has_switched: bool

    @property
    def messages(self) -> int:
        """Rows that the other store has got so far."""

    async def run(self) -> None:
        """Make it."""


class FragmentMoves:
    """The moves of a scale unit."""

    __slots__ = ("_is_stopped", "_left", "_moving", "_running", "_shown", "_task", "_unit")

    def __init__(self, unit: EntityHost) -> None:
        self._unit = unit
        self._task: asyncio.Task[None] | None = None
        self._running: FragmentMove | None = None
        self._is_stopped = False
        self._moving: Sequence[MoveRow] = ()
        self._shown: deque[dict[str, Any]] = deque(maxlen=MOVES_SHOWN_MAX)
        # Those of which a store that was away still has rows that are nobody's.
        self._left: list[MoveRow] = []

    def status(self) -> list[dict[str, Any]]:
        """What became of the moves of this server, the latest first: ``state`` is running, done or failed."""
        if self._running is not None:
            self._shown[0]["messages"] = self._running.messages
        return [dict(one) for one in self._shown]

    def target_of(self, entity_id: int, fragment_no: int) -> int | None:
        """The store to which a fragment is being moved at this moment; None when it stays."""
        return next(
            (move.to_store for move in self._moving if (move.entity_id, move.fragment_no) == (entity_id, fragment_no)),
            None,
        )

    def start(self, namespace: str, path: str, fragment_no: int, store_id: int) -> dict[str, Any]:
        """Begin a move and return its status.

        Raises:
            EntityNotFound: There is no such queue or topic, or it has no such fragment.
            ArgumentInvalid: There is no such store, or the fragment is there.
            ServerBusy: There is a move under way, or one of the stores is away.
        """
        entity = self._entity(namespace, path)
        handle = next((handle for handle in entity.fragments if handle.number == fragment_no), None)
        if handle is None:
            numbers = ", ".join(str(handle.number) for handle in entity.fragments)
            raise EntityNotFound(f"'{entity.path}' has no fragment {fragment_no}; it has {numbers}.")
        origin, target = handle.broker, self._unit.brokers.get(store_id)
        if target is None:
            known = ", ".join(map(str, sorted(self._unit.brokers)))
            raise ArgumentInvalid(f"There is no messaging store {store_id}; there are {known}.")
        if target is origin:
            raise ArgumentInvalid(f"Fragment {fragment_no} of '{entity.path}' is on store {store_id} already.")
        if self._task is not None and not self._task.done():
            raise ServerBusy("Another fragment is being moved. Wait until that is done: GET /$duobus/moves.")
        for broker in (origin, target):
            if broker.state != "open":
                raise broker.unavailable()
        move = MoveRow(entity.entity_id, fragment_no, origin.store_id, store_id)
        if any((left.entity_id, left.fragment_no) == (move.entity_id, move.fragment_no) for left in self._left):
            raise ServerBusy(
                "What an earlier move of this fragment left behind is not deleted yet: a store was away. Try later."
            )
        self._demand_free(move, entity.path)
        plan = origin.plans.get((entity.entity_id, fragment_no))
        if plan is None:
            raise origin.unavailable()
        status: dict[str, Any] = {
            "entity": entity.path,
            "fragment": fragment_no,
            "fragments": [fragment_no],
            "from": origin.store_id,
            "to": store_id,
            "state": "running",
            "reason": None,
            "messages": 0,
            "heldMs": None,
            "begunMs": self._unit.now_ms(),
            "endedMs": None,
        }
        self._shown.appendleft(status)
        self._moving = (move,)
        self._running = running = FragmentMove(
            self._unit.catalog,
            move,
            plan,
            target,
            lambda: self._demand(entity),
            lambda: self._unit.forwarding.store_opened(target),
        )
        self._task = asyncio.get_running_loop().create_task(self._run(running, move, status), name="move-fragment")
        return dict(status)

    async def wait(self) -> None:
        """Return when nothing is being moved."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Give up what is under way, before the stores are closed."""
        self._is_stopped = True
        await self.wait()

    async def resume(self, moves: Iterable[MoveRow]) -> None:
        """End what the start has found of moves: a fragment is where the catalog says, and only there."""
        self._left.extend(moves)
        await self._clear_up_left()

    def store_opened(self) -> None:
        """A store is there again; it may have rows that are nobody's."""
        if self._left and (self._task is None or self._task.done()) and not self._is_stopped:
            self._task = asyncio.get_running_loop().create_task(self._clear_up_left(), name="clear-up-moves")

    async def _clear_up_left(self) -> None:
        for move in list(self._left):
            try:
                home = store_of(self._unit.catalog, move)
            except StoreFailed:
                return
            others = {move.from_store, move.to_store} - {home}
            # A store that was given up took its rows with it.
            brokers = [self._unit.brokers[number] for number in sorted(others) if number in self._unit.brokers]
            # The start and a store that has just opened may both see to one.
            if await clear_up(self._unit.catalog, move, brokers) and move in self._left:
                self._left.remove(move)

    def _entity(self, namespace: str, path: str) -> Queue:
        home = self._unit.namespace(namespace)
        key = path.lower()
        entity = home.queues.get(key) or home.topics.get(key)
        if entity is None:
            raise EntityNotFound(f"There is no queue or topic '{path}' in this namespace.")
        return entity

    def _demand_free(self, move: MoveRow, path: str) -> None:
        if (move.entity_id, move.fragment_no) in self._unit.strays.get(move.to_store, ()):
            raise RowsExist(
                f"Messaging store {move.to_store} has something under the number of fragment {move.fragment_no} of "
                f"'{path}' that the catalog does not know, and a move would delete it. Choose another store."
            )

    def _demand(self, entity: Queue) -> None:
        if self._is_stopped:
            raise MoveAborted("the server was stopped")
        if entity.is_deleted:
            raise MoveAborted("the entity was deleted")

    async def _run(self, running: FragmentMove, move: MoveRow, status: dict[str, Any]) -> None:
        unit = self._unit
        what = f"fragment {move.fragment_no} of '{status['entity']}' from store {move.from_store} to {move.to_store}"
        unit.store_events(move.to_store, "move begun", what)
        reason = await self._outcome_of(running)
        self._running = None
        self._moving = ()
        self._note_left(move)
        await self._clear_up_left()
        self._end(status, running, reason)
        unit.store_events(move.to_store, f"move {status['state']}", f"{what}: {reason or running.messages}")

    @staticmethod
    async def _outcome_of(running: RunningMove) -> str | None:
        """Make a move; returns why it has failed, or None."""
        try:
            await running.run()
        except (MoveAborted, StoreFailed, ServiceBusError) as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - whoever asks has to learn that it has ended
            return f"a fault of the server: {error!r}"
        return None

    def _end(self, status: dict[str, Any], running: RunningMove, reason: str | None) -> None:
        """Write down what became of a move."""
        status |= {
            "state": "done" if running.has_switched else "failed",
            "reason": reason,
            "messages": running.messages,
            "heldMs": round(running.held_s * 1000),
            "endedMs": self._unit.now_ms(),
        }

    def _note_left(self, move: MoveRow) -> None:
        try:
            is_left = move in self._unit.catalog.read().moves
        except StoreFailed:
            # To look once too often does no harm.
            is_left = True
        if is_left:
            self._left.append(move)
