"""Messages are claimed, written to Parquet files, and removed when the files are durable.

Each message is in one file, whatever is killed and when, as ``capture_folder`` explains; as long as one process at a
time captures the entity into the folder, which a lock of the folder sees to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from duobus.arrow.capture_folder import CaptureFolder
from duobus.arrow.claims import Pages, settled
from duobus.clock import Clock
from duobus.spark.claims.lock_handles import LockHandle
from duobus.spark.entities import look
from duobus.spark.offsets import by_fragment
from duobus.spark.rows import Rows, Source
from duobus.spark.schema import arrow_schema

#: Messages of a batch, and bytes of their bodies, which are in memory.
BATCH_MESSAGES: Final = 10_000
BATCH_BYTES: Final = 64 << 20
#: Part of a lock's duration in which a batch collects messages; the rest is for writing and settling.
COLLECT_SHARE: Final = 3
#: How long messages of a killed capture are waited for, which are locked until their locks end: the longest lock.
LOCKED_WAIT_S: Final = 300.0
#: A batch ends when no message came for this time after an earlier one.
GAP_S: Final = 0.2

_log = logging.getLogger("duobus.arrow")


class Plan(NamedTuple):
    """How much is captured.

    Attributes:
        limit: Messages at most; None: all.
        wait_s: How long to wait for a further message before the capture ends; None: for ever.
        batch: Messages of a batch at most.
        batch_bytes: Bytes of the bodies of a batch, about.
    """

    limit: int | None = None
    wait_s: float | None = 5.0
    batch: int = BATCH_MESSAGES
    batch_bytes: int = BATCH_BYTES


class Captured:
    """What a capture has done until now.

    Attributes:
        messages: Messages that were written.
        files: Files that were written.
        size: Bytes of the files.
        again: Messages that came again and were in the folder already.
        lost_locks: Messages whose lock was over when they were to be removed; when they come again, they are removed.
    """

    def __init__(self) -> None:
        self.messages = 0
        self.files = 0
        self.size = 0
        self.again = 0
        self.lost_locks = 0


class Capture:
    """Captures one entity.

    Args:
        receiver: Of the SDK, open.
        folder: Where the messages go, open.
        source: Values that all messages have in common.
        plan: How much is captured.
        clock: Time.
    """

    def __init__(
        self, receiver: Any, folder: CaptureFolder, source: Source, plan: Plan, clock: Clock | None = None
    ) -> None:
        self._receiver = receiver
        self._folder = folder
        self._source = source
        self._plan = plan
        self._clock = clock or Clock()
        self._pages = Pages(receiver, plan.batch)
        self._rows = Rows(arrow_schema())
        self.done = Captured()

    def run(self, tell: Callable[[Captured], None] = lambda _: None) -> Captured:
        """Capture until nothing comes any more, or the limit is reached; the same when it is run again after a kill.

        Args:
            tell: Called after each batch.
        """
        self._forget_gone()
        idle_ms = self._clock.monotonic_ms()
        while self._plan.limit is None or self.done.messages < self._plan.limit:
            if self._batch():
                idle_ms = self._clock.monotonic_ms()
                tell(self.done)
            elif self._is_over((self._clock.monotonic_ms() - idle_ms) / 1000):
                break
        return self.done

    def _is_over(self, idle_s: float) -> bool:
        """Whether nothing more is waited for; messages that are in the folder and still locked are."""
        if self._plan.wait_s is None or idle_s < self._plan.wait_s:
            return False
        self._forget_gone()
        return not self._folder.unsettled or idle_s >= LOCKED_WAIT_S

    def _batch(self) -> bool:
        """Capture a batch; False when no message came."""
        messages: list[Any] = []
        handles: list[LockHandle] = []
        try:
            self._collect(messages, handles)
            if not handles:
                return False
            fresh = [message for message in messages if not self._is_there(message)]
            written = self._folder.write(self._rows.batches(self._source, fresh))
        except BaseException:
            self._give_back(handles)
            raise
        self.done.messages += written.rows
        self.done.files += written.files
        self.done.size += written.size
        self.done.again += len(handles) - len(fresh)
        result = settled(self._receiver, handles, "completed")
        self.done.lost_locks += len(result.lost)
        lost = set(result.lost)
        self._folder.settled(handle.number for handle in handles if handle.number not in lost)
        return True

    def _is_there(self, message: Any) -> bool:
        return self._folder.is_there(message.sequence_number, _microseconds(message.enqueued_time_utc))

    def _collect(self, messages: list[Any], handles: list[LockHandle]) -> None:
        """Receive until the batch is full, a part of the first lock is over, or nothing comes."""
        started_ms = until_ms = self._clock.monotonic_ms()
        size = 0
        while len(handles) < self._plan.batch and size < self._plan.batch_bytes:
            wait_s = GAP_S if handles else min(1.0, self._plan.wait_s or 1.0)
            room = self._plan.batch - len(handles)
            if self._plan.limit is not None:
                room = min(room, self._plan.limit - self.done.messages - len(handles))
            if room <= 0:
                return
            page, more = self._pages.receive(room, wait_s)
            if not page:
                return
            if not handles:
                started_ms = self._clock.monotonic_ms()
                until_ms = started_ms + max(0, more[0].until_ms - self._clock.now_ms()) // COLLECT_SHARE
            messages += page
            handles += more
            size += sum(handle.size for handle in more)
            if self._clock.monotonic_ms() >= until_ms:
                return

    def _give_back(self, handles: list[LockHandle]) -> None:
        try:
            settled(self._receiver, handles, "abandoned")
        except Exception:  # noqa: BLE001 - of whatever kind: the locks end by themselves
            _log.debug("messages were not given back", exc_info=True)

    def _forget_gone(self) -> None:
        """Forget messages that are in the folder and not in the entity any more."""
        if not self._folder.unsettled:
            return
        there = {
            message.sequence_number
            for numbers in by_fragment(self._folder.unsettled).values()
            for message in look(self._receiver, numbers)
        }
        self._folder.settled([number for number in self._folder.unsettled if number not in there])


def _microseconds(instant: Any) -> int:
    return 0 if instant is None else round(instant.timestamp() * 1_000_000)
