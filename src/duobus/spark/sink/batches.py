"""Which messages are sent together: a bounded number of open batches, one for each entity and session or partition key.

Pure: functions that the constructor is given make and send batches. Messages of one key are sent in the order in which
they came, because a key has at most one open batch, which is sent before the key's next batch is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

#: Open batches of a task: what it holds in memory is so many times the link's batch size (1 MiB on Premium) at most.
OPEN_BATCHES_MAX: Final = 16
#: Messages of one batch, however small they are: what the cloud takes in one over HTTP, and its limit for AMQP too.
BATCH_MESSAGES_MAX: Final = 4_500

BatchT = TypeVar("BatchT", bound="Batch")

#: Entity, and session id or partition key or None: what a batch holds one of.
BatchKey = tuple[str, str | None]


class Batch(Protocol):
    """A batch that is being filled."""

    def add(self, message: Any, /) -> bool:
        """Take a message; return False, and change nothing, if the batch would get too large."""

    def __len__(self) -> int:
        """Messages in it."""


class Batches(Generic[BatchT]):
    """The open batches of one task.

    Args:
        make: Opens an empty batch for a key.
        send: Sends a batch; returns when the batch is sent.
        open_max: Most batches that may be open at the same time.
        messages_max: Most messages of one batch.
    """

    __slots__ = ("_make", "_messages_max", "_open", "_open_max", "_send")

    def __init__(
        self,
        make: Callable[[BatchKey], BatchT],
        send: Callable[[BatchKey, BatchT], None],
        open_max: int = OPEN_BATCHES_MAX,
        messages_max: int = BATCH_MESSAGES_MAX,
    ) -> None:
        self._make = make
        self._send = send
        self._open_max = open_max
        self._messages_max = messages_max
        self._open: dict[BatchKey, BatchT] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, key: BatchKey, message: Any) -> bool:
        """Put a message into its batch, and send batches that become full.

        Returns:
            False if the message does not even fit into an empty batch. Earlier messages of its key are sent then, so
            that the caller may send the message by itself without overtaking them.
        """
        batch = self._open.get(key)
        if batch is None:
            batch = self._open_for(key)
        if batch.add(message):
            if len(batch) >= self._messages_max:
                self._flush(key)
            return True
        if len(batch):
            self._flush(key)
            batch = self._open_for(key)
            if batch.add(message):
                return True
        del self._open[key]
        return False

    def flush(self) -> None:
        """Send all open batches, in the order in which they were opened."""
        for key in list(self._open):
            self._flush(key)

    def _open_for(self, key: BatchKey) -> BatchT:
        if len(self._open) >= self._open_max:
            # The fullest: with many keys this makes the fewest sends. The same rows give the same batches each time.
            self._flush(max(self._open, key=lambda one: len(self._open[one])))
        batch = self._open[key] = self._make(key)
        return batch

    def _flush(self, key: BatchKey) -> None:
        batch = self._open.pop(key)
        if len(batch):
            self._send(key, batch)
