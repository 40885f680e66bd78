"""IdempotentReceiver: the work of a message is done once, although the message may come again (TL12, TL13)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.exceptions import MessageLockLostError, SessionLockLostError

from duobus.ha.aio.replication import MESSAGE_ID, identifier_of
from duobus.ha.events import Event, LockLost, NotCompleted, Recognised, Reporter, ResultDiscarded, WorkFailed
from duobus.ha.sdk import prompt

if TYPE_CHECKING:
    from types import TracebackType

    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusReceiver

    from duobus.ha.deduplication import SeenMessages
    from duobus.ha.lock_keeper import Hold, LockKeeper

Work = Callable[["ServiceBusReceivedMessage"], Coroutine[Any, Any, bytes | None]]
Discard = Callable[["ServiceBusReceivedMessage", bytes | None], Coroutine[Any, Any, None]]

_LOCK_LOST: Final = (MessageLockLostError, SessionLockLostError)


class IdempotentReceiver:
    """Works on messages. A message that comes again after its work was done is completed without working on it again.

    A message comes again when its lock is lost during the work, or when its completion fails. Then one of two things
    happens:

    - *keep the result* (without ``discard``): the result is recorded on disk before the message is completed. When the
      message comes again it is recognised.
    - *discard and try again* (with ``discard``): when the lock was lost, ``discard`` undoes the work and nothing is
      recorded; the work is done again, here or by the receiver that has the message now. When a completion failed in
      another way, the message may have been completed, and the result is kept.

    When the process dies after the work and before the record, the work is done again: as with any receiver, the work
    has to tolerate that, or be in one transaction with a record of its own.

    Args:
        receiver: A peek-lock receiver of the SDK.
        seen: What is done, and its results. Let the window hold what can come again.
        discard: Undoes the work; called with the message and the result.
        identifier: ``message_id``, ``subject``, or an application property, set by the sender to tell its messages
            apart. A message without one is worked on whenever it comes.
        keeper: Renews locks in a thread of its own while the work goes on.
        on_event: Called with every event of ``duobus.ha.events``.
    """

    def __init__(
        self,
        receiver: ServiceBusReceiver,
        seen: SeenMessages,
        *,
        discard: Discard | None = None,
        identifier: str = MESSAGE_ID,
        keeper: LockKeeper | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self._receiver = receiver
        self._seen = seen
        self._discard = discard
        self._identifier = identifier
        self._keeper = keeper
        self.reporter = Reporter(on_event)

    async def __aenter__(self) -> IdempotentReceiver:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the receiver."""
        await prompt(self._receiver).close()

    def result(self, message: ServiceBusReceivedMessage) -> bytes | None:
        """The result of the work on a message, if the work is done and its result was kept."""
        identifier = identifier_of(message, self._identifier)
        return None if identifier is None else self._seen.result(identifier)

    async def process(self, work: Work, max_message_count: int = 1, max_wait_time: float = 60.0) -> int:
        """Receive messages once and work on them, one after the other; return the number of messages worked on.

        Args:
            work: Called with each message whose work is not done; returns the result, or None. When it raises, the
                message is given back, and comes again until the entity's delivery count is used up.
            max_message_count: Most messages to receive.
            max_wait_time: Seconds to wait for the first message.

        Raises:
            ServiceBusError: The receive failed.
        """
        worked = 0
        messages = await self._receiver.receive_messages(max_message_count, max_wait_time=max_wait_time)
        # All of them, from the start: the last one's lock runs while the first one is worked on.
        holds = [None if self._keeper is None else self._keeper.keep(message) for message in messages]
        try:
            for message, hold in zip(messages, holds, strict=True):
                worked += await self._one(message, hold, work)
        finally:
            for hold in holds:
                if hold is not None:
                    hold.release()
        return worked

    async def _one(self, message: ServiceBusReceivedMessage, hold: Hold | None, work: Work) -> bool:
        """Work on a message unless that is done; tell whether it was."""
        identifier = identifier_of(message, self._identifier)
        name = identifier or ""
        if identifier is not None and identifier in self._seen:
            self.reporter.tell(Recognised(self._entity, name))
            await self._complete(message, name)
            return False
        if hold is not None and hold.is_lost:
            self.reporter.tell(LockLost(self._entity, name, hold.error))
            return False  # It waited too long for its turn; somebody else may be at work on it.
        try:
            result = await work(message)
        except Exception as error:  # noqa: BLE001 - the application's own code
            self.reporter.tell(WorkFailed(self._entity, name, str(error) or type(error).__name__))
            await self._give_back(message, name)
            return True
        if self._discard is None:
            if identifier is not None:
                self._seen.record(identifier, result)
            await self._complete(message, name)
        elif (hold is not None and hold.is_lost) or not await self._complete(message, name):
            await self._discard(message, result)
            self.reporter.tell(ResultDiscarded(self._entity, name))
        elif identifier is not None:
            self._seen.record(identifier, result)
        if hold is not None:
            hold.release()
        return True

    @property
    def _entity(self) -> str:
        return str(self._receiver.entity_path)

    async def _complete(self, message: ServiceBusReceivedMessage, name: str) -> bool:
        """Complete a message; False if its lock was lost, and so it is certain that it comes again."""
        try:
            await self._receiver.complete_message(message)
        except _LOCK_LOST as error:
            self.reporter.tell(LockLost(self._entity, name, str(error)))
            return False
        except Exception as error:  # noqa: BLE001 - whatever it was, the work is done, and what it came to is kept
            self.reporter.tell(NotCompleted(self._entity, name, str(error) or type(error).__name__))
        return True

    async def _give_back(self, message: ServiceBusReceivedMessage, name: str) -> None:
        try:
            await self._receiver.abandon_message(message)
        except Exception as error:  # noqa: BLE001 - its lock ends by itself
            self.reporter.tell(LockLost(self._entity, name, str(error)))
