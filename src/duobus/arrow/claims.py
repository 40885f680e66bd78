"""Messages that are read to be removed: each is locked for the reader, and removed when the reader has said so.

The locks are those of every receiver, so a claim is at least once: after a crash, or when the claim is left without
``settle``, the messages become active again, with a delivery counted, and are read again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa

from duobus.arrow.columns import NUMBER, Columns
from duobus.clock import Clock
from duobus.spark.claims.lock_handles import LockHandle, lock_handle_of, renew_all, settle_all
from duobus.spark.claims.receiver import GROWTH, RECEIVE_MAX
from duobus.spark.connection import Place, namespace_of, new_client
from duobus.spark.entities import open_receiver, split_name, told
from duobus.spark.offsets import Key
from duobus.spark.rows import BATCH_BYTES, BATCH_ROWS, Source

#: Messages that one request settles, or renews.
REQUEST_MAX: Final = 500
#: Part of a lock's duration after which the lock is renewed.
RENEW_SHARE: Final = 3
#: Between two renewals at least.
RENEW_S_MIN: Final = 1.0
#: How long one receive holds the receiver, which renewals need too.
SLICE_S: Final = 1.0

_log = logging.getLogger("duobus.arrow")


class Settled(NamedTuple):
    """What became of messages that were to be removed.

    Attributes:
        completed: How many were removed.
        lost: Sequence numbers of those whose lock was over: they are read again, by this reader or another one.
    """

    completed: int
    lost: tuple[int, ...]


def settled(receiver: Any, handles: list[LockHandle], how: str) -> Settled:
    """Settle locked messages, some hundred with one request; where a request is refused, its halves are tried.

    Args:
        receiver: The receiver of the messages.
        handles: Handles of the messages.
        how: ``completed`` or ``abandoned``.
    """
    lost: list[int] = []
    for at in range(0, len(handles), REQUEST_MAX):
        lost += _halved(handles[at : at + REQUEST_MAX], lambda some: settle_all(receiver, some, how))
    return Settled(len(handles) - len(lost), tuple(lost))


def _halved(handles: list[LockHandle], work: Callable[[list[LockHandle]], None]) -> list[int]:
    """Do work with messages; return the numbers of those that are not locked any more."""
    from azure.servicebus.exceptions import MessageAlreadySettled, MessageLockLostError, MessageNotFoundError

    try:
        work(handles)
    except (MessageAlreadySettled, MessageLockLostError, MessageNotFoundError):
        if len(handles) == 1:
            return [handles[0].number]
        half = len(handles) // 2
        return _halved(handles[:half], work) + _halved(handles[half:], work)
    return []


class Pages:
    """Receives messages page by page, each of about some MiB.

    Args:
        receiver: Of the SDK.
        most: Messages of a page at most.
    """

    def __init__(self, receiver: Any, most: int = BATCH_ROWS) -> None:
        self._receiver = receiver
        self._most = min(most, RECEIVE_MAX)
        self._had = 0
        self._size = 0

    def receive(self, limit: int | None, wait_s: float) -> tuple[list[Any], list[LockHandle]]:
        """Receive a page: the messages, and their handles.

        Nothing tells how large messages are, so the first page is of one message, and further ones are by the size of
        those that came.
        """
        asked = 1 if not self._had else min(self._had * GROWTH, BATCH_BYTES * self._had // max(self._size, 1))
        asked = max(1, min(asked, self._most, self._most if limit is None else limit))
        page = self._receiver.receive_messages(max_message_count=asked, max_wait_time=wait_s)
        handles = [lock_handle_of(message) for message in page]
        self._had += len(handles)
        self._size += sum(handle.size for handle in handles)
        return page, handles


class Claim:
    """Messages that are locked for the caller, as Arrow batches; a context manager.

    Whatever takes Arrow streams takes the claim itself, or its ``reader``. ``settle`` removes the messages of the
    batches that were read until then; leaving the claim gives the others back. Locks are renewed meanwhile.

    Args:
        place: The namespace.
        key: The entity, and a session where the entity requires sessions.
        columns: Makes the batches.
        limit: Rows at most; None: all that come.
        wait_s: How long to wait for a further message before the reader ends.
        batch_rows: Messages of a batch at most.
        clock: Time.

    Attributes:
        reader: The ``pyarrow.RecordBatchReader`` of the messages, which can be read once.
    """

    def __init__(
        self,
        place: Place,
        key: Key,
        columns: Columns,
        *,
        limit: int | None = None,
        wait_s: float = 5.0,
        batch_rows: int = BATCH_ROWS,
        clock: Clock | None = None,
    ) -> None:
        self._key = key
        self._columns = columns
        self._limit = limit
        self._wait_s = wait_s
        self._clock = clock or Clock()
        self._source = Source(namespace_of(place), split_name(key.entity)[0])
        #: The SDK's receiver serves one thread at a time.
        self._turn = threading.Lock()
        self._read: dict[int, LockHandle] = {}
        #: Messages that the filter leaves out. They are held until the end, or they would come again and again.
        self._left: dict[int, LockHandle] = {}
        self._is_closed = threading.Event()
        self._client = new_client(place)
        try:
            self._receiver = open_receiver(self._client, key)
            with told(key.entity):
                self._receiver.__enter__()
        except BaseException:
            self._client.close()
            raise
        self._pages = Pages(self._receiver, batch_rows)
        self._renewer: threading.Thread | None = None
        self.reader = pa.RecordBatchReader.from_batches(columns.schema, self._batches())

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._columns.schema

    @property
    def unsettled(self) -> int:
        """How many messages were read and not removed yet."""
        return len(self._read)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The reader, for libraries that take any Arrow stream."""
        return self.reader.__arrow_c_stream__(requested_schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def settle(self) -> Settled:
        """Remove the messages of all batches that were read until now.

        Returns:
            How many were removed, and the numbers of those whose lock was over, which will be read again.
        """
        with self._turn:
            handles, self._read = list(self._read.values()), {}
            done = settled(self._receiver, handles, "completed")
        if done.lost:
            _log.warning(
                "the locks of %d messages of '%s' were over before the messages were settled; they come again",
                len(done.lost),
                self._key.entity,
            )
        return done

    def close(self) -> None:
        """Give back what was not settled, and close the connection."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        if self._renewer is not None:
            self._renewer.join()
        try:
            with self._turn:
                settled(self._receiver, [*self._read.values(), *self._left.values()], "abandoned")
        except Exception:  # noqa: BLE001 - of whatever kind: the locks end by themselves
            _log.debug("messages of '%s' were not given back", self._key.entity, exc_info=True)
        finally:
            self._receiver.close()
            self._client.close()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        left = self._limit
        while (left is None or left > 0) and not self._is_closed.is_set():
            page, handles = self._received(left)
            if not page:
                return
            by_number = {handle.number: handle for handle in handles}
            # Those of the filter first: what the caller has not seen must not be removed by ``settle``.
            for batch in self._columns.rows.batches(self._source, page):
                kept = self._columns.kept(batch)
                numbers = kept.column(kept.schema.get_field_index(NUMBER)).to_pylist()
                taken = {number: by_number.pop(number) for number in numbers}
                if not taken:
                    continue
                left = None if left is None else left - len(taken)
                with self._turn:
                    self._read |= taken
                yield self._columns.wanted(kept)
            with self._turn:
                self._left |= by_number

    def _received(self, limit: int | None) -> tuple[list[Any], list[LockHandle]]:
        until_ms = self._clock.monotonic_ms() + int(self._wait_s * 1000)
        while not self._is_closed.is_set():
            left_s = (until_ms - self._clock.monotonic_ms()) / 1000
            with self._turn, told(self._key.entity):
                page, handles = self._pages.receive(limit, max(0.05, min(SLICE_S, left_s)))
            if page:
                self._renew_from_now_on(handles[0])
                return page, handles
            if left_s <= SLICE_S:
                break
        return [], []

    def _renew_from_now_on(self, handle: LockHandle) -> None:
        if self._renewer is not None:
            return
        until_ms = handle.until_ms
        session: Any = self._receiver.session
        if session is not None and session.locked_until_utc is not None:
            until_ms = round(session.locked_until_utc.timestamp() * 1000)
        every_s = max(RENEW_S_MIN, (until_ms - self._clock.now_ms()) / 1000 / RENEW_SHARE)
        self._renewer = threading.Thread(target=self._renew, args=(every_s,), name="duobus-arrow-locks", daemon=True)
        self._renewer.start()

    def _renew(self, every_s: float) -> None:
        while not self._is_closed.wait(every_s):
            try:
                with self._turn:
                    self._renew_once()
            except Exception:  # noqa: BLE001 - of whatever kind: ``settle`` tells which locks were lost in the end
                _log.debug("renewing locks of '%s' failed", self._key.entity, exc_info=True)

    def _renew_once(self) -> None:
        if self._key.session is not None:
            self._receiver.session.renew_lock()
            return
        handles = [*self._read.values(), *self._left.values()]
        for at in range(0, len(handles), REQUEST_MAX):
            _halved(handles[at : at + REQUEST_MAX], lambda some: renew_all(self._receiver, some))
