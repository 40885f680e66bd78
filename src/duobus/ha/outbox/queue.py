"""Outbox: messages that the application has handed over and no namespace has accepted yet, on disk (IN7; I53).

A message is in the outbox when ``store`` is done, and leaves it when a namespace has accepted the message or somebody
discards it. The outbox itself does not send: an ``OutboxSender`` of asyncio or of threads sends the messages that
``take`` returns.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from duobus.clock import Clock
from duobus.ha.errors import OutboxFailed, OutboxFull
from duobus.ha.outbox.file import OutboxFile, SetAside, Waiting
from duobus.ha.outbox.plan import IN_FLIGHT_DEFAULT, RETRY_FIRST_MS, RETRY_LAST_MS, OutboxBatch, OutboxPlan

if TYPE_CHECKING:
    from duobus.ha.outbox.message import Packed

MESSAGES_DEFAULT: Final = 100_000
#: What is known of each in memory takes some 150 bytes.
MESSAGES_MAX: Final = 10_000_000
BYTES_DEFAULT: Final = 1_073_741_824
#: 1 TiB.
BYTES_MAX: Final = 1_099_511_627_776
#: Characters of the reason of a message that is set aside.
REASON_LENGTH_MAX: Final = 1_000

_DAMAGED: Final = "The message is damaged: its bytes on disk are not those that were written."
_log = logging.getLogger("duobus.ha")


class Depth(NamedTuple):
    """The amount of messages in an outbox.

    Attributes:
        messages: Number of messages that wait to be sent.
        size: Bytes of these messages.
        set_aside: Number of messages that the namespace refuses.
    """

    messages: int
    size: int
    set_aside: int


class Outbox:
    """A file of messages to be sent to one entity; one process at a time has it open.

    Args:
        path: The file; made if missing. Give each entity a file of its own.
        messages_max: Most messages, including those set aside; 1 to 10,000,000.
        bytes_max: Most bytes of messages, up to 1 TiB. The file may be some percent larger, and never gets smaller.
        in_flight: Sends on their way at the same time, each of another key, 1 to 100.
        retry_first_ms: Pause after a failed send; doubled with each further failed send of the same key.
        retry_last_ms: Longest pause.
        clock: Time.

    Raises:
        ValueError: A number is out of range.
        OutboxFailed: The file cannot be opened.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        messages_max: int = MESSAGES_DEFAULT,
        bytes_max: int = BYTES_DEFAULT,
        in_flight: int = IN_FLIGHT_DEFAULT,
        retry_first_ms: int = RETRY_FIRST_MS,
        retry_last_ms: int = RETRY_LAST_MS,
        clock: Clock | None = None,
    ) -> None:
        for name, value, most in (("messages_max", messages_max, MESSAGES_MAX), ("bytes_max", bytes_max, BYTES_MAX)):
            if not 1 <= value <= most:
                raise ValueError(f"{name} has to be 1 to {most:,}, not {value:,}")
        self.in_flight = in_flight
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._clock = clock if clock is not None else Clock()
        self._plan = OutboxPlan(in_flight, retry_first_ms, retry_last_ms)
        #: Of the plan and the counts: the thread of the file adds, whoever sends takes.
        self._lock = threading.Lock()
        self._listener: Callable[[], None] | None = None
        self._file = OutboxFile(Path(path))
        try:
            for waiting in self._file.waiting().result():
                self._plan.add(*waiting)
            aside = self._file.are_set_aside().result()
        except BaseException:
            self._file.close()
            raise
        self._set_aside = {item.number: item.size for item in aside}
        #: Batches that were sent and are still in the file, because the disk was full.
        self._sent: list[tuple[list[int], int]] = []
        #: What the file holds or is about to hold, and so counts towards the bounds.
        self._messages = self._plan.messages + len(aside)
        self._bytes = self._plan.size + sum(self._set_aside.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write the operations that wait, and close the file. Messages stay in the file."""
        self._file.close()

    @property
    def depth(self) -> Depth:
        """The amount of messages in the outbox now."""
        with self._lock:
            return Depth(self._plan.messages, self._plan.size, len(self._set_aside))

    def store(self, messages: Sequence[Packed]) -> Future[list[Waiting]]:
        """Store messages, all or none; they are on disk (fsync) when the future is done.

        Raises:
            OutboxFull: The messages do not fit into the outbox.
            OutboxFailed: The file cannot be used; the future may have this error, too.
        """
        size = sum(packed.size for packed in messages)
        with self._lock:
            if self._messages + len(messages) > self._messages_max or self._bytes + size > self._bytes_max:
                raise OutboxFull(
                    f"The outbox holds {self._messages:,} messages of {self._bytes:,} bytes, {len(self._set_aside):,} "
                    f"of them set aside, and takes up to {self._messages_max:,} and {self._bytes_max:,}. Wait until "
                    "some were sent, see to those set aside, or raise the bounds."
                )
            self._messages += len(messages)
            self._bytes += size

        def stored(found: list[Waiting] | None, error: Exception | None) -> None:
            with self._lock:
                for waiting in found or ():
                    self._plan.add(*waiting)
            if error is not None:
                self._forget(len(messages), size)
            self._call_listener()

        try:
            return self._file.append(messages, self._clock.now_ms(), stored)
        except OutboxFailed:
            self._forget(len(messages), size)
            raise

    def set_aside(self) -> list[SetAside]:
        """The messages that the namespace refuses, with the reason of each."""
        return self._file.are_set_aside().result()

    def try_again(self, numbers: Iterable[int] | None = None) -> int:
        """Send messages that are set aside once more, behind all that wait; return the number of messages.

        Args:
            numbers: Of ``set_aside``; all if left out.
        """
        wanted = self._wanted(numbers)
        moved: list[Waiting] = self._file.move_behind(wanted).result()
        with self._lock:
            for number in wanted:
                self._set_aside.pop(number, None)
            for waiting in moved:
                self._plan.add(*waiting)
        self._call_listener()
        return len(moved)

    def discard(self, numbers: Iterable[int] | None = None) -> int:
        """Delete messages that are set aside; return the number of messages.

        Args:
            numbers: Of ``set_aside``; all if left out.
        """
        wanted = self._wanted(numbers)
        self._file.remove(wanted).result()
        with self._lock:
            size = sum(self._set_aside.pop(number) for number in wanted)
        self._forget(len(wanted), size)
        return len(wanted)

    def attach(self, listener: Callable[[], None]) -> None:
        """Begin to send. ``listener`` is called, from any thread, when there may be something to take.

        Raises:
            ValueError: Another sender is attached: two would change the order.
        """
        with self._lock:
            if self._listener is not None:
                raise ValueError("The outbox has a sender already; close that one first.")
            self._listener = listener

    def detach(self) -> None:
        """Stop sending: messages that were on their way are sent again by the next sender."""
        with self._lock:
            self._listener = None
            self._plan.give_back()

    def take(self) -> OutboxBatch | None:
        """Return the batch to send now, or None."""
        with self._lock:
            return self._plan.take(self._clock.monotonic_ms())

    def wait_s(self) -> float | None:
        """Seconds until ``take`` has something without the listener being called; None when that is never."""
        with self._lock:
            next_ms = self._plan.next_ms()
        return None if next_ms is None else max(0, next_ms - self._clock.monotonic_ms()) / 1000

    def read(self, batch: OutboxBatch) -> Future[list[tuple[int, bytes, bytes] | int]]:
        """Return the messages of a batch; of one that is damaged, its number."""
        return self._file.read(batch.numbers)

    def on_sent(self, batch: OutboxBatch) -> None:
        """The namespace took a batch.

        Raises:
            OutboxFailed: The file cannot be used; the batch is sent again when the file is opened again.
        """
        with self._lock:
            if not self._plan.on_sent(batch):
                return
            done = [(batch.numbers, batch.size), *self._sent]
            self._sent = []

        def removed(_: None, error: Exception | None) -> None:
            if error is None:
                self._forget(sum(len(numbers) for numbers, _ in done), sum(size for _, size in done))
            else:
                with self._lock:
                    self._sent += done

        # Nobody waits for it: after a crash before that commit the messages are sent again.
        self._file.remove((number for numbers, _ in done for number in numbers), removed)

    def on_away(self, batch: OutboxBatch, share: float) -> int:
        """The namespace may take a batch later; return the pause in milliseconds. ``share`` is 0.5 to 1, random."""
        with self._lock:
            return self._plan.on_away(batch, self._clock.monotonic_ms(), share)

    def on_refused(self, batch: OutboxBatch, reason: str) -> int | None:
        """The namespace will never take a batch; return the message that is set aside, None if that is open."""
        with self._lock:
            number = self._plan.on_refused(batch)
            if number is not None:
                self._set_aside[number] = batch.size
        if number is not None:
            self._file.set_aside([number], reason[:REASON_LENGTH_MAX])
        return number

    def on_damaged(self, batch: OutboxBatch, numbers: list[int]) -> None:
        """Set messages of a batch aside that cannot be read. They are never sent in another form."""
        with self._lock:
            for number, size in self._plan.on_damaged(batch, numbers):
                self._set_aside[number] = size
        self._file.set_aside(numbers, _DAMAGED)

    def _wanted(self, numbers: Iterable[int] | None) -> list[int]:
        with self._lock:
            if numbers is None:
                return list(self._set_aside)
            return [number for number in dict.fromkeys(numbers) if number in self._set_aside]

    def _forget(self, messages: int, size: int) -> None:
        with self._lock:
            self._messages -= messages
            self._bytes -= size

    def _call_listener(self) -> None:
        listener = self._listener
        if listener is None:
            return
        try:
            listener()
        except Exception:  # noqa: BLE001 - a loop that has ended must not end the thread of the file
            _log.exception("the sender of an outbox could not be woken")
