"""Catalogs that are lost, older or another server's, and stores that are older than their catalog; over the wire.

A broker makes and deletes queues and takes messages, and is killed. While it is down somebody changes its files: the
catalog is lost, or replaced by an older copy or by that of another server; or one store is replaced by an older copy.
Mostly nobody does. Then it starts again, or refuses to.

A message of one queue never comes out of another, nor of a later queue of the same name. What was acknowledged comes
out, or the broker refuses to start; and then it comes out when the right files are back. A broker whose files were left
alone never refuses (I1, I31).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest import mock

from duobus.broker import ScaleUnit
from duobus.errors import ServiceBusError, StoreForeign
from duobus.model.descriptions import QueueDescription
from duobus.storage import catalog_identity as belonging
from duobus.storage.catalog.memory import MemoryCatalog
from duobus.storage.catalog_identity import Belonging, CatalogMark
from simulation.scenarios.entity_life import LifeClient
from simulation.world.disk import AMBIGUOUS, REFUSED, SLOW, DiskState
from simulation.world.message import Message
from simulation.world.world import NAMESPACE, World

#: Lives of the broker in which something is made, and steps of one.
LIVES: Final = (2, 5)
STEPS: Final = (1, 5)
NAMES: Final = ("payroll", "public", "orders")
#: What may happen to the files between two lives.
NOTHING, LOST, OLDER, ANOTHERS, OLD_STORE = "nothing", "lost catalog", "older catalog", "another's catalog", "old store"
EVENTS: Final = (NOTHING, NOTHING, LOST, OLDER, OLDER, OLDER, ANOTHERS, OLD_STORE)
RUN_LIMIT_S: Final = 3_600.0
START_LIMIT_S: Final = 60.0


class CatalogsWorld(World):
    """A broker whose files somebody may change while it is down.

    Attributes:
        refused: Why the latest start was refused, or None.
    """

    may_have_journals = False

    def __init__(self, seed: int, stores: int) -> None:
        super().__init__(seed, [], stores)
        self.refused: str | None = None
        self._rules = self.catalog.read().namespaces[0]
        self.catalog.notes_generations = True

    async def _serve(self, life: int) -> None:
        self.refused = None
        try:
            await super()._serve(life)
        except StoreForeign as error:
            self.refused = str(error)

    def new_catalog(self, identity: int) -> MemoryCatalog:
        """One that knows nothing but the namespace."""
        made = MemoryCatalog()
        made.notes_generations = True
        made.identify(identity)
        made.put_namespace(self._rules)
        return made

    async def up(self) -> bool:
        """Start; whether it serves. A store that is away for a moment is waited for."""
        self.start()
        for _ in range(int(START_LIMIT_S / 0.1)):
            await asyncio.sleep(0.1)
            unit = self.unit
            if self.refused is not None:
                return False
            if self.amqp_server is not None and unit is not None:
                foreign = [one for one in unit.brokers.values() if "StoreForeign" in (one.last_error or "")]
                if foreign:
                    self.refused = foreign[0].last_error
                    return False
                if all(one.state == "open" for one in unit.brokers.values()):
                    return True
        raise TimeoutError("the broker does not come up")


class _Run:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"catalogs:{seed}")
        self.world = CatalogsWorld(seed, self.rng.choice((1, 1, 2, 3)))
        #: Name of a queue to its incarnation, of those that exist; the deletion of some others may not be through.
        self.present: dict[str, int] = {}
        #: What may be there although nobody was told that it is.
        self.doubtful: set[str] = set()
        self.acknowledged: dict[str, set[str]] = {}
        self.wrong: list[str] = []
        self._made = 0
        self._sent = 0
        self._clients = 0
        self._catalogs: list[MemoryCatalog] = []
        self._disks: list[dict[int, tuple[DiskState, DiskState]]] = []

    # -- clients ------------------------------------------------------------------------------------------------

    async def _client(self) -> LifeClient:
        while True:
            self._clients += 1
            try:
                return await LifeClient.connect(self.world, f"user-{self._clients}")  # type: ignore[return-value,unused-ignore]
            except OSError:
                await asyncio.sleep(0.2)

    async def send(self, name: str, number: int) -> None:
        """Send; what is acknowledged is noted."""
        client = await self._client()
        with contextlib.suppress(ConnectionError, TimeoutError):
            link = await client.sender(name)
            for _ in range(number):
                self._sent += 1
                uid = f"{name}.{self.present[name]}-{self._sent}"
                state = await client.put(link, Message(uid, b"").encode())
                if state is not None and type(state).__name__ == "Accepted":
                    self.acknowledged.setdefault(f"{name}.{self.present[name]}", set()).add(uid)
        client.close()

    async def drain(self, name: str) -> set[str]:
        """Take everything out of a queue."""
        found: set[str] = set()
        quiet = 0
        while quiet < 2:
            client = await self._client()
            with contextlib.suppress(ConnectionError, TimeoutError):
                link = await client.receiver(name)
                while client.alive and link.is_attached and quiet < 2:
                    client.arrived.clear()
                    client.grant(link, 10)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(client.arrived.wait(), 2.0)
                    items, client.received = client.received, []
                    quiet = 0 if items else quiet + 1
                    for item in items:
                        found.add(item.event.uid)
                        await client.complete(item)
            quiet += 1
            client.close()
        return found

    # -- whoever manages ----------------------------------------------------------------------------------------

    async def ask(self, what: str, *arguments: Any) -> bool:
        """Have the scale unit do something, as its management interfaces do; whether it said that it did."""
        unit = self.world.unit
        if unit is None or not self.world.node.alive:
            return False
        task = self.world.node.spawn(_quietly(unit, what, arguments))
        await asyncio.wait({task}, timeout=5.0)
        return task.done() and not task.cancelled() and task.result()

    async def create(self, name: str) -> None:
        about = QueueDescription(name=name, lock_duration_ms=60_000, enable_partitioning=self.rng.random() < 0.4)
        self._made += 1
        if await self.ask("create_queue", NAMESPACE, about):
            self.present[name] = self._made
            self.doubtful.discard(name)
        else:
            self.doubtful.add(name)

    async def delete(self, name: str) -> None:
        incarnation = self.present.pop(name)
        self.doubtful.discard(name)
        if not await self.ask("delete_queue", NAMESPACE, name):
            self.doubtful.add(name)
        self.acknowledged.pop(f"{name}.{incarnation}", None)

    def _see(self) -> None:
        """A creation or a deletion that nobody answered may be through all the same."""
        unit = self.world.unit
        known = unit.namespace(NAMESPACE).queues if unit is not None else {}
        for name in known:
            if name not in self.present:
                # Nothing was sent to it before now, if it is a new one; if it is an old one, it is to go.
                self.present[name] = -1
        for name in [name for name in self.present if name not in known]:
            if self.acknowledged.get(f"{name}.{self.present[name]}"):
                self.wrong.append(f"I31: '{name}' has messages that were acknowledged, and is gone")
            del self.present[name]

    async def live(self) -> None:
        """Make, use and delete queues for a while."""
        self._see()
        for disk in self.world.disks.values():
            disk.faults.chances = {REFUSED: 0.01, AMBIGUOUS: 0.01, SLOW: 0.02} if self.rng.random() < 0.3 else {}
        for name in [name for name, incarnation in self.present.items() if incarnation < 0]:
            await self.delete(name)
        for _ in range(self.rng.randint(*STEPS)):
            missing = [name for name in NAMES if name not in self.present]
            if missing and self.rng.random() < 0.7:
                await self.create(self.rng.choice(missing))
            elif self.present and self.rng.random() < 0.4:
                await self.delete(self.rng.choice(sorted(self.present)))
            if self.present:
                await self.send(self.rng.choice(sorted(self.present)), self.rng.randint(1, 6))
            if self.rng.random() < 0.3:
                self._catalogs.append(copy.deepcopy(self.world.catalog))
        for disk in self.world.disks.values():
            disk.faults.calm()

    # -- somebody at the files ----------------------------------------------------------------------------------

    def _keep(self) -> None:
        self._catalogs.append(copy.deepcopy(self.world.catalog))
        self._disks.append({n: (copy.deepcopy(d.seen), copy.deepcopy(d._durable)) for n, d in self.world.disks.items()})

    def spoil(self, event: str) -> Callable[[], None]:
        """Change the files of a broker that is down; returns what undoes it."""
        world = self.world
        right = world.catalog
        if event == OLD_STORE:
            number = self.rng.choice(sorted(world.disks))
            disk = world.disks[number]
            kept = disk.seen, disk._durable
            disk.seen, disk._durable = (copy.deepcopy(state) for state in self.rng.choice(self._disks)[number])

            def back() -> None:
                disk.seen, disk._durable = kept

            return back
        if event == LOST:
            world.catalog = world.new_catalog(self.rng.getrandbits(60) + 1)
        elif event == OLDER:
            world.catalog = copy.deepcopy(self.rng.choice(self._catalogs))
        elif event == ANOTHERS:
            world.catalog = world.new_catalog(self.rng.getrandbits(60) + 1)
            for number in world.disks:
                world.catalog.add_store(number, f"store-{number}")
            # As many as there are here, under other names: all numbers are in use, and everything looks as if.
            for row in right.read().entities:
                world.catalog.mark_live(
                    world.catalog.begin_create(NAMESPACE, row.kind, f"their-{row.path}", row.description, row.slots)
                )

        def put_back() -> None:
            world.catalog = right

        return put_back

    async def restart(self, event: str) -> None:
        """Kill the broker, have something happen to its files, and start it; in the end it serves its own again."""
        world = self.world
        self._keep()
        world.kill(power=self.rng.random() < 0.5)
        await asyncio.sleep(0.5)
        back = self.spoil(event)
        if await world.up():
            # That it serves says that all is well.
            await self.compare(event)
            return
        if event == NOTHING:
            self.wrong.append(f"I31: the files were left alone, and the broker refuses: {world.refused}")
        world.kill(power=False)
        await asyncio.sleep(0.5)
        back()
        if not await world.up():
            self.wrong.append(f"I31: the right files are back ({event}), and the broker refuses: {world.refused}")
            raise _Over

    async def compare(self, event: str) -> None:
        """Look what comes out of all queues, those made just now included."""
        unit = self.world.unit
        assert unit is not None
        if event not in (NOTHING, OLD_STORE):
            # Whoever finds his queue missing makes it anew.
            for name in NAMES:
                if name not in unit.namespace(NAMESPACE).queues:
                    await self.create(name)
        for name in sorted(unit.namespace(NAMESPACE).queues):
            if name in self.doubtful:
                continue
            found = await self.drain(name)
            expected = f"{name}.{self.present.get(name, 0)}-"
            strange = sorted(uid for uid in found if not uid.startswith(expected))
            if strange and self.present.get(name, 0) >= 0:
                self.wrong.append(f"I31: {strange[0]} came out of '{name}' ({expected}) after: {event}")
            lost = self.acknowledged.pop(expected[:-1], set()) - found
            if lost:
                self.wrong.append(f"I1: {min(lost)} was acknowledged and did not come out after: {event}")
        for name, incarnation in self.present.items():
            if self.acknowledged.get(f"{name}.{incarnation}"):
                self.wrong.append(f"I1: what was acknowledged of '{name}' did not come out after: {event}")

    async def whole(self) -> None:
        await self.world.up()
        with contextlib.suppress(_Over):
            for _ in range(self.rng.randint(*LIVES)):
                await self.live()
                event = self.rng.choice(EVENTS)
                await self.restart(event)
            await self.restart(NOTHING)


class _Over(Exception):
    """There is no point in going on."""


async def _quietly(unit: ScaleUnit, what: str, arguments: tuple[Any, ...]) -> bool:
    try:
        await getattr(unit, what)(*arguments)
    except (ServiceBusError, KeyError):
        return False
    return True


def run(seed: int) -> list[str]:
    """Run one seed; returns what is wrong with it, in words."""
    one = _Run(seed)
    try:
        one.world.loop.run(one.whole(), time_limit_s=RUN_LIMIT_S)
    finally:
        one.world.loop.close()
    return one.wrong


# -- planted bugs -----------------------------------------------------------------------------------------------


@contextmanager
def stores_not_compared() -> Iterator[None]:
    """A store is opened with whatever catalog there is."""
    with mock.patch.object(ScaleUnit, "demand_own", return_value=None):
        yield


@contextmanager
def identity_ignored() -> Iterator[None]:
    """Any catalog will do that is as far as its stores."""
    original = belonging.demand_own

    def demand_own(mark: CatalogMark, contents: Any, what: str) -> None:
        own = contents.belonging or belonging.NOBODYS
        contents.belonging = own._replace(identity=mark.identity if own.identity else 0)
        original(mark, contents, what)

    with (
        mock.patch.object(belonging, "demand_own", demand_own),
        mock.patch.object(belonging, "missing_from", return_value=[]),
    ):
        yield


@contextmanager
def revision_ignored() -> Iterator[None]:
    """An older copy of the catalog will do."""
    original = belonging.demand_own

    def demand_own(mark: CatalogMark, contents: Any, what: str) -> None:
        own = contents.belonging or belonging.NOBODYS
        known = belonging.highest_of(contents)
        contents.belonging = own._replace(revision=0)
        mark.last_id, kept = max(mark.last_id, known), mark.last_id
        original(mark, contents, what)
        mark.last_id = kept

    with (
        mock.patch.object(belonging, "demand_own", demand_own),
        mock.patch.object(belonging, "missing_from", return_value=[]),
    ):
        yield


@contextmanager
def told_before_it_is_durable() -> Iterator[None]:
    """A store is told of a revision that the catalog may never have."""
    original = CatalogMark.told

    def told(self: CatalogMark, before: Belonging, *, is_prepared: bool = False) -> Belonging | None:
        now = original(self, before, is_prepared=is_prepared)
        return now and now._replace(revision=now.revision + 3)

    with mock.patch.object(CatalogMark, "told", told):
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "stores-not-compared": stores_not_compared,
    "identity-ignored": identity_ignored,
    "revision-ignored": revision_ignored,
    "told-before-it-is-durable": told_before_it_is_durable,
}
