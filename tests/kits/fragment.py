"""A fragment driven by hand over a memory store: what its message broker does, one commit at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from duobus.broker import recovery
from duobus.broker.protocols import FragmentPlan
from duobus.errors import ServiceBusError
from duobus.fragment import paged_tail
from duobus.fragment import peek as peek
from duobus.fragment.commands import Command
from duobus.fragment.fragment import Fragment
from duobus.fragment.message import NEVER, QueuedMessage, state_in_memory
from duobus.fragment.peek import PeekProgress
from duobus.fragment.send import Run
from duobus.fragment.settlement import SettleBatch, SettleDetail
from duobus.fragment.source import Source, SourceSettings
from duobus.model.batches import Mailbox, SendBatch
from duobus.model.metadata import MessageMetadata, SessionMetadata
from duobus.storage.interface import CommitBatch
from duobus.storage.memory import MemoryStore
from simulation.world.clock import SeededEntropy

START_MS = 1_700_000_000_000
NUMBER = 3


class Box(Mailbox):
    """A mailbox that counts how often it was woken."""

    __slots__ = ("wakes",)

    def __init__(self) -> None:
        super().__init__()
        self.wakes = 0

    def wake(self) -> None:
        """See Mailbox."""
        self.wakes += 1

    def taken(self) -> list[Any]:
        """What is there now; it is taken out."""
        found, self.ready = self.ready, []
        return found


class _Reader:
    """What recovery needs of a message broker."""

    def __init__(self, store: MemoryStore, plan: FragmentPlan, now_ms: int) -> None:
        self.store = store
        self.now = now_ms
        self.plans = {(1, NUMBER): plan}

    async def call(self, call: Callable[[], Any]) -> Any:
        """See MessageBroker.call."""
        return call()

    def now_ms(self) -> int:
        """See MessageBroker.now_ms."""
        return self.now


class Driver:
    """One fragment with one source, its store, and the time."""

    def __init__(self, **settings: Any) -> None:
        self.settings = SourceSettings(**settings)
        self.store = MemoryStore()
        self.now_ms = START_MS
        self.commit_no = 0
        self.lives = 0
        self.store.open()
        self.store.begin_generation([])
        row, sources = self.store.add_fragment(1, NUMBER, [0])
        self.fragment = Fragment("handle", row.fragment_key, NUMBER, row.epoch, bytes(range(10)))
        self.source: Source = self.fragment.add_source(sources[0], self.settings)

    def prepare(self, *commands: Command) -> tuple[CommitBatch, list[Command]]:
        """The first half of a commit: tick, check, apply; refused commands carry their error."""
        self.commit_no += 1
        batch = CommitBatch(self.commit_no, self.now_ms)
        work = self.fragment.tick(self.now_ms) if self.now_ms >= self.fragment.deadline else []
        done = []
        for command in [*work, *commands]:
            command.error = self.fragment.check(command, self.now_ms)
            if command.error is None:
                self.fragment.apply(command, self.now_ms, batch)
                done.append(command)
        batch.epochs.append((self.fragment.fragment_key, self.fragment.epoch))
        self.fragment.touch(self.source, batch, 1 << 30)
        self.store.commit(batch)
        return batch, done

    def release(self, done: list[Command]) -> None:
        """The second half."""
        for command in done:
            self.fragment.release(command, self.now_ms)

    def commit(self, *commands: Command) -> CommitBatch:
        """A whole commit."""
        batch, done = self.prepare(*commands)
        self.release(done)
        return batch

    def pass_time(self, ms: int) -> CommitBatch:
        """Let time go on and commit what it brings."""
        self.now_ms += ms
        return self.commit()

    # -- shorthands ---------------------------------------------------------------------------------------------

    def run(self, *payloads: bytes, **metadata: Any) -> Run:
        """An unsent run of messages that all have the same special members."""
        batch = SendBatch(0, list(payloads), True, Box())
        if metadata.keys() == {"session_id"} and metadata["session_id"] is not None:
            # As a server of the gateway says it.
            batch.sessions = [SessionMetadata(**metadata)] * len(payloads)
        elif metadata:
            batch.extra = {index: MessageMetadata(**metadata) for index in range(len(payloads))}
        return Run("handle", 0, batch, None, None)

    def send(self, *payloads: bytes, **metadata: Any) -> list[int]:
        """Send messages and return their counts."""
        run = self.run(*payloads, **metadata)
        self.commit(run)
        return list(range(run.first_count, run.first_count + len(payloads)))

    def lock(self, limit: int = 1, sub_queue: int = 0) -> list[tuple[int, QueuedMessage]]:
        """Lock messages: (lock counter, message)."""
        first, messages, _ = self.fragment.lock(0, sub_queue, limit, self.now_ms)
        return [(first + index, message) for index, message in enumerate(messages)]

    def settlement(
        self,
        outcome: int,
        *locks: int,
        properties: dict[str, Any] | None = None,
        reason: str | None = None,
        description: str | None = None,
        strict: bool = False,
        prefix: bytes | None = None,
    ) -> SettleBatch:
        """An unsent settlement."""
        ranges = [(lock, 1) for lock in locks]
        command = SettleBatch("handle", 0, None, prefix=prefix or self.fragment.prefix, outcome=outcome, ranges=ranges)
        command.detail = SettleDetail(properties, reason, description)
        command.strict = strict
        return command

    def settle(self, outcome: int, *locks: int, **detail: Any) -> SettleBatch:
        """Settle in a commit of its own."""
        command = self.settlement(outcome, *locks, **detail)
        self.commit(command)
        return command

    def error_of(self, command: Command) -> ServiceBusError | None:
        """What a command is refused with, in a commit of its own."""
        self.commit(command)
        return command.error

    def recovered(self) -> Driver:
        """Another life of the fragment, from what the store holds."""
        self.store.close()
        other = Driver.__new__(Driver)
        other.settings, other.store, other.now_ms = self.settings, self.store, self.now_ms
        other.commit_no, other.lives = self.commit_no, self.lives + 1
        contents = self.store.open()
        self.store.begin_generation([])
        reader: Any = _Reader(self.store, FragmentPlan("handle", {0: self.settings}), self.now_ms)  # type: ignore[arg-type]
        entropy = SeededEntropy(other.lives)
        (other.fragment,) = asyncio.run(recovery.recover_fragments(reader, contents, entropy, {}))
        other.source = other.fragment.sources[0]
        # The paged tail comes in small pages.
        while other.source.tail_count:
            rows = self.store.load(other.source.source_key, other.source.tail_first, 3)
            paged_tail.page_in(other.fragment, 0, rows, is_last=len(rows) < 3)
        return other

    def picture(self) -> dict[int, tuple[int, int, bytes, MessageMetadata | None]]:
        """Every message: count to (state, deliveries, payload, special)."""
        return {
            count: (message.state, message.deliveries, message.payload, message.metadata)
            for count, message in sorted(self.source.by_count.items())
        }

    def stored(self) -> dict[int, tuple[int, int, bytes, MessageMetadata | None]]:
        """The same from the store."""
        rows = self.store.load(self.source.source_key, 1, 10_000)
        return {
            row.count: (
                state_in_memory(row.state),
                row.deliveries,
                row.payload,
                MessageMetadata.decode(row.metadata) if row.metadata else None,
            )
            for row in rows
        }

    def peek(self, sub_queue: int = 0, first: int = 0, limit: int = 100, size: int = NEVER) -> list[bytes]:
        """Payloads of what somebody who peeks finds."""
        sought = PeekProgress(sub_queue, first, limit, size)
        while not peek.peek(self.fragment, 0, sought, NEVER, self.now_ms) and not sought.is_full:
            pass
        return [message.payload for message in sought.found]

    def waiting(self, sub_queue: int = 0) -> int:
        """How many messages a receiver would find."""
        return self.fragment.available(0, sub_queue)
