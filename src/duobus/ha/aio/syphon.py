"""Syphon: carries messages from backlog queues to the entities for which they were meant (PN14, PN15; I10, I49)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from azure.servicebus.exceptions import ServiceBusConnectionError

from duobus.clock import Clock
from duobus.concurrency import aio as tasks
from duobus.ha.events import (
    Reporter,
    SyphonDeadLettered,
    Syphoned,
    SyphonFailed,
    SyphonPolled,
    SyphonSkipped,
    SyphonStarted,
    SyphonStopped,
)
from duobus.ha.options import POLL_DEFAULT, SYPHON_HELD_MAX, SYPHON_SENDERS_MAX
from duobus.ha.outage import Classifier, Verdict, outage
from duobus.ha.outage_scope import store_away
from duobus.ha.sdk_errors import Meaning, explained, meaning
from duobus.ha.tracing import syphoning
from duobus.ha.transfer import Undeliverable, from_backlog

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
    from azure.servicebus.amqp import AmqpAnnotatedMessage

BATCH: Final = 100
#: A destination that did not answer is left alone for this time: half of the lock of a backlog queue.
RETRY_DEFAULT: Final = timedelta(seconds=30)
#: After a receive that failed, doubled with each failure up to the second one.
RETRY_FIRST_S, RETRY_LAST_S = 1.0, 60.0
#: A link without traffic for so long may be ended by the service as idle: Azure does after 10 minutes, and says so with
#: the same error as for a broken connection. One that ended sooner has failed.
IDLE_MS: Final = 5 * 60_000
#: Time that what is on its way has when a syphon ends.
END_S: Final = 30.0
#: A destination that did not answer in this time is away: a third of the lock of a backlog queue.
SEND_LIMIT_S: Final = 20.0
#: The SDK takes no wait of nothing.
SHORTEST_WAIT_S: Final = 0.05

CANNOT_BE_DELIVERED: Final = "The message cannot be delivered to the destination."
EXPIRED: Final = "TTLExpiredException"
_DESCRIPTION_MAX: Final = 4_000
_PARTITION_KEY: Final = "x-opt-partition-key"
#: What does not pass until somebody mends it, or what nobody knows: the log tells, as not all listen to events.
_WORTH_A_LINE: Final = frozenset({Meaning.OWNER, Meaning.MISSING, Meaning.UNKNOWN})
_log = logging.getLogger("duobus.ha")


class _SyphonItem(NamedTuple):
    received: ServiceBusReceivedMessage
    message: AmqpAnnotatedMessage


class Syphon:
    """Carries messages of backlog queues to their destinations, at least once, until it is cancelled.

    Any number of syphons may run side by side, in any processes. A syphon completes a message in its backlog queue
    after the destination accepted the message, so a syphon that is killed in between delivers the message twice;
    duplicate detection at the destination suppresses that. A destination that is away, or accepts nothing until
    somebody mends something (a changed key, a disabled entity, a closed client), does not delay others: its messages
    stay. A message that can never be delivered, because of the message itself or because its destination is gone, goes
    to the dead-letter queue of the backlog queue with a reason.

    Args:
        primary: Client of the namespace to which the syphon delivers.
        secondary: Client of the namespace that has the backlog queues.
        queues: Paths of the backlog queues.
        classifier: Whether a destination that is gone will be back: its messages stay unless the answer is ``REFUSED``.
        ttl_mode: ``restart`` or ``remaining``.
        poll: How long a receive waits for messages.
        retry: How long a destination that did not answer is left alone.
        reporter: Gets all events.
        clock: The time.
    """

    def __init__(
        self,
        primary: ServiceBusClient,
        secondary: ServiceBusClient,
        queues: Sequence[str],
        *,
        classifier: Classifier = outage,
        ttl_mode: str = "restart",
        poll: timedelta = POLL_DEFAULT,
        retry: timedelta = RETRY_DEFAULT,
        reporter: Reporter | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._queues = tuple(queues)
        self._classifier = classifier
        self._is_remaining = ttl_mode == "remaining"
        self._poll_s = poll.total_seconds()
        self._retry_ms = round(retry.total_seconds() * 1000)
        self._reporter = reporter if reporter is not None else Reporter(None)
        self._clock = clock if clock is not None else Clock()
        self._over = tasks.Signal()

    def stop(self) -> None:
        """Let ``run`` end; messages on their way are delivered or stay in their backlog queue."""
        self._over.set()

    async def run(self) -> None:
        """Carry until cancelled or stopped."""
        there, behind = str(self._primary.fully_qualified_namespace), str(self._secondary.fully_qualified_namespace)
        self._reporter.tell(SyphonStarted("", there, behind, len(self._queues)))
        pumps = [tasks.spawn(_Pump(self, queue).run, name="duobus syphon") for queue in self._queues]
        try:
            await self._over.wait()
        finally:
            for pump in pumps:
                pump.cancel()
            await tasks.all_ended(pumps, END_S)
            self._reporter.tell(SyphonStopped("", there))


class _Pump:
    """One backlog queue. It has senders of its own, as the SDK's are for one task at a time."""

    def __init__(self, syphon: Syphon, queue: str) -> None:
        self._syphon = syphon
        self._queue = queue
        self._senders: dict[str, ServiceBusSender] = {}
        #: Path to the time at which it is tried again.
        self._skipped: dict[str, int] = {}
        #: Path to messages of it that are locked.
        self._held: dict[str, list[ServiceBusReceivedMessage]] = {}
        #: Path to what its last error meant, so that the log says it once.
        self._said: dict[str, Meaning] = {}
        #: When the poll that is under way is over; None between two.
        self._poll_ends_ms: int | None = None
        #: When the link was attached, or last brought something.
        self._moved_ms = 0
        #: For the receiver, which is for one at a time, and for what is held.
        self._settlement_lock = tasks.lock()
        self._holding = tasks.lock()

    async def run(self) -> None:
        syphon, retry_s = self._syphon, RETRY_FIRST_S
        try:
            while True:
                try:
                    self._held.clear()  # Their locks went with their link.
                    async with syphon._secondary.get_queue_receiver(self._queue) as receiver:
                        self._moved_ms = syphon._clock.monotonic_ms()
                        is_needed = True
                        while is_needed:
                            tasks.check()
                            is_needed = await self._poll(receiver)
                            retry_s = RETRY_FIRST_S
                except Exception as error:  # noqa: BLE001 - a pump never ends by itself
                    if self._is_idle_end(error):
                        continue  # Attached again, with what is left of the poll.
                    self._poll_ends_ms = None
                    syphon._reporter.tell(SyphonFailed(self._queue, str(error) or type(error).__name__))
                    await tasks.sleep(retry_s)
                    retry_s = min(2 * retry_s, RETRY_LAST_S)
        finally:
            await self._close_senders(list(self._senders))

    async def _poll(self, receiver: ServiceBusReceiver) -> bool:
        """Receive once, and carry what came; tell whether the link is to be used on."""
        syphon, clock = self._syphon, self._syphon._clock
        if self._poll_ends_ms is None:
            self._poll_ends_ms = clock.monotonic_ms() + round(self._wait_s() * 1000)
        # What was given back comes in any order: the SDK gives back once more what arrives between two receives.
        messages = sorted(await self._receive(receiver, self._poll_ends_ms), key=_sequence_number)
        self._poll_ends_ms = None
        syphon._reporter.tell(SyphonPolled(self._queue, len(messages)))
        are_given_back = await self._carry(receiver, messages)
        if messages or are_given_back:
            # What was given back comes over this link at once. If the link were closed, another one would get those
            # messages when their locks have ended: after a minute, by default.
            self._moved_ms = clock.monotonic_ms()
            return True
        # The SDK lets the credit of a receive that brought nothing stand, so that the service would not count the next
        # one; with a new link each poll is the one operation that it is said to be (PN14, I59), and no link gets old.
        # Not while messages are held: their locks are settled over the link that brought them.
        return bool(self._skipped or self._held)

    async def _receive(self, receiver: ServiceBusReceiver, ends_ms: int) -> list[ServiceBusReceivedMessage]:
        """Wait for messages until the poll is over, in pieces where nothing could end it.

        The credit stands from one piece to the next: over one link all of them are one receive.
        """
        while True:
            left_s = max(SHORTEST_WAIT_S, (ends_ms - self._syphon._clock.monotonic_ms()) / 1000)
            messages = await receiver.receive_messages(BATCH, max_wait_time=min(left_s, tasks.WAIT_S))
            if messages or left_s <= tasks.WAIT_S:
                return messages
            tasks.check()

    def _is_idle_end(self, error: Exception) -> bool:
        """Tell whether the service ended a link on which nothing had moved, as it does with idle ones."""
        now_ms = self._syphon._clock.monotonic_ms()
        return (
            self._poll_ends_ms is not None
            and isinstance(error, ServiceBusConnectionError)
            and now_ms - self._moved_ms >= IDLE_MS
        )

    async def _carry(self, receiver: ServiceBusReceiver, messages: Sequence[ServiceBusReceivedMessage]) -> bool:
        """Bring a batch to its destinations, all at the same time; tell whether messages of before were given back."""
        clock = self._syphon._clock
        now_ms = clock.now_ms() if self._syphon._is_remaining else None
        chunks: dict[str, list[_SyphonItem]] = {}
        for received in messages:
            try:
                restored = from_backlog(received, now_ms)
            except Undeliverable as error:
                await self._dead_letter(receiver, received, "", error.reason, str(error))
                continue
            if restored.is_expired:
                text = "The time to live was over before the message left the backlog."
                await self._dead_letter(receiver, received, restored.path, EXPIRED, text)
            else:
                chunks.setdefault(restored.path, []).append(_SyphonItem(received, restored.message))
        for path in [path for path in chunks if path in self._skipped]:
            # New messages of this destination wait behind those that are held, so that none overtakes one of its key.
            self._hold(path, chunks.pop(path))
        are_given_back = await self._give_back(receiver)
        deliveries = [partial(self._deliver, receiver, path, those) for path, those in chunks.items()]
        for answer in await tasks.together(*deliveries):
            if isinstance(answer, Exception):
                raise answer
        await self._close_senders(list(self._senders)[SYPHON_SENDERS_MAX:])
        return are_given_back

    async def _deliver(self, receiver: ServiceBusReceiver, path: str, chunks: list[_SyphonItem]) -> None:
        """Bring messages of one destination there, one batch for each session or partition key."""
        batches = _batches(chunks)
        held: list[_SyphonItem] = []
        last: Exception | None = None
        while batches:
            left, error = await self._deliver_batch(receiver, path, batches.pop(0))
            if error is None:
                continue
            held, last = held + left, error
            away = store_away(error)
            if away is None or not away.slots:
                held += [chunk for batch in batches for chunk in batch]
                break
            # Only keys of a fragment are away. They hold up no others of their entity.
        if last is not None:
            await self._skip(path, held, last)

    async def _deliver_batch(
        self, receiver: ServiceBusReceiver, path: str, chunks: list[_SyphonItem]
    ) -> tuple[list[_SyphonItem], Exception | None]:
        """Bring messages there as one batch, one by one if it does not take that.

        Returns:
            Those that are left because their destination is away, and what it said; or none, and None.
        """
        sender = self._senders.get(path)
        if sender is None:
            sender = self._senders[path] = self._syphon._primary.get_queue_sender(path)
        if len(chunks) > 1:
            try:
                with syphoning(path, self._queue, [chunk.message for chunk in chunks]):
                    await _send(sender, [chunk.message for chunk in chunks])
            except Exception as error:  # noqa: BLE001 - the table says what it means
                if not self._is_hopeless(error):
                    return chunks, error
            else:
                self._said.pop(path, None)
                await self._complete(receiver, path, chunks)
                return [], None
        for index, chunk in enumerate(chunks):
            try:
                with syphoning(path, self._queue, [chunk.message]):
                    await _send(sender, chunk.message)
            except Exception as error:  # noqa: BLE001 - the table says what it means
                if not self._is_hopeless(error):
                    return chunks[index:], error
                text = f"{path}: {type(error).__name__}: {error}"
                await self._dead_letter(receiver, chunk.received, path, CANNOT_BE_DELIVERED, text)
            else:
                self._said.pop(path, None)
                await self._complete(receiver, path, [chunk])
        return [], None

    def _is_hopeless(self, error: Exception) -> bool:
        """Tell whether the destination will never take the message; anything else stays in the backlog."""
        means = meaning(error)
        if means is Meaning.MISSING:
            return self._syphon._classifier(error) is Verdict.REFUSED
        return means is Meaning.MESSAGE

    async def _skip(self, path: str, chunks: list[_SyphonItem], error: Exception) -> None:
        """Leave a destination alone for a while, so that it holds up nobody (I49)."""
        self._skipped[path] = self._syphon._clock.monotonic_ms() + self._syphon._retry_ms
        self._hold(path, chunks)
        text, means = explained(error), meaning(error)
        self._syphon._reporter.tell(SyphonSkipped(path, self._queue, len(chunks), text, means.value))
        if means in _WORTH_A_LINE and self._said.get(path) is not means:
            if len(self._said) >= SYPHON_SENDERS_MAX:
                self._said.clear()
            self._said[path] = means
            _log.warning("messages for %r wait in the backlog queue %r: %s", path, self._queue, text)
        await self._close_senders([path])

    def _hold(self, path: str, chunks: list[_SyphonItem]) -> None:
        with self._holding:
            room = SYPHON_HELD_MAX - sum(len(held) for held in self._held.values())
            self._held.setdefault(path, []).extend(chunk.received for chunk in chunks[: max(0, room)])

    def _wait_s(self) -> float:
        """How long to wait for messages: a poll, or until a destination is to be tried again."""
        if not self._skipped:
            return self._syphon._poll_s
        left_ms = min(self._skipped.values()) - self._syphon._clock.monotonic_ms()
        return min(self._syphon._poll_s, max(SHORTEST_WAIT_S, left_ms / 1000))

    async def _give_back(self, receiver: ServiceBusReceiver) -> bool:
        """Put messages back into the backlog whose destination is to be tried again; tell whether there were any.

        The next receive brings them.
        """
        now_ms = self._syphon._clock.monotonic_ms()
        are_any = False
        for path in [path for path, until in self._skipped.items() if until <= now_ms]:
            del self._skipped[path]
            held = self._held.pop(path, [])
            are_any = are_any or bool(held)
            # One whose lock is over is back already.
            await tasks.in_turn(*(partial(receiver.abandon_message, received) for received in held))
        return are_any

    async def _complete(self, receiver: ServiceBusReceiver, path: str, chunks: list[_SyphonItem]) -> None:
        # All at once: the SDK waits for the answer of each.
        with self._settlement_lock:
            answers = await tasks.in_turn(*(partial(receiver.complete_message, chunk.received) for chunk in chunks))
        self._syphon._reporter.tell(Syphoned(path, self._queue, len(chunks), self._age_ms(chunks)))
        for answer in answers:
            # Its lock is gone: it is delivered, and will be delivered again.
            if isinstance(answer, Exception):
                self._syphon._reporter.tell(SyphonFailed(self._queue, str(answer)))

    def _age_ms(self, chunks: list[_SyphonItem]) -> int:
        """How long the oldest of them was in the backlog; 0 when the two clocks disagree by more."""
        times = [chunk.received.enqueued_time_utc for chunk in chunks]
        oldest_ms = min((time.timestamp() * 1000 for time in times if time is not None), default=None)
        return 0 if oldest_ms is None else max(0, self._syphon._clock.now_ms() - round(oldest_ms))

    async def _dead_letter(
        self, receiver: ServiceBusReceiver, received: Any, path: str, reason: str, text: str
    ) -> None:
        text = text[:_DESCRIPTION_MAX]
        with self._settlement_lock:
            await receiver.dead_letter_message(received, reason=reason, error_description=text)
        self._syphon._reporter.tell(SyphonDeadLettered(path, self._queue, reason, text))

    async def _close_senders(self, paths: list[str]) -> None:
        for path in paths:
            sender = self._senders.pop(path, None)
            if sender is not None:
                try:
                    await sender.close()
                except Exception as error:  # noqa: BLE001 - it is given up, whatever it says
                    self._syphon._reporter.tell(SyphonFailed(self._queue, f"closing the link to {path}: {error}"))


async def _send(sender: ServiceBusSender, what: Any) -> None:
    # The SDK's own time-out answers better, where it holds.
    send = partial(sender.send_messages, what, timeout=SEND_LIMIT_S)
    await tasks.within(SEND_LIMIT_S + 1, send)


def _sequence_number(received: ServiceBusReceivedMessage) -> int:
    return received.sequence_number or 0


def _batches(chunks: list[_SyphonItem]) -> list[list[_SyphonItem]]:
    """Batches by session and partition key, in their order: a batch with several of them is refused as one."""
    found: dict[tuple[object, object], list[_SyphonItem]] = {}
    for chunk in chunks:
        properties, annotations = chunk.message.properties, chunk.message.annotations
        session_id = None if properties is None else properties.group_id
        key = None if annotations is None else annotations.get(_PARTITION_KEY)
        found.setdefault((session_id, key), []).append(chunk)
    return list(found.values())
