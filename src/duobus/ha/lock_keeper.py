"""LockKeeper: a thread of its own renews message locks, however long the work keeps its own thread busy (TL8, TL13).

A renewal that shares its thread with the work is late exactly when it is needed: while the work computes. The thread
of the keeper has a receiver of its own, because only one thread may use a receiver of the SDK. Programs of asyncio and
of threads can use the keeper alike.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from azure.servicebus.exceptions import MessageAlreadySettled, MessageLockLostError, MessageNotFoundError

from duobus.clock import Clock
from duobus.ha.events import Event, LockLost, Reporter
from duobus.ha.sdk import prompt

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiver

#: Locks that one keeper renews, one after the other.
HOLDS_MAX: Final = 10_000
#: Longest time for which a lock is renewed unless told otherwise, in seconds.
LONGEST_S: Final = 300.0
#: Before a renewal that failed is tried again.
RETRY_MS: Final = 1_000
#: A renewal is given up after this time.
RENEWAL_S: Final = 10.0

_LOST: Final = (MessageLockLostError, MessageAlreadySettled, MessageNotFoundError)


class Hold:
    """A lock that is renewed until ``release``, or until it is lost."""

    def __init__(self, keeper: LockKeeper, message: ServiceBusReceivedMessage, until_ms: int) -> None:
        self.message = message
        self.until_ms = until_ms
        #: Why the lock was lost; empty while it is held.
        self.error = ""
        self._keeper = keeper
        self._lost = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    @property
    def is_lost(self) -> bool:
        """Whether the lock is lost. Another receiver may have the message then, and completing it is of no use."""
        return self._lost.is_set()

    def wait_lost(self, seconds: float | None = None) -> bool:
        """Wait, in another thread than that of the work, until the lock is lost; return whether it is lost."""
        return self._lost.wait(seconds)

    def release(self) -> None:
        """Stop renewing the lock."""
        self._keeper._release(self)

    def _lose(self, error: str) -> None:
        self.error = error
        self._lost.set()


class LockKeeper:
    """Renews the locks of messages, each when half of its time is over.

    Args:
        make_receiver: Makes a receiver of ``azure.servicebus`` (not of its ``aio``) for the entity, which no other
            thread uses. It is called in the thread of the keeper, and again after an error.
        on_event: Called with ``LockLost``, in the thread of the keeper.
        clock: Time.
    """

    def __init__(
        self,
        make_receiver: Callable[[], ServiceBusReceiver],
        *,
        on_event: Callable[[Event], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._make_receiver = make_receiver
        self._clock = clock if clock is not None else Clock()
        self.reporter = Reporter(on_event)
        self._change = threading.Condition()
        self._holds: set[Hold] = set()
        #: Time, tie, hold; holds that were released are ignored.
        self._due: list[tuple[int, int, Hold]] = []
        self._ties = 0
        self._is_closed = False
        self._receiver: Any = None
        self._thread = threading.Thread(target=self._run, name="duobus lock keeper", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop renewing locks, and wait for a renewal that is under way."""
        with self._change:
            self._is_closed = True
            self._change.notify()
        self._thread.join()

    def keep(self, message: ServiceBusReceivedMessage, longest_s: float = LONGEST_S) -> Hold:
        """Renew the lock of a message from now on.

        Args:
            message: A message that was received in peek-lock mode, without a session.
            longest_s: Longest time for which to renew the lock, so that work that hangs gives the message back.

        Raises:
            ValueError: The keeper has too many locks, or is closed.
        """
        now_ms = self._clock.now_ms()
        hold = Hold(self, message, now_ms + round(longest_s * 1000))
        with self._change:
            if self._is_closed:
                raise ValueError("The keeper of locks is closed.")
            if len(self._holds) >= HOLDS_MAX:
                raise ValueError(f"{HOLDS_MAX:,} locks are kept already; release some, or make another keeper.")
            self._holds.add(hold)
            self._plan(hold, now_ms)
            self._change.notify()
        return hold

    def _release(self, hold: Hold) -> None:
        with self._change:
            self._holds.discard(hold)

    def _plan(self, hold: Hold, now_ms: int) -> None:
        """Renew when half of what is left is over."""
        self._ties += 1
        heapq.heappush(self._due, (now_ms + max(0, _locked_until_ms(hold) - now_ms) // 2, self._ties, hold))

    def _run(self) -> None:
        try:
            while (hold := self._next()) is not None:
                self._renew(hold)
        finally:
            self._drop_receiver()

    def _next(self) -> Hold | None:
        """Wait for the next renewal; None when the keeper is closed."""
        with self._change:
            while not self._is_closed:
                while self._due and self._due[0][2] not in self._holds:
                    heapq.heappop(self._due)
                wait_ms = self._due[0][0] - self._clock.now_ms() if self._due else None
                if wait_ms is not None and wait_ms <= 0:
                    return heapq.heappop(self._due)[2]
                self._change.wait(None if wait_ms is None else wait_ms / 1000)
        return None

    def _renew(self, hold: Hold) -> None:
        if self._clock.now_ms() >= hold.until_ms:
            self._release(hold)  # Nobody said that it is lost: the work may still be in time.
            return
        try:
            if self._receiver is None:
                self._receiver = self._make_receiver()
            self._receiver.renew_message_lock(hold.message, timeout=RENEWAL_S)
        except _LOST as error:
            self._lose(hold, error)
        except Exception as error:  # noqa: BLE001 - it is tried again while the lock lasts, whatever it was
            self._drop_receiver()
            now_ms = self._clock.now_ms()
            if now_ms >= _locked_until_ms(hold):
                self._lose(hold, error)
                return
            with self._change:
                self._ties += 1
                heapq.heappush(self._due, (now_ms + RETRY_MS, self._ties, hold))
        else:
            with self._change:
                self._plan(hold, self._clock.now_ms())

    def _lose(self, hold: Hold, error: Exception) -> None:
        with self._change:
            was_held = hold in self._holds
            self._holds.discard(hold)
        if was_held:  # One that was settled meanwhile is no loss.
            text = str(error) or type(error).__name__
            hold._lose(text)
            self.reporter.tell(LockLost("", str(hold.message.message_id), text))

    def _drop_receiver(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            with contextlib.suppress(Exception):
                prompt(receiver).close()


def _locked_until_ms(hold: Hold) -> int:
    moment = hold.message.locked_until_utc
    return 0 if moment is None else round(moment.timestamp() * 1000)
