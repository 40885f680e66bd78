"""A topic under faults in virtual time: publishers, receivers, changing rules, failing stores, kills and power cuts.

The wire is left out: what is simulated is a scale unit on disks that fail, since a fan-out is decided and kept there.
One seed is one run. ``check_fanout`` looks at its history (I24).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from duobus.broker import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    MAIN,
    Run,
    SettleBatch,
    Subscription,
    Topic,
)
from duobus.codec import application_properties_section
from duobus.codec.sections import application_properties
from duobus.errors import OperationTimeout, ServiceBusError
from duobus.model.batches import DeliveryBatch, Refusal, SendBatch
from duobus.model.descriptions import RuleDescription, SubscriptionDescription, TopicDescription
from duobus.model.overlay import Overlay
from simulation.checkers.fanout import ACCEPTED, REFUSED, FanoutHistory, Published, check_fanout
from simulation.parts.bare_unit import BareUnit, Box
from simulation.world.disk import AMBIGUOUS as AMBIGUOUS_FAULT
from simulation.world.disk import REFUSED as REFUSED_FAULT
from simulation.world.disk import SLOW, SYNC_FAILED
from simulation.world.loop import SimulationLoop

NAMESPACE: Final = "sim"
TOPIC: Final = "t"
STORES: Final = 3
MESSAGES: Final = 120
LIVES: Final = 3
#: Virtual seconds of one life, between which processes are killed or the power is cut.
LIFE_S: Final = 6.0
TIME_LIMIT_S: Final = 3_000.0

#: Subscriptions with their rules; what each makes of a message is told once more, in Python, by ``expected``.
RULES: Final[dict[str, tuple[RuleDescription, ...]]] = {
    "all": (RuleDescription(name="$Default"),),
    "even": (RuleDescription(name="even", filter_type="Sql", sql_filter="n % 2 = 0"),),
    "third": (
        RuleDescription(
            name="third",
            filter_type="Correlation",
            correlation_filter={"Properties": {"k": "0"}},
            sql_action="SET seen = 'yes'",
        ),
        RuleDescription(name="large", filter_type="Sql", sql_filter="n > 60"),
    ),
}
#: What comes and goes at ``changing`` while messages are published.
COMING: Final = RuleDescription(name="coming", filter_type="Sql", sql_filter="n % 5 <> 0")


def expected(number: int, *, has_rule: bool) -> frozenset[tuple[str, str]]:
    """Which copies a message has: subscription and the rule with an action that made it, if one did."""
    copies = {("all", "")}
    if number % 2 == 0:
        copies.add(("even", ""))
    if number % 3 == 0:
        copies.add(("third", "third"))
    if number > 60:
        copies.add(("third", ""))
    if has_rule and number % 5:
        copies.add(("changing", ""))
    return frozenset(copies)


class _World(BareUnit):
    """The topic, and who uses it."""

    def __init__(self, seed: int, loop: SimulationLoop) -> None:
        super().__init__(
            seed, loop, STORES, {REFUSED_FAULT: 0.02, AMBIGUOUS_FAULT: 0.02, SYNC_FAILED: 0.01, SLOW: 0.02}
        )
        self.random = random.Random(f"topics:{seed}")
        self.history = FanoutHistory()
        self.has_rule = False
        self.versions: list[bool] = [False]
        self.next = 0

    @property
    def topic(self) -> Topic | None:
        return self.unit.namespace(NAMESPACE).topics.get(TOPIC)

    async def create(self) -> None:
        """Make what is missing; stores fail, so it may take several attempts."""
        names = [*RULES, "changing"]
        while True:
            try:
                topic = self.topic
                if topic is None:
                    about = TopicDescription(name=TOPIC, enable_partitioning=self.seed % 2 == 0)
                    topic = await self.unit.topics.create_topic(NAMESPACE, about)
                for name in names:
                    if name not in topic.subscriptions:
                        one = SubscriptionDescription(name=name, rules=RULES.get(name, ()), max_delivery_count=1000)
                        await self.unit.topics.create_subscription(NAMESPACE, TOPIC, one)
                return
            except ServiceBusError:
                # What could not be created is gone after a start, as it is with every server.
                self.kill(power=False)
                await self.start()

    # -- work ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Publishers, receivers and somebody who changes a rule, until the process ends."""
        work: list[Callable[[], object]] = [self._publish, self._publish, self._publish, self._receive, self._change]
        self.work = {asyncio.get_running_loop().create_task(one()) for one in work}  # type: ignore[arg-type]

    async def _publish(self) -> None:
        while self.next < MESSAGES:
            topic = self.topic
            assert topic is not None
            number = self.random.choice((1, 1, 2, 4))
            numbers = list(range(self.next, self.next + number))
            self.next += number
            box = Box()
            batch = SendBatch(0, [_message(one) for one in numbers], True, box)
            batch.atomic = self.random.random() < 0.5
            published = [Published(one, len(self.versions) - 1) for one in numbers]
            self.history.published += published
            topic.send(batch)
            answered = 0
            while answered < number:
                await box.event.wait()
                box.event.clear()
                found, box.ready = box.ready, []
                for item in found:
                    assert isinstance(item, (Run, Refusal))
                    indices = range(number) if item.indices is None else item.indices
                    if isinstance(item.error, OperationTimeout):
                        # Nobody knows, and so it stays.
                        answered += len(indices)
                        continue
                    for index in indices:
                        published[index].outcome = ACCEPTED if item.error is None else REFUSED
                        published[index].until = len(self.versions) - 1
                    answered += len(indices)
            await asyncio.sleep(self.random.uniform(0.0, 0.1))

    async def _change(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.2, 1.0))
            subscription = self.subscription("changing")
            if self.has_rule:
                await self.unit.topics.remove_rule(subscription, COMING.name)
            else:
                await self.unit.topics.add_rule(subscription, COMING)
            self.has_rule = not self.has_rule
            self.versions.append(self.has_rule)

    async def _receive(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.0, 0.2))
            name = self.random.choice([*RULES, "changing"])
            await self._take(self.subscription(name), name, completes=self.random.random() < 0.5)

    def subscription(self, name: str) -> Subscription:
        """One that is live."""
        return self.unit.topics.subscription(NAMESPACE, TOPIC, name)

    async def _take(self, subscription: Subscription, name: str, *, completes: bool) -> int:
        """Receive what there is for a moment, and settle it."""
        box = Box()
        receiver = subscription.open_receiver(MAIN, box, removing=False)
        receiver.request(20)
        receiver.close()
        number = 0
        for item in box.ready:
            assert isinstance(item, DeliveryBatch)
            if not item.messages:
                continue
            number += len(item.messages)
            for message in item.messages:
                metadata = message.metadata
                changed = None if metadata is None or metadata.changes is None else Overlay.decode(metadata.changes)
                rule = "" if changed is None else str(changed.application["RuleName"])
                self.history.seen.append((int(application_properties(message.payload)["n"]), name, rule))
            ranges = [(item.first_lock, len(item.messages))]
            outcome = COMPLETE if completes else ABANDON
            command = SettleBatch(
                item.fragment, subscription.source_no, None, prefix=item.prefix, outcome=outcome, ranges=ranges
            )
            subscription.settle(command)
        return number

    async def drain(self) -> None:
        """In calm times: take everything that is left."""
        for name in [*RULES, "changing"]:
            subscription = self.subscription(name)
            idle = 0
            while idle < 3:
                number = await self._take(subscription, name, completes=True)
                idle = 0 if number else idle + 1
                await asyncio.sleep(0.5)
            left = await subscription.peek(MAIN, 1, 10)
            left += await subscription.peek(DEAD_LETTER, 1, 10)
            self.history.left += [(name, len(left))] if left else []


def _message(number: int) -> bytes:
    body = b"%d" % number
    section = application_properties_section({"n": number, "k": str(number % 3)})
    return section + b"\x00\x53\x75\xa0" + bytes((len(body),)) + body


def run(seed: int) -> list[str]:
    """Run one seed; returns what is wrong with it, in words."""
    loop = SimulationLoop()
    world = _World(seed, loop)

    async def whole() -> None:
        await world.start()
        await world.create()
        for _ in range(LIVES):
            world.begin()
            await asyncio.sleep(world.random.uniform(0.3, 1.0) * LIFE_S)
            world.kill(power=world.random.random() < 0.5)
            await world.start()
            # A rule that the catalog has is in force, whatever became of the answer.
            world.has_rule = bool(world.subscription("changing").about.rules)
            world.versions.append(world.has_rule)
        world.calm()
        # Stores are reopened within a few seconds.
        await asyncio.sleep(30)
        # Locks of lives before have no meaning any more; those of this one have none yet.
        await world.drain()
        world.kill(power=False)

    try:
        loop.run(whole(), time_limit_s=TIME_LIMIT_S)
    finally:
        loop.close()
    world.history.versions = world.versions
    problems = check_fanout(world.history, expected)
    rows = world.rows()
    if rows:
        problems.append(f"the stores have {rows} rows after everything was completed")
    return problems
