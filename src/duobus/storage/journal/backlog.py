"""What of a journal waits to be brought to SQLite: the commits in order, how much they are, and which are due.

One thread adds commits at the end, another takes those that it has brought over from the beginning.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, NamedTuple

from duobus.storage.interface import CommitBatch

#: What is brought over is so old: most messages are gone by then (decision 0059).
AGE_MS: Final = 200
#: Commits that are fewer bytes than this rest until the first of them is so old. Each time is a transaction of its own,
#: and writes the row of each source and the pages of its messages anew (decision 0071).
REST_MS: Final = 1_000
REST_BYTES: Final = 8 << 20
#: Where they are spread over many sources, they rest until so much of each has come, two of SQLite's pages, but no
#: longer than until all are REST_BYTES_MAX (decision 0079).
SOURCE_REST_BYTES: Final = 16 << 10
REST_BYTES_MAX: Final = 16 << 20
#: One that changes so many messages at once is due later: it is a claim, whose messages are removed within seconds for
#: the most part (decision 0064), and to change its state SQLite writes a row anew, with its body.
CLAIMED_LEAST: Final = 100
CLAIMED_AGE_MS: Final = 3_000
#: Bytes that wait, at the most, until the thread that brings over hurries. Twice as many, and commits wait for it.
BYTES_MAX: Final = 24 << 20
#: What a commit takes beside its payloads, roughly.
_COMMIT_BYTES: Final = 200
#: And for each copy of a topic's message, whose row costs as much as so many bytes.
_COPY_BYTES: Final = 128
#: And for each message that is changed.
_CHANGE_BYTES: Final = 128
#: While commits lately have so many bytes in the mean and what they put stays for the most part, they go to SQLite at
#: once: what is written twice costs more than one sync saves.
_LARGE_BYTES: Final = 128 << 10
#: ... unless they are spread over so many sources that each gets less than this: SQLite writes a page of 8 KiB for each
#: source, however little comes to it, and the more is brought over at a time, the fewer pages that are.
_SOURCE_BYTES: Final = 8 << 10
#: So many commits are "lately".
_LATELY: Final = 16
#: Of a long list of messages about so many are looked at to tell how large all are; the step is odd, so that it meets
#: both of two sizes that take turns.
_SAMPLE: Final = 16


class _Waiting(NamedTuple):
    at_ms: int
    is_claim: bool
    size: int
    rows: int
    batch: CommitBatch


class Backlog:
    """Commits that are in the journal and not in SQLite.

    Attributes:
        size: Bytes of them.
        rows: Messages and shared bodies that they add, less those that they remove.
        sources: Over how many sources were spread those that were brought over last.
    """

    __slots__ = ("_lock", "_waiting", "rows", "size", "sources")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self.size = 0
        self.rows = 0
        self.sources = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self, batch: CommitBatch, at_ms: int, bodies: int = 0, measured: tuple[int, int, int] | None = None
    ) -> None:
        """Add a commit that was written to the journal at this time, and adds so many bodies that copies share.

        ``measured``: what ``measure`` says of it, if that is known.
        """
        size, put, gone = measured or measure(batch)
        size += _CHANGE_BYTES * len(batch.changes)
        rows = put - gone + bodies
        is_claim = len(batch.changes) >= CLAIMED_LEAST
        with self._lock:
            self._waiting.append(_Waiting(at_ms, is_claim, size, rows, batch))
            self.size += size
            self.rows += rows

    def due(self, now_ms: int, *, is_short: bool = False) -> int:
        """Return how many of the first are to be brought over now: those that are old, or more where too much waits.

        They are in order, so what follows a claim waits as long as that does.

        ``is_short``: the journal is short of room, so that few commits do not rest, nor do claims.
        """
        number = 0
        with self._lock:
            left = self.size
            if not self._waiting:
                return 0
            rest_bytes = max(REST_BYTES, min(SOURCE_REST_BYTES * self.sources, REST_BYTES_MAX))
            is_resting = left < rest_bytes and now_ms - self._waiting[0].at_ms < REST_MS
            if is_resting and not is_short:
                return 0
            if left < BYTES_MAX:
                left = 0
            for waiting in self._waiting:
                age_ms = CLAIMED_AGE_MS if waiting.is_claim and not is_short else AGE_MS
                if now_ms < waiting.at_ms + age_ms and left <= BYTES_MAX // 2:
                    break
                number += 1
                left -= waiting.size
        return number

    def batches(self) -> list[CommitBatch]:
        """Return all, in order."""
        with self._lock:
            return [waiting.batch for waiting in self._waiting]

    def take(self, number: int) -> None:
        """Take away so many of the first, which are in SQLite now."""
        with self._lock:
            for _ in range(number):
                waiting = self._waiting.popleft()
                self.size -= waiting.size
                self.rows -= waiting.rows

    def clear(self) -> None:
        """Forget all."""
        self.take(len(self._waiting))


class LargeCommits:
    """Tells which commits are written to SQLite at once, because they would be written twice otherwise.

    That pays for many bytes that stay: one large transaction of SQLite's is as good as another.

    Attributes:
        measured: What ``measure`` says of the last commit that was asked about; None where only a sample was taken.
    """

    __slots__ = ("_gone", "_put", "_size", "measured")

    def __init__(self) -> None:
        self._size = self._put = self._gone = 0.0
        self.measured: tuple[int, int, int] | None = None

    def is_one(self, batch: CommitBatch) -> bool:
        """Whether this one is; to be asked once for each commit, in order."""
        size, put, gone, is_exact = _estimate(batch)
        self.measured = (size, put, gone) if is_exact else None
        self._size += (size - self._size) / _LATELY
        # A purge, or the end of a long drain, removes what many commits before have put, in one: as far as that goes
        # beyond what is put lately, it says nothing of what comes now.
        gone = min(gone, put + int(2 * self._put / _LATELY))
        self._put += put - self._put / _LATELY
        self._gone += gone - self._gone / _LATELY
        if self._gone >= self._put / 2 or self._size < _LARGE_BYTES:
            return False
        # The messages of each source have pages of their own in SQLite's file. Copies of topics go there all the same:
        # the journal has to count their bodies.
        return size >= _SOURCE_BYTES * len(batch.sources) or any(put.origins is not None for put in batch.puts)


def measure(batch: CommitBatch) -> tuple[int, int, int]:
    """Return the bytes of a commit, the messages that it puts, and those that it removes, as far as its ranges tell."""
    size, put, gone = _COMMIT_BYTES, 0, 0
    shared: dict[int, bytes] = {}
    for one in batch.puts:
        put += len(one.payloads)
        if one.origins is None:
            size += sum(map(len, one.payloads))
            continue
        size += _COPY_BYTES * len(one.payloads)
        for payload, origin in zip(one.payloads, one.origins, strict=True):
            if origin >= 0 or shared.get(origin) is not payload:
                size += len(payload)
                shared[origin] = payload
    for _, first, last in batch.removed:
        gone += last - first + 1
    return size, put, gone


def _estimate(batch: CommitBatch) -> tuple[int, int, int, bool]:
    """As ``measure``, but the bytes of long lists are told by a sample: every commit is asked, however large.

    Returns:
        The three, and whether they are what ``measure`` says.
    """
    size, put, gone = _COMMIT_BYTES, 0, 0
    is_exact = True
    for one in batch.puts:
        payloads = one.payloads
        number = len(payloads)
        if one.origins is not None:
            return *measure(batch), True
        put += number
        if number < 2 * _SAMPLE:
            size += sum(map(len, payloads))
        else:
            some = payloads[:: number // _SAMPLE | 1]
            size += number * sum(map(len, some)) // len(some)
            is_exact = False
    for _, first, last in batch.removed:
        gone += last - first + 1
    return size, put, gone, is_exact


def is_for_tables(batch: CommitBatch) -> bool:
    """Whether a commit cannot wait, because SQLite's tables say whether it is right.

    That is so of counts that were used up before, which nothing may have.
    """
    return any(put.is_reserved for put in batch.puts)
