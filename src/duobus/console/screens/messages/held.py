"""What a person has received and not yet settled: the locks of one session of the console.

The messages stay locked until the person settles them, their locks end, or the person signs out, which gives them back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusSubQueue

from duobus.console.namespace.failures import TOLD, NamespaceError
from duobus.console.screens.messages.places import DEAD, MEMORY, TRANSFER, MessageEntity
from duobus.console.screens.messages.records import cell
from duobus.console.visits import Refusal
from duobus.dead_letters.sdk_messages import record_of

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusReceiver

    from duobus.console.sessions import Session

#: Receivers that a session of the console has at a time, and messages that each of them holds.
RECEIVERS_MAX: Final = 4
HELD_MAX: Final = 200
#: How long giving back may take at the end of a session, in seconds.
_RELEASE_S: Final = 5.0
_SUB_QUEUES: Final = {DEAD: ServiceBusSubQueue.DEAD_LETTER, TRANSFER: ServiceBusSubQueue.TRANSFER_DEAD_LETTER}

#: What settles a message, by name.
COMPLETE: Final = "complete"
ABANDON: Final = "abandon"
DEFER: Final = "defer"
DEAD_LETTER: Final = "dead-letter"
RENEW: Final = "renew"
SETTLEMENTS: Final = {
    COMPLETE: "completed",
    ABANDON: "abandoned",
    DEFER: "deferred",
    DEAD_LETTER: "dead-lettered",
    RENEW: "renewed",
}


class Outcome(NamedTuple):
    """What became of several messages.

    Attributes:
        done: How many were settled.
        failed: Number and sentence of each that was not.
    """

    done: int
    failed: list[tuple[int, str]]


class HeldMessages:
    """A receiver, and what it holds.

    Args:
        session: Of the console.
        entity: Whose messages they are.
        place: ``active``, ``deadletter`` or ``transfer``.
        session_id: Of the message session that is accepted; None for an entity without sessions, and an empty text for
            the next session that has messages.
    """

    def __init__(self, session: Session, entity: MessageEntity, place: str, session_id: str | None) -> None:
        self.entity = entity
        self.place = place
        self.session_id = session_id
        self._namespace = session.namespace
        self._messages: dict[int, ServiceBusReceivedMessage] = {}
        self._receiver: ServiceBusReceiver | None = None
        self._lock = asyncio.Lock()

    @property
    def session_locked_until(self) -> datetime | None:
        """When the lock of the accepted session ends."""
        session = None if self._receiver is None or self.session_id is None else self._receiver.session
        return None if session is None else session.locked_until_utc

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What is held, for a table."""
        return [self._row(number, message) for number, message in self._messages.items()]

    @property
    def records(self) -> list[dict[str, Any]]:
        """What is held, whole, as the command line exports messages."""
        return [record_of(message) for message in self._messages.values()]

    def _row(self, number: int, message: ServiceBusReceivedMessage) -> dict[str, Any]:
        until = message.locked_until_utc or self.session_locked_until
        return {
            "number": number,
            "id": cell(str(message.message_id or "")),
            "subject": cell(str(message.subject or "")),
            "session": None if message.session_id is None else cell(str(message.session_id)),
            "deliveries": message.delivery_count or 0,
            "enqueued": None if message.enqueued_time_utc is None else message.enqueued_time_utc.isoformat(),
            "until": None if until is None else until.isoformat(),
            "isLost": until is not None and until.timestamp() * 1_000 <= self._namespace.clock.now_ms(),
            "body": cell(" ".join(_text_of(message).split())),
        }

    async def open(self, wait_s: float) -> None:
        """Attach to the entity, and accept the session.

        Raises:
            NamespaceError: The namespace refuses, or no session came in time.
        """
        options: dict[str, Any] = {}
        if self.place in _SUB_QUEUES:
            options["sub_queue"] = _SUB_QUEUES[self.place]
        if self.session_id is not None:
            options["session_id"] = self.session_id or NEXT_AVAILABLE_SESSION
            options["max_wait_time"] = wait_s
        messaging = self._namespace.messaging
        async with self._namespace.telling(self.entity.what, wait_s + 20):
            if self.entity.subscription:
                receiver = messaging.get_subscription_receiver(self.entity.name, self.entity.subscription, **options)
            else:
                receiver = messaging.get_queue_receiver(self.entity.name, **options)
            try:
                await receiver.__aenter__()
            except BaseException:
                await receiver.close()
                raise
        self._receiver = receiver
        if self.session_id is not None:
            self.session_id = str(receiver.session.session_id)

    @asynccontextmanager
    async def _using(self, wait_s: float = 30.0) -> AsyncIterator[ServiceBusReceiver]:
        async with self._lock:
            if self._receiver is None:
                raise Refusal(HTTPStatus.GONE, "This receiver is closed. Receive again.")
            async with self._namespace.telling(self.entity.what, wait_s):
                yield self._receiver

    async def receive(self, count: int, wait_s: float) -> int:
        """Receive and lock messages; return how many came in time."""
        self.forget_lost()
        count = min(count, HELD_MAX - len(self._messages))
        if count < 1:
            raise Refusal(HTTPStatus.CONFLICT, f"At most {HELD_MAX} messages are held. Settle some first.")
        async with self._using(wait_s + 20) as receiver:
            found = await receiver.receive_messages(max_message_count=count, max_wait_time=wait_s)
            # What is left of the credit would lock messages that nobody has asked for.
            inner: Any = receiver
            await inner._amqp_transport.reset_link_credit_async(inner._handler, 0)
        self._add(found)
        return len(found)

    async def receive_deferred(self, numbers: Sequence[int]) -> int:
        """Lock deferred messages by their numbers."""
        async with self._using() as receiver:
            found = await receiver.receive_deferred_messages(list(numbers))
        self._add(found)
        return len(found)

    def _add(self, found: Sequence[ServiceBusReceivedMessage]) -> None:
        for message in found:
            self._messages[message.sequence_number or 0] = message

    async def settle(
        self, settlement: str, numbers: Sequence[int], *, reason: str = "", description: str = ""
    ) -> Outcome:
        """Settle messages, or renew their locks; one that fails keeps the others from nothing."""
        done, failed = 0, list[tuple[int, str]]()
        for number in numbers:
            try:
                async with self._using() as receiver:
                    # Another tab may have settled it while this one waited for the receiver.
                    message = self._messages.get(number)
                    if message is None:
                        failed.append((number, "it is not held any more."))
                        continue
                    await _settle(receiver, settlement, message, reason, description)
            except NamespaceError as error:
                failed.append((number, error.text))
                if error.status in (HTTPStatus.GONE, HTTPStatus.CONFLICT):
                    self._messages.pop(number, None)
                continue
            done += 1
            if settlement != RENEW:
                self._messages.pop(number, None)
        return Outcome(done, failed)

    async def renew_session(self) -> None:
        """Renew the lock of the accepted session."""
        async with self._using() as receiver:
            await receiver.session.renew_lock()

    async def state(self) -> bytes:
        """The state of the accepted session; empty for none."""
        async with self._using() as receiver:
            found: Any = await receiver.session.get_state()
        return found.encode() if isinstance(found, str) else bytes(found or b"")

    async def set_state(self, state: bytes) -> None:
        """Set the state of the accepted session; an empty one clears it."""
        async with self._using() as receiver:
            await receiver.session.set_state(state)

    def forget_lost(self) -> None:
        """Forget messages whose locks have ended."""
        for row in self.rows:
            if row["isLost"]:
                del self._messages[row["number"]]

    async def close(self) -> None:
        """Give everything back, and close."""
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        messages = list(self._messages.values())
        self._messages.clear()
        with suppress(*TOLD):
            async with asyncio.timeout(_RELEASE_S):
                for message in messages:
                    with suppress(*TOLD):
                        await receiver.abandon_message(message)
        with suppress(*TOLD):
            await receiver.close()


async def _settle(
    receiver: ServiceBusReceiver, settlement: str, message: ServiceBusReceivedMessage, reason: str, description: str
) -> None:
    settlements: dict[str, Callable[[ServiceBusReceivedMessage], Awaitable[Any]]] = {
        COMPLETE: receiver.complete_message,
        ABANDON: receiver.abandon_message,
        DEFER: receiver.defer_message,
        RENEW: receiver.renew_message_lock,
    }
    if settlement == DEAD_LETTER:
        await receiver.dead_letter_message(message, reason=reason or None, error_description=description or None)
    else:
        await settlements[settlement](message)


def _text_of(message: ServiceBusReceivedMessage) -> str:
    """The beginning of a body."""
    raw: Any = message.raw_amqp_message
    if raw.body_type.value != "data":
        return str(raw.body)[:500]
    data = b"".join(bytes(part)[:500] for part in raw.body)[:500]
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode() if error.start > len(data) - 4 else "(binary)"


class Receivers:
    """The receivers of one session of the console."""

    def __init__(self) -> None:
        self._held: list[HeldMessages] = []

    def of(self, entity: MessageEntity) -> list[HeldMessages]:
        """Those of an entity."""
        return [one for one in self._held if one.entity.path == entity.path]

    def find(self, entity: MessageEntity, place: str, session_id: str | None) -> HeldMessages | None:
        """The one of a place, and of a session where there is one."""
        return next((one for one in self.of(entity) if (one.place, one.session_id) == (place, session_id)), None)

    async def add(self, held: HeldMessages, wait_s: float) -> None:
        """Open another one."""
        if len(self._held) >= RECEIVERS_MAX:
            idle = next((one for one in self._held if not one.rows and one.session_id is None), None)
            if idle is None:
                raise Refusal(
                    HTTPStatus.CONFLICT,
                    f"At most {RECEIVERS_MAX} receivers are open at a time. Give back what another one holds.",
                )
            await self.remove(idle)
        await held.open(wait_s)
        self._held.append(held)

    async def remove(self, held: HeldMessages) -> None:
        """Give back what one holds, and close it."""
        if held in self._held:
            self._held.remove(held)
        await held.close()

    async def close(self) -> None:
        """Give everything back."""
        await asyncio.gather(*(one.close() for one in self._held))
        self._held.clear()


def receivers_of(session: Session) -> Receivers:
    """The receivers of a session; they are closed at its end."""
    found: Receivers | None = session.memory.get(f"{MEMORY}-receivers")
    if found is None:
        found = session.memory[f"{MEMORY}-receivers"] = Receivers()
        session.resources.push_async_callback(found.close)
    return found
