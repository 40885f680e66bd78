"""PairedSender: the SDK's sender, which uses backlog queues of the secondary while the primary is away."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusQuotaExceededError

from duobus.concurrency import aio as tasks
from duobus.ha.errors import BacklogUnavailable, NotDiverted, TooLargeToDivert
from duobus.ha.events import BacklogFailed, Diverted
from duobus.ha.outage import condition
from duobus.ha.sdk import listed
from duobus.ha.sdk_errors import is_message_fault
from duobus.ha.tracing import diverting
from duobus.ha.transfer import to_backlog

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

    from duobus.ha.aio.paired_namespace import PairedNamespace

#: A call that opens a link is given up after this time if its caller gave none, or so long after the caller's.
OPEN_LIMIT_S: Final = 60.0
GRACE_S: Final = 1.0


class PairedSender:
    """Sender for one entity of a paired namespace, with the surface of ``azure.servicebus.aio.ServiceBusSender``.

    While the entity is healthy every call goes to the SDK's sender unchanged. A send that fails for a reason that
    counts as an outage raises, and begins the failover interval. Once the interval has passed without a successful send
    of any sender of this entity, sends go to a backlog queue of the secondary. The messages are durable there when the
    call returns. The syphon brings them to the entity later, at least once, and not in order with messages that are
    sent directly.

    ``PairedNamespace.get_queue_sender`` and ``get_topic_sender`` make senders.
    As with the SDK's senders, only one task at a time may use a sender.

    Args:
        pair: The pair to which the sender belongs.
        path: Path of the entity.
        primary: The SDK's sender for the entity.
        again: Makes another sender of the SDK. A link that was idle during an outage is dead without the SDK knowing:
            its next send would fail, once. So the first send after a failover uses a new link.
        returns: ``pair.returns`` when ``primary`` was made.
    """

    def __init__(
        self,
        pair: PairedNamespace,
        path: str,
        primary: ServiceBusSender,
        again: Callable[[], ServiceBusSender] | None = None,
        returns: int = 0,
    ) -> None:
        self._pair = pair
        self._path = path
        self._primary = primary
        self._again = again
        self._returns = returns
        #: The link is open, as far as is known.
        self._is_proven = False
        self._backlog: ServiceBusSender | None = None
        self._queue: str | None = None
        #: Whether the link to it is open, as far as is known.
        self._is_open = False

    @property
    def entity_name(self) -> str:
        """Path of the entity."""
        return self._path

    @property
    def fully_qualified_namespace(self) -> str:
        """Host name of the primary."""
        return self._primary.fully_qualified_namespace

    @property
    def client_identifier(self) -> str:
        """The identifier of the client, as the SDK's sender has it."""
        return self._primary.client_identifier

    @property
    def backlog_queue(self) -> str | None:
        """The backlog queue that this sender uses; None before its first diverted message."""
        return self._queue

    async def __aenter__(self) -> PairedSender:
        # With the primary away the sender is of use all the same, so that it is not opened here: its first send is.
        self._pair.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close both links; messages that were sent stay sent."""
        await self._leave_backlog()
        await self._primary.close()

    async def send_messages(
        self,
        message: ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any] | ServiceBusMessageBatch | Iterable[Any],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the SDK's surface
        **kwargs: Any,
    ) -> None:
        """Send a message, a list or a batch; to a backlog queue if the entity has failed over.

        Args:
            message: Anything that the SDK's sender takes. A list is one batch at the primary; in a backlog queue it is
                several batches when it does not fit into one with the properties added to each message (PN11).
            timeout: Seconds of each attempt.
            **kwargs: Further arguments of the SDK's sender for the primary.

        Raises:
            PairFaulted: The pair is broken.
            BacklogUnavailable: The entity has failed over and no backlog queue takes messages.
            TooLargeToDivert: The message would fit the primary, but not a backlog queue.
            ServiceBusError: The error of the primary. If the entity was healthy before and the error counts as an
                outage, a retry after the failover interval is diverted.
        """
        pair, path = self._pair, self._path
        pair.check()
        if not isinstance(message, (ServiceBusMessage, AmqpAnnotatedMessage, ServiceBusMessageBatch, Mapping, list)):
            message = list(message)  # The first try would use it up.
        if not pair.is_diverted(path, message):
            try:
                await self._at_primary("send_messages", message, timeout=timeout, **kwargs)
            except Exception as error:
                if not pair.on_send_failed(path, error, message) and not self._is_full(error):
                    raise
            else:
                pair.on_send_succeeded(path, message)
                return
        await self._divert(listed(message), timeout)

    async def schedule_messages(
        self,
        messages: ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any] | Iterable[Any],
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the SDK's surface
        **kwargs: Any,
    ) -> list[int]:
        """Schedule messages at the primary.

        This call is never diverted, because a backlog queue could not give the sequence numbers that the call returns.
        To have scheduled messages diverted, set their ``scheduled_enqueue_time_utc`` and send them.

        Raises:
            NotDiverted: The entity has failed over.
            ServiceBusError: What the primary answered.
        """
        if not isinstance(messages, (ServiceBusMessage, AmqpAnnotatedMessage, Mapping)):
            messages = list(messages)  # It is looked at for keys, which would use it up.
        call = partial(self._direct, "schedule_messages", messages, schedule_time_utc, timeout=timeout, **kwargs)
        return list(await call(about=messages))

    async def cancel_scheduled_messages(
        self,
        sequence_numbers: int | list[int],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the SDK's surface
        **kwargs: Any,
    ) -> None:
        """Cancel scheduled messages at the primary. The call is never diverted: the numbers are those of the primary.

        Raises:
            NotDiverted: The entity has failed over.
            ServiceBusError: What the primary answered.
        """
        await self._direct("cancel_scheduled_messages", sequence_numbers, timeout=timeout, **kwargs)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Return an empty batch of the size that the primary takes, or a backlog queue if the entity has failed over.

        Raises:
            BacklogUnavailable: The entity has failed over and there is no backlog queue.
            ServiceBusError: What the primary answered.
        """
        pair, path = self._pair, self._path
        pair.check()
        if not pair.is_diverted(path):
            try:
                batch = await self._at_primary("create_message_batch", max_size_in_bytes)
                return cast("ServiceBusMessageBatch", batch)
            except Exception as error:
                # Opening the link is what failed: the same outage as that of a send.
                if not pair.on_send_failed(path, error):
                    raise
        make = partial((await self._choose()).create_message_batch, max_size_in_bytes)
        return await tasks.within(OPEN_LIMIT_S, make)

    async def _direct(self, name: str, *args: Any, about: Any = None, **kwargs: Any) -> Any:
        """Call the primary's sender for what has no other way; ``about``: messages that it is about."""
        pair, path = self._pair, self._path
        pair.check()
        if pair.is_diverted(path, about):
            raise NotDiverted(
                f"{path} has failed over, and {name} cannot be diverted. Wait for the primary, or send messages with "
                "scheduled_enqueue_time_utc set."
            )
        try:
            answer = await self._at_primary(name, *args, **kwargs)
        except Exception as error:
            pair.on_send_failed(path, error, about)
            raise
        pair.on_send_succeeded(path, about)
        return answer

    def _direct_link(self) -> ServiceBusSender:
        """The SDK's sender; another one after a failover."""
        returns = self._pair.returns(self._path)
        if returns != self._returns:
            self._returns = returns
            self._pair.leave(self._primary)
            self._renew()
        return self._primary

    def _renew(self) -> None:
        self._is_proven = False
        if self._again is not None:
            self._primary = self._again()

    async def _at_primary(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the SDK's sender. A call that may open the link ends in time even where the SDK's own time-out fails."""
        call = getattr(self._direct_link(), name)
        if self._is_proven:
            try:
                return await call(*args, **kwargs)
            except BaseException:
                self._is_proven = False
                raise
        limit_s = _limit_s(kwargs.get("timeout"))
        try:
            answer = await tasks.within(limit_s, partial(call, *args, **kwargs))
        except TimeoutError as error:
            self._renew()  # Whoever waits still has the old one.
            raise TimeoutError(f"{self._path} gave no answer within {limit_s:g} seconds.") from error
        self._is_proven = True
        return answer

    def _is_full(self, error: Exception) -> bool:
        return isinstance(error, ServiceBusQuotaExceededError) and self._pair.options.on_quota == "divert"

    async def _divert(self, messages: list[ServiceBusMessage | AmqpAnnotatedMessage], limit_s: float | None) -> None:
        """Send to a backlog queue; to another one if that fails, until none is left."""
        if not messages:
            return
        pair = self._pair
        now_ms = pair.options.clock.now_ms()
        left = [to_backlog(message, self._path, now_ms) for message in messages]
        last: Exception | None = None
        while True:
            try:
                sender = await self._choose()
            except BacklogUnavailable as error:
                raise error from last
            queue = self._queue
            assert queue is not None
            try:
                # What went is not sent again to the next queue: it is accepted, and only the rest is left.
                with diverting(self._path, queue, left):
                    while left:
                        part, rest = await tasks.within(OPEN_LIMIT_S, partial(_one_batch, sender, left))
                        if self._is_open:
                            await sender.send_messages(part, timeout=limit_s)
                        else:
                            first = partial(sender.send_messages, part, timeout=limit_s)
                            await tasks.within(_limit_s(limit_s), first)
                            self._is_open = True
                        count, left = len(left) - len(rest), rest
                        pair.reporter.tell(Diverted(self._path, queue, count))
                return
            except MessageSizeExceededError as error:
                # It is so for every backlog queue.
                raise TooLargeToDivert(f"{self._path} has failed over, and {error}", len(left)) from error
            except Exception as error:
                if is_message_fault(error) and not condition(error):
                    raise  # It cannot be encoded: no backlog queue is to leave the rotation for that.
                last = error
                pair.rotation.drop(queue)
                pair.reporter.tell(BacklogFailed(queue, str(error)))
                await self._leave_backlog()

    async def _choose(self) -> ServiceBusSender:
        """Return the sender of this object's backlog queue, or of another if that has left the rotation.

        Raises:
            BacklogUnavailable: None is left.
        """
        rotation = self._pair.rotation
        if self._backlog is not None and self._queue is not None and rotation.is_in(self._queue):
            return self._backlog
        await self._leave_backlog()
        queue = rotation.choose()
        if queue is None:
            raise BacklogUnavailable(
                f"{self._path} has failed over, and all {len(rotation.queues)} backlog queues have failed, too. The "
                "message was not accepted; send it again."
            )
        self._queue = queue
        self._backlog = cast("ServiceBusClient", self._pair.options.secondary).get_queue_sender(queue)
        return self._backlog

    async def _leave_backlog(self) -> None:
        sender, self._backlog = self._backlog, None
        self._is_open = False
        if sender is not None:
            # It is given up, whatever it says.
            with contextlib.suppress(Exception):
                await sender.close()


def _limit_s(timeout: float | None) -> float:
    return OPEN_LIMIT_S if timeout is None else max(0.0, timeout) + GRACE_S


async def _one_batch(
    sender: ServiceBusSender, messages: list[AmqpAnnotatedMessage]
) -> tuple[ServiceBusMessageBatch | AmqpAnnotatedMessage, list[AmqpAnnotatedMessage]]:
    """Return as many of the messages as fit into one batch, and the rest.

    Raises:
        MessageSizeExceededError: The first one fits into none.
    """
    if len(messages) == 1:
        return messages[0], []
    batch = await sender.create_message_batch()
    for index, message in enumerate(messages):
        try:
            batch.add_message(message)
        except MessageSizeExceededError:
            if not index:
                # Alone it may be larger than in a batch.
                return message, messages[1:]
            return batch, messages[index:]
    return batch, []
