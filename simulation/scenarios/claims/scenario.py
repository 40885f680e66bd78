"""A queue under faults in virtual time, whose messages streams claim, receivers take, and others release and purge.

The wire is left out. A stream is what ``duobus.spark`` is to the broker: a driver that claims under an id which its
checkpoint has made, tasks that look at messages by their numbers, a sink that takes each batch once, and the settlement
of a batch when it is committed. Drivers are killed alone or with the broker, and start again from their checkpoints.
Stores fail, fragments move between them, messages expire. One seed is one run; ``history`` has what may be seen.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

from duobus.broker import ABANDON, COMPLETE, DEAD_LETTER, DEFER, MAIN, Claimed, Queue, Run, SettleBatch
from duobus.broker.entities.queue import COUNT_BITS
from duobus.codec import application_properties_section
from duobus.codec.sections import application_properties
from duobus.errors import MessageNotFound, OperationTimeout, ServiceBusError
from duobus.fragment.message import DEFERRED, QueuedMessage, kind_of
from duobus.model.batches import DeliveryBatch, Refusal, SendBatch
from duobus.model.descriptions import QueueDescription
from duobus.model.metadata import MessageMetadata
from simulation.parts.bare_unit import BareUnit, Box
from simulation.scenarios.claims.history import ClaimHistory
from simulation.world.disk import AMBIGUOUS, REFUSED, SLOW, SYNC_FAILED
from simulation.world.loop import SimulationLoop

NAMESPACE: Final = "sim"
QUEUE: Final = "q"
STORES: Final = 3
MESSAGES: Final = 150
LIVES: Final = 3
#: Virtual seconds of one life at most, between which processes are killed or the power is cut.
LIFE_S: Final = 5.0
TIME_LIMIT_S: Final = 3_000.0
#: Rounds without a message after which a stream, or whoever drains the queue, is done.
EMPTY_ROUNDS: Final = 4
SIZE_MAX: Final = 1 << 20


class Stream:
    """A query: what outlives its processes.

    Attributes:
        name: In the ids of its claims.
        written: By batch, the sequence numbers that were written down, with their delivery counts.
        batch: Number of the batch that was written down last.
        committed: Number of the batch that was committed last.
        sink: By batch, the messages that were handed over.
        attempts: Ids for whose end somebody has asked before.
        released: Of these the ones that were to be released.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.written: dict[int, dict[int, int]] = {0: {}}
        self.batch = 0
        self.committed = 0
        self.sink: dict[int, list[int]] = {}
        self.attempts: set[str] = set()
        self.released: set[str] = set()

    def write(self, told: dict[int, int]) -> None:
        """Write the next batch down."""
        self.batch += 1
        self.written[self.batch] = told

    def claim_id(self, batch: int) -> str:
        """The id of a batch's claim."""
        return f"{self.name}/{batch}/0"


class Failed(Exception):
    """The broker has refused; whoever asked tries again later."""


class ClaimWorld(BareUnit):
    """The queue, the streams, and all others."""

    #: Whether a driver that was started again waits for fragments that are away and have messages of its batch.
    waits_for_away = True

    def __init__(self, seed: int, loop: SimulationLoop) -> None:
        super().__init__(seed, loop, STORES, {REFUSED: 0.02, AMBIGUOUS: 0.02, SYNC_FAILED: 0.01, SLOW: 0.02})
        self.random = random.Random(f"claims:{seed}")
        self.history = ClaimHistory()
        self.streams = [Stream(name) for name in ("one", "two")]
        self.is_partitioned = seed % 2 == 0
        #: What some seeds have.
        self.purges, self.expires, self.moves = seed % 5 == 0, seed % 3 == 0, seed % 4 != 1
        self.next = 0
        self.others = 0
        self.is_calm = False
        self._drivers: dict[str, asyncio.Task[object]] = {}

    @property
    def queue(self) -> Queue:
        """The queue, in the present process."""
        return self.unit.namespace(NAMESPACE).queues[QUEUE]

    async def create(self) -> None:
        """Make the queue; stores fail, so it may take several attempts."""
        about = QueueDescription(
            name=QUEUE,
            enable_partitioning=self.is_partitioned,
            max_delivery_count=1_000,
            lock_duration_ms=5_000,
            dead_lettering_on_message_expiration=self.seed % 2 == 1,
        )
        while QUEUE not in self.unit.namespace(NAMESPACE).queues:
            with suppress(ServiceBusError):
                await self.unit.create_queue(NAMESPACE, about)
                return
            self.kill(power=False)
            await self.start()

    # -- processes ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Everybody begins to work, until the process ends."""
        for one in (self._send(), self._send(), self._receive(), self._release_others(), self._kill_drivers()):
            self._spawn(one)
        if self.moves:
            self._spawn(self._move())
        if self.purges:
            self._spawn(self._purge())
        self.start_drivers()

    def start_drivers(self) -> None:
        """Each stream has a driver."""
        self._drivers = {stream.name: self._spawn(self._drive(stream)) for stream in self.streams}

    def _spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        task = asyncio.get_running_loop().create_task(work)
        self.work.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[object]) -> None:
        self.work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, ServiceBusError):
            self.history.wrong.append(f"{type(error).__name__}: {error}")

    async def _asked(self, request: Coroutine[Any, Any, Any]) -> Any:
        """Ask the broker; the request goes on when who asked is killed.

        Raises:
            Failed: It was refused.
        """
        try:
            return await asyncio.shield(self._spawn(request))
        except ServiceBusError as error:
            raise Failed from error

    async def _kill_drivers(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.1, 1.2))
            stream = self.random.choice(self.streams)
            self._drivers[stream.name].cancel()
            self._drivers[stream.name] = self._spawn(self._drive(stream))

    # -- streams ------------------------------------------------------------------------------------------------

    async def _drive(self, stream: Stream) -> None:
        """A driver: it settles what is committed, goes on with what is written, and claims, for ever."""
        settled = 0
        empty = 0
        while empty < EMPTY_ROUNDS or not self.is_calm:
            try:
                if stream.committed > settled:
                    await self._settle(stream)
                    settled = stream.committed
                planned: Mapping[int, int]
                if stream.batch > stream.committed:
                    planned = await self._found_again(stream)
                else:
                    planned = await self._next(stream)
                    if not planned:
                        empty += 1
                        await asyncio.sleep(self.random.uniform(0.0, 0.3))
                        continue
                empty = 0
                uids = await self._read(stream, planned)
                if uids is None:
                    continue
                await self._moment()
                stream.sink[stream.batch] = uids
                await self._moment()
                stream.committed = stream.batch
                await self._moment()
            except Failed:
                await asyncio.sleep(self.random.uniform(0.05, 0.5))

    async def _moment(self) -> None:
        """The driver may be killed here."""
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.05)))

    async def _claim(self, stream: Stream, batch: int, messages: int) -> dict[int, int]:
        claim_id = stream.claim_id(batch)
        claimed: Claimed = await self._asked(self.queue.claim(MAIN, claim_id, messages, SIZE_MAX))
        told = _told(claimed)
        self.history.claimed(claim_id, told, set(claimed.away))
        return told

    async def _found_again(self, stream: Stream) -> Mapping[int, int]:
        """What is left of a batch that was written down; what a fragment that is away has is waited for."""
        claim_id = stream.claim_id(stream.batch)
        claimed: Claimed = await self._asked(self.queue.claim(MAIN, claim_id, 0, SIZE_MAX))
        told, written = _told(claimed), stream.written[stream.batch]
        self.history.claimed(claim_id, told, set(claimed.away))
        if self.waits_for_away and {number >> COUNT_BITS for number in written} & set(claimed.away):
            raise Failed
        if claim_id not in stream.released:
            self.history.missing(claim_id, written.keys() - told.keys())
        return {number: count for number, count in written.items() if number in told}

    async def _next(self, stream: Stream) -> Mapping[int, int]:
        """Claim the next batch, and write it down; an orderly end may come first."""
        claim_id = stream.claim_id(stream.batch + 1)
        told = await self._claim(stream, stream.batch + 1, self.random.choice((1, 5, 30)))
        await self._moment()
        if not told:
            return {}
        if self.random.random() < 0.1:
            if self.random.random() < 0.5:
                # Spark has written it down, and no task has read it: the process that goes on finds less, or nothing.
                stream.write(told)
            stream.released.add(claim_id)
            await self._give_back(claim_id, stream.attempts, is_counted=False)
            return {}
        stream.write(told)
        await self._moment()
        return told

    async def _read(self, stream: Stream, planned: Mapping[int, int]) -> list[int] | None:
        """Tasks look at the messages of a batch; None: not now."""
        found: dict[int, QueuedMessage] = {}
        for number in sorted(planned):
            if number not in found:
                page = await self._asked(self.queue.peek(MAIN, number, 20))
                found |= {handle.number << COUNT_BITS | message.count: message for handle, message in page}
        missing = [number for number in planned if number not in found or kind_of(found[number].state) != DEFERRED]
        away = {handle.number for handle in self.queue.fragments if not handle.online}
        if missing and (away or not await self._is_told(stream, missing)):
            return None
        return [_uid_of(found[number]) for number in planned]

    async def _is_told(self, stream: Stream, missing: list[int]) -> bool:
        """Whether all of the fragments were there while the messages were looked for, so that they are gone."""
        claim_id = stream.claim_id(stream.batch)
        claimed: Claimed = await self._asked(self.queue.claim(MAIN, claim_id, 0, SIZE_MAX))
        page = [await self._asked(self.queue.peek(MAIN, number, 1)) for number in missing]
        if not claimed.away and all(handle.online for handle in self.queue.fragments):
            there = {handle.number << COUNT_BITS | message.count for some in page for handle, message in some}
            self.history.missing(claim_id, set(missing) - there)
        return False

    async def _settle(self, stream: Stream) -> None:
        claim_id, written = stream.claim_id(stream.committed), stream.written[stream.committed]
        fragments = {number >> COUNT_BITS for number in written}
        is_first = claim_id not in stream.attempts
        stream.attempts.add(claim_id)
        self.history.ending(claim_id)
        freed = await self._asked(self.queue.settle_claim(MAIN, claim_id, fragments))
        # What was released before its batch was read is no longer the claim's.
        told = {} if claim_id in stream.released else written
        self.history.settled(claim_id, told, freed.done, is_first=is_first)

    async def _give_back(self, claim_id: str, attempts: set[str], *, is_counted: bool) -> None:
        is_first = claim_id not in attempts
        attempts.add(claim_id)
        self.history.ending(claim_id)
        freed = await self._asked(self.queue.release_claim(MAIN, claim_id, is_counted=is_counted))
        self.history.released(claim_id, freed.done, is_first=is_first)

    # -- all others ---------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        while self.next < MESSAGES:
            number = self.random.choice((1, 3, 10))
            uids = list(range(self.next, self.next + number))
            self.next += number
            box = Box()
            batch = SendBatch(0, [_message(uid) for uid in uids], True, box)
            batch.atomic = True
            if self.expires and self.random.random() < 0.3:
                batch.extra = {index: MessageMetadata(ttl_ms=self.random.choice((50, 500))) for index in range(number)}
                self.history.expiring.update(uids)
            self.history.doubtful.update(uids)
            self.queue.send(batch)
            await box.event.wait()
            for item in box.ready:
                assert isinstance(item, (Run, Refusal))
                if item.error is None:
                    self.history.accepted.update(uids)
                elif not isinstance(item.error, OperationTimeout):
                    self.history.doubtful.difference_update(uids)
            await asyncio.sleep(self.random.uniform(0.0, 0.15))

    async def _receive(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.0, 0.3))
            with suppress(ServiceBusError):
                await self.take(self.random.choice((COMPLETE, ABANDON, ABANDON, DEFER)), self.random.choice((1, 5)))

    async def take(self, outcome: int, limit: int, sub_queue: int = MAIN) -> int:
        """Receive what there is at the moment, and settle it."""
        box = Box()
        receiver = self.queue.open_receiver(sub_queue, box, removing=False)
        receiver.request(limit)
        receiver.close()
        batches = [item for item in box.ready if isinstance(item, DeliveryBatch) and item.messages]
        for item in batches:
            for message in item.messages:
                self.history.received(item.fragment.number << COUNT_BITS | message.count)
            await self._settled(item, outcome)
        return sum(len(item.messages) for item in batches)

    async def _settled(self, item: DeliveryBatch, outcome: int) -> None:
        box = Box()
        ranges = [(item.first_lock, len(item.messages))]
        messages = {item.fragment.number << COUNT_BITS | message.count: _uid_of(message) for message in item.messages}
        command = SettleBatch(
            item.fragment, self.queue.source_no, box, prefix=item.prefix, outcome=outcome, ranges=ranges
        )
        if outcome == COMPLETE:
            self.history.maybe.update(messages)
        self.queue.settle(command)
        await box.event.wait()
        if command.error is None and not command.lost and outcome == COMPLETE:
            for number, uid in messages.items():
                self.history.maybe.discard(number)
                self.history.removed(number, uid)

    async def _release_others(self) -> None:
        """Somebody claims under ids of his own, and gives back or settles."""
        while True:
            await asyncio.sleep(self.random.uniform(0.2, 1.0))
            self.others += 1
            claim_id = f"other/{self.others}"
            with suppress(Failed):
                claimed: Claimed = await self._asked(self.queue.claim(MAIN, claim_id, 5, SIZE_MAX))
                self.history.claimed(claim_id, _told(claimed), set(claimed.away))
                await self._moment()
                await self._give_back(claim_id, set(), is_counted=self.random.random() < 0.5)

    async def _move(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.1, 0.8))
            handle = self.random.choice(self.queue.fragments)
            others = [number for number in self.unit.brokers if number != handle.store.store_id]
            with suppress(ServiceBusError):
                self.unit.moves.start(NAMESPACE, QUEUE, handle.number, self.random.choice(others))

    async def _purge(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(1.0, 4.0))
            self.history.cleared = True
            with suppress(Failed):
                await self._asked(self.queue.batch_delete(MAIN, 10, self.clock.now_ms()))

    # -- the end ------------------------------------------------------------------------------------------------

    async def finish(self) -> list[str]:
        """In calm times: streams come to their end, the rest is received, and nothing is left."""
        self.is_calm = True
        while self.queue.claims(MAIN, "other/")[0]:
            for one in self.queue.claims(MAIN, "other/")[0]:
                await self._give_back(one.claim_id, {one.claim_id}, is_counted=False)
        self.start_drivers()
        await asyncio.gather(*self._drivers.values())
        for stream in self.streams:
            self.history.handed_over(stream.sink.values())
        empty = 0
        while empty < EMPTY_ROUNDS:
            number = await self.take(COMPLETE, 50) + await self.take(COMPLETE, 50, DEAD_LETTER)
            number += await self._take_deferred()
            empty = 0 if number else empty + 1
            await asyncio.sleep(2.0)
        claims = len(self.queue.claims(MAIN, "")[0])
        numbers = self.queue.numbers()[0]
        self.kill(power=False)
        return self.history.finish(claims, self.rows(), numbers)

    async def _take_deferred(self) -> int:
        """Complete what receivers have deferred."""
        done = 0
        for handle, message in await self.queue.peek(MAIN, 1, 1_000):
            if kind_of(message.state) == DEFERRED and (message.metadata is None or message.metadata.claim is None):
                with suppress(MessageNotFound):
                    for item in self.queue.lock_deferred(MAIN, [handle.number << COUNT_BITS | message.count]):
                        await self._settled(item, COMPLETE)
                done += 1
        return done


def _told(claimed: Claimed) -> dict[int, int]:
    return {
        part.fragment << COUNT_BITS | count: deliveries
        for part in claimed.parts
        for count, deliveries in zip(part.counts, part.deliveries, strict=True)
    }


def _message(uid: int) -> bytes:
    body = b"%d" % uid
    return application_properties_section({"n": uid}) + b"\x00\x53\x75\xa0" + bytes((len(body),)) + body


def _uid_of(message: QueuedMessage) -> int:
    return int(application_properties(message.payload)["n"])


def run(seed: int) -> list[str]:
    """Run one seed; returns what is wrong with it, in words."""
    loop = SimulationLoop()
    world = ClaimWorld(seed, loop)

    async def whole() -> list[str]:
        await world.start()
        await world.create()
        for _ in range(LIVES):
            world.begin()
            await asyncio.sleep(world.random.uniform(0.3, 1.0) * LIFE_S)
            world.kill(power=world.random.random() < 0.5)
            await world.start()
        world.calm()
        # Stores are reopened within a few seconds, and locks of this life end.
        await asyncio.sleep(30)
        return await world.finish()

    try:
        found: list[str] = loop.run(whole(), time_limit_s=TIME_LIMIT_S)
    finally:
        loop.close()
    return found
