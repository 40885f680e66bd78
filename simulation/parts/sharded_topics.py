"""A topic over the stores of several servers, whose rules and subscriptions change while servers come and go (0069).

Somebody adds and removes a rule, creates a subscription and deletes another, at any server; publishers and receivers
are at any server, too. From the answer on a change holds for every message that is sent later, whichever shard it goes
to, and until the answer either version does (``check_fanout``: I24).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import Transfers
from duobus.codec import Symbol, build_message, scan
from duobus.codec.sections import application_properties
from duobus.errors import EntityAlreadyExists, EntityNotFound, ServiceBusError
from duobus.model.descriptions import RuleDescription, SubscriptionDescription, TopicDescription
from simulation.checkers.fanout import ACCEPTED, FanoutHistory, Published, check_fanout
from simulation.history import events as h
from simulation.parts.subscribing import Reading, outcome_of
from simulation.scenarios.entity_life import LifeClient
from simulation.scenarios.topics import COMING, RULES, expected
from simulation.world.message import Received
from simulation.world.world import NAMESPACE

if TYPE_CHECKING:
    from duobus.cluster.scale_unit import ClusteredScaleUnit
    from simulation.scenarios.servers import ServersWorld

TOPIC: Final = "fans"
#: Created while messages are sent, and deleted while they are.
FRESH: Final = "fresh"
GONE: Final = "gone"
#: Numbers of messages: from below 60, where one of the rules begins to take them.
FIRST: Final = 40
END: Final = 160
#: How long one call of the management may take, in seconds.
CALL_S: Final = 20.0
_NAMES: Final = (*RULES, "changing")
_EVERYTHING: Final = (RuleDescription(name="$Default"),)
#: Of a lock: what a client was given that never heard of it comes again while the run drains.
LOCK_MS: Final = 5_000
_FRESH: Final = SubscriptionDescription(
    name=FRESH, rules=_EVERYTHING, max_delivery_count=1_000, lock_duration_ms=LOCK_MS
)

#: Gives a connected client; None when the phase has ended.
Connect = Callable[[str, type[Any]], Coroutine[Any, Any, Any]]


class _Subscriber(LifeClient):
    """Notes numbers and rules of what arrives.

    Attributes:
        clients: Whose history.
        subscription: What this connection receives from.
    """

    clients: ShardedTopicClients
    subscription: str

    def _on_transfers(self, event: Transfers) -> None:
        for index, payload in enumerate(event.payloads):
            about = application_properties(payload[scan(payload).bare :])
            number = int(about["n"])
            self.clients.history.seen.append((number, self.subscription, str(about.get("RuleName", ""))))
            delivery = h.Delivery("", 0, str(number), b"", None, 0, 1, self.name, self.name, 0)
            self.received.append(Received(event.link, event.first_delivery_id + index, delivery))
        self.arrived.set()


class ShardedTopicClients:
    """Everybody who uses the topic.

    Attributes:
        history: What was published and seen; its versions are those of the rule that comes and goes.
        wrong: What must not be and was.
    """

    def __init__(self, world: ServersWorld, connect: Connect, in_phase: Callable[[], bool]) -> None:
        self.history = FanoutHistory()
        self.history.versions = [False]
        self.wrong: list[str] = []
        self._world = world
        self._connect = connect
        self._in_phase = in_phase
        self._rng = random.Random(f"sharded-topics:{world.seed}")
        # The version that was answered last: those before are over.
        self._settled = 0
        self._is_created = asyncio.Event()
        self._has_fresh = False
        # Numbers of messages that were sent once the new subscription was answered.
        self._fresh: set[int] = set()
        self._next = FIRST

    def jobs(self) -> list[Any]:
        """What runs during the first phase."""
        return [self._manage(), self._publish(0), self._publish(1), *(self._subscribe(name) for name in _NAMES)]

    # -- management -----------------------------------------------------------------------------------------------

    async def _call(self, work: Callable[[ClusteredScaleUnit], Coroutine[Any, Any, Any]]) -> bool:
        """Ask some server for a change; whether it is answered as done, or as there already."""
        well = [one for one in self._world.servers if one.is_well and one.unit is not None and one.cluster is not None]
        if not well:
            return False
        server = self._rng.choice(well)
        assert server.unit is not None
        task = server.machine.spawn(_informed(server.unit, work))
        await asyncio.wait({task}, timeout=CALL_S)
        if not task.done() or task.cancelled():
            return False
        error = task.exception()
        if error is None or isinstance(error, (EntityAlreadyExists, EntityNotFound)):
            return True
        if not isinstance(error, ServiceBusError):
            raise error
        return False

    async def _insist(self, work: Callable[[ClusteredScaleUnit], Coroutine[Any, Any, Any]]) -> None:
        while not await self._call(work):  # noqa: ASYNC110 - nothing tells when a server can do it
            await asyncio.sleep(self._rng.uniform(0.05, 0.3))

    async def _create(self) -> None:
        names = (*_NAMES, GONE)
        wanted = tuple(
            SubscriptionDescription(
                name=name,
                rules=_EVERYTHING if name == GONE else RULES.get(name, ()),
                max_delivery_count=1_000,
                lock_duration_ms=LOCK_MS,
            )
            for name in names
        )
        about = TopicDescription(name=TOPIC, enable_partitioning=True, subscriptions=wanted)
        while True:
            await self._call(lambda unit: unit.topics.create_topic(NAMESPACE, about))
            for server in self._world.servers:
                topic = server.unit.namespace(NAMESPACE).topics.get(TOPIC) if server.is_well and server.unit else None
                if topic is not None and all(name in topic.subscriptions for name in names):
                    self._is_created.set()
                    return
            await asyncio.sleep(0.2)

    async def _manage(self) -> None:
        await self._create()
        fresh_at, gone_at = (self._rng.randint(0, 4) for _ in range(2))
        turn = 0
        while self._in_phase():
            if turn == fresh_at:
                await self._insist(lambda unit: unit.topics.create_subscription(NAMESPACE, TOPIC, _FRESH))
                self._has_fresh = True
            if turn == gone_at:
                await self._insist(lambda unit: unit.topics.delete_subscription(NAMESPACE, TOPIC, GONE))
                await self._look_for_gone()
            await self._toggle()
            turn += 1
            await asyncio.sleep(self._rng.choice((0.0, 0.2, 1.0)))

    async def _toggle(self) -> None:
        has_rule = not self.history.versions[-1]
        self.history.versions.append(has_rule)

        async def change(unit: ClusteredScaleUnit) -> None:
            topics = unit.topics
            subscription = topics.subscription(NAMESPACE, TOPIC, "changing")
            if has_rule:
                await topics.add_rule(subscription, COMING)
            else:
                await topics.remove_rule(subscription, COMING.name)

        await self._insist(change)
        self._settled = len(self.history.versions) - 1

    async def _look_for_gone(self) -> None:
        """Nobody can receive from a subscription whose deletion was answered."""
        client = await self._connect("gone", _Subscriber)
        if client is None:
            return
        client.clients, client.subscription = self, GONE
        with contextlib.suppress(ConnectionError, TimeoutError):
            link = await client.receiver(f"{TOPIC}/Subscriptions/{GONE}")
            client.grant(link, 5)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.arrived.wait(), 1.0)
            if client.received:
                self.wrong.append(f"a message came from '{GONE}', which was answered as deleted (I24)")
        client.close()

    # -- messages -------------------------------------------------------------------------------------------------

    async def _publish(self, number: int) -> None:
        await self._is_created.wait()
        while self._next < END and self._in_phase():
            client = await self._connect("publisher", LifeClient)
            if client is None:
                return
            with contextlib.suppress(ConnectionError, TimeoutError):
                link = await client.sender(TOPIC)
                while self._next < END and self._in_phase() and client.alive and link.is_attached:
                    await self._publish_one(client, link)
                    await asyncio.sleep(self._rng.choice((0.0, 0.02, 0.1)))
            client.close()
            await asyncio.sleep(0.05 * (1 + number))

    async def _publish_one(self, client: LifeClient, link: Any) -> None:
        number, self._next = self._next, self._next + 1
        published = Published(number, self._settled)
        if self._has_fresh:
            self._fresh.add(number)
        self.history.published.append(published)
        key = {Symbol("x-opt-partition-key"): f"key{number % 7}"} if number % 2 else None
        payload = build_message(None, {"n": number, "k": str(number % 3)}, annotations=key, data=b"%d" % number)
        state = await client.put(link, payload)
        if state is not None:
            published.outcome = outcome_of(state)
            published.until = len(self.history.versions) - 1

    async def _subscribe(self, name: str, *, drains: bool = False) -> None:
        await self._is_created.wait()
        reading = Reading(self._rng, self._in_phase, drains=drains)
        while reading.goes_on:
            client = await self._connect("drain" if drains else "subscriber", _Subscriber)
            if client is None:
                return
            client.clients, client.subscription = self, name
            with contextlib.suppress(ConnectionError, TimeoutError):
                link = await client.receiver(f"{TOPIC}/Subscriptions/{name}")
                await reading.receive(client, link)
            client.close()
            await asyncio.sleep(0.1)

    async def drain(self) -> None:
        """Receive what is left, once all is well and locks have ended."""
        names = [*_NAMES, *((FRESH,) if self._has_fresh else ())]
        await asyncio.gather(*(self._subscribe(name, drains=True) for name in names))

    def problems(self) -> list[str]:
        """What is wrong, in words."""
        fresh = {number for number, name, _ in self.history.seen if name == FRESH}
        accepted = {one.number for one in self.history.published if one.outcome == ACCEPTED}
        lacking = sorted((self._fresh & accepted) - fresh)
        found = [f"messages {lacking} are not in '{FRESH}', which was answered as created (I24)"] if lacking else []
        self.history.seen = [one for one in self.history.seen if one[1] not in (FRESH, GONE)]
        return [*self.wrong, *found, *check_fanout(self.history, expected)]


async def _informed(unit: ClusteredScaleUnit, work: Callable[[ClusteredScaleUnit], Coroutine[Any, Any, Any]]) -> None:
    """Work with what the catalog says, as a request over HTTP does (``cluster/http/proxy.py``)."""
    await unit.read_again()
    await work(unit)
