# Generated from duobus/ha/aio/outbox_sender.py by `make twins`; change that one.
"""OutboxSender: a send is done when the message is on this machine's disk; the namespace gets it later (I53)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpMessageProperties

from duobus.clock import Entropy
from duobus.concurrency import sync as tasks
from duobus.ha.errors import OutboxFailed, TooLargeToDivert
from duobus.ha.events import Event, OutboxBroken, OutboxOverflowed, OutboxSent, OutboxSetAside, OutboxWaits, Reporter
from duobus.ha.options import LIST_MAX
from duobus.ha.outbox.message import Packed, pack, unpack
from duobus.ha.sdk import listed, prompt
from duobus.ha.sdk_errors import Meaning, explained, is_message_fault, meaning

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from azure.servicebus import ServiceBusMessageBatch
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    from duobus.ha.outbox.plan import OutboxBatch
    from duobus.ha.outbox.queue import Outbox

#: Between two looks of ``flush``, should it not be woken.
LOOK_S: Final = 1.0
#: Bits of the share of a pause that is left to chance.
_CHANCE_BITS: Final = 16
#: What does not pass until somebody mends it, or what nobody knows: the log tells, as not all listen to events.
_WORTH_A_LINE: Final = frozenset({Meaning.OWNER, Meaning.MISSING, Meaning.UNKNOWN})
_log = logging.getLogger("duobus.ha")


def is_refused(error: Exception) -> bool:
    """Return whether the message is at fault, and would be refused again.

    An entity that is away, missing, disabled or full, refused credentials, and a client that its owner closed, are not
    the fault of the message: the message waits until somebody has mended that. It also waits after an unknown error.
    """
    return is_message_fault(error)


class OutboxSender:
    """Stores messages in an outbox, and sends the messages of the outbox.

    ``send_messages`` returns when the message is on disk. From then on the message is sent at least once, after any
    crash. Messages with the same session id stay in order, and so do messages with the same partition key, and messages
    with neither. A message without an id gets a random one, so that duplicate detection of the entity suppresses a
    message that is sent twice.

    Any number of tasks may send at the same time: their messages share a commit.

    Args:
        make_sender: Makes a sender of the SDK, a paired one or a replicating one; called for each of the outbox's
            ``in_flight`` links when it is needed, and again after an error.
        outbox: The file; it stays open when the sender is closed.
        overflow_only: Send at once, and store only messages that are too large to be diverted while the primary is
            away. Otherwise the sender behaves like the sender of ``make_sender``.
        is_refused: Returns for an error whether the message is at fault and has to be set aside.
        on_event: Called with every event of ``duobus.ha.events``.
        entropy: Randomness.
    """

    def __init__(
        self,
        make_sender: Callable[[], Any],
        outbox: Outbox,
        *,
        overflow_only: bool = False,
        is_refused: Callable[[Exception], bool] = is_refused,
        on_event: Callable[[Event], None] | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self._make_sender = make_sender
        self._outbox = outbox
        self._is_refused = is_refused
        self._entropy = entropy if entropy is not None else Entropy()
        self._direct: Any = make_sender() if overflow_only else None
        self._workers: list[tasks.Task] = []
        self._wakes = [tasks.Signal() for _ in range(outbox.in_flight)]
        self._empty = tasks.Signal()
        self._entity = ""
        #: What the last error meant, so that the log says it once.
        self._said: Meaning | None = None
        self.reporter = Reporter(on_event)

    def __enter__(self) -> OutboxSender:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Begin to send the messages of the outbox.

        Raises:
            ValueError: The outbox has a sender already.
        """
        self._outbox.attach(self._wake)
        self._empty.bind()
        for wake in self._wakes:
            wake.bind()
            self._workers.append(tasks.spawn(self._work, wake, name="duobus outbox sender"))

    def close(self) -> None:
        """Stop sending. Messages in the outbox stay there; to have them sent, wait for ``flush`` before."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.cancel()
        for worker in workers:
            worker.ended()
        if workers:
            self._outbox.detach()
        if self._direct is not None:
            _close(self._direct)

    def send_messages(
        self,
        message: ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any] | ServiceBusMessageBatch | Iterable[Any],
        **kwargs: Any,
    ) -> None:
        """Store a message, or all or none of a list or batch; the messages are on disk when this returns.

        Args:
            message: Anything that the SDK's sender takes; up to 10,000 messages.
            **kwargs: With ``overflow_only``, arguments of the SDK's sender; otherwise none are allowed.

        Raises:
            OutboxFull: There is no room; nothing was stored.
            OutboxFailed: The file cannot be used.
            TypeError: The message holds something that AMQP does not have, or an argument is not known.
            ValueError: A message, or the list, is too large.
        """
        messages = listed(message)
        if len(messages) > LIST_MAX:
            raise ValueError(f"a list has up to {LIST_MAX:,} messages, not {len(messages):,}")
        for one in messages:
            self._stamp(one)
        if self._direct is None:
            if kwargs:
                raise TypeError(f"an outbox does not know {', '.join(kwargs)}: the send comes later")
        else:
            try:
                self._direct.send_messages(messages if len(messages) > 1 else messages[0], **kwargs)
            except TooLargeToDivert as error:
                messages = messages[len(messages) - error.left :]
                self._store(messages)
                entity = self._direct.entity_name
                self.reporter.tell(OutboxOverflowed(entity, len(messages), str(error)))
            return
        self._store(messages)

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until no message waits in the outbox; return whether that is so.

        Args:
            seconds: Longest wait; None: as long as it takes. Messages that are set aside do not count.
        """
        end = None if seconds is None else tasks.now() + seconds
        while True:
            self._empty.clear()
            if self._outbox.depth.messages == 0:
                return True
            left_s = LOOK_S if end is None else end - tasks.now()
            if left_s <= 0:
                return False
            # Others may wait for the same, and take the flag down.
            self._empty.wait(min(left_s, LOOK_S))

    def _store(self, messages: list[Any]) -> None:
        packed: list[Packed] = [pack(one) for one in messages]
        if packed:
            tasks.result(self._outbox.store(packed))

    def _stamp(self, message: ServiceBusMessage | AmqpAnnotatedMessage) -> None:
        raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
        properties = raw.properties
        if properties is None:
            raw.properties = properties = AmqpMessageProperties()
        if properties.message_id is None:
            properties.message_id = str(self._entropy.uuid())

    def _wake(self) -> None:
        for wake in self._wakes:
            wake.set_from_anywhere()

    def _work(self, wake: tasks.Signal) -> None:
        """Send batch after batch, over one link."""
        sender: Any = None
        try:
            while True:
                tasks.check()
                wake.clear()
                batch = self._outbox.take()
                if batch is None:
                    wake.wait(self._outbox.wait_s())
                    continue
                messages = self._read(batch)
                if not messages:
                    continue
                if sender is None:
                    sender = self._made(batch)
                    if sender is None:
                        continue
                if not self._send(sender, batch, messages):
                    # A link that failed is not trusted again, whatever the SDK thinks of it.
                    used, sender = sender, None
                    _close(used)
        except OutboxFailed as error:
            self.reporter.tell(OutboxBroken(self._entity, str(error)))
        finally:
            if sender is not None:
                _close(sender)

    def _made(self, batch: OutboxBatch) -> Any:
        """Return a sender; None when none could be made, and the batch waits."""
        try:
            sender = self._make_sender()
            self._entity = str(sender.entity_name)
        except Exception as error:  # noqa: BLE001 - the application's own code, and a client that is closed
            self._put_off(batch, error)
            return None
        return sender

    def _put_off(self, batch: OutboxBatch, error: Exception) -> None:
        """Try a batch again after a pause."""
        text, means = explained(error), meaning(error)
        chance = self._entropy.number(_CHANCE_BITS) / (1 << _CHANCE_BITS)
        pause_ms = self._outbox.on_away(batch, 0.5 + chance / 2)
        left = self._outbox.depth
        self.reporter.tell(OutboxWaits(self._entity, text, pause_ms, left.messages, left.size, means.value))
        if means is not self._said:
            self._said = means
            if means in _WORTH_A_LINE:
                _log.warning("%d messages for %r wait in the outbox: %s", left.messages, self._entity, text)
        self._wake()

    def _send(self, sender: Any, batch: OutboxBatch, messages: list[Any]) -> bool:
        """Send a batch; return whether the link can still be used."""
        outbox, reporter = self._outbox, self.reporter
        try:
            sender.send_messages(messages if len(messages) > 1 else messages[0])
        except Exception as error:  # noqa: BLE001 - whatever it was, the message stays
            if not self._is_refused(error):
                self._put_off(batch, error)
                return False
            text = str(error) or type(error).__name__
            number = outbox.on_refused(batch, text)
            if number is not None:
                reporter.tell(OutboxSetAside(self._entity, number, text))
        else:
            outbox.on_sent(batch)
            self._said = None
            left = outbox.depth
            reporter.tell(OutboxSent(self._entity, len(messages), left.messages, left.size))
        self._after()
        return True

    def _read(self, batch: OutboxBatch) -> list[Any]:
        """Return the messages of a batch; none if some of them are damaged, and the others come again."""
        messages: list[Any] = []
        damaged: list[int] = []
        for item in tasks.result(self._outbox.read(batch)):
            if isinstance(item, int):
                damaged.append(item)
                continue
            number, head, data = item
            try:
                messages.append(unpack(head, data))
            except ValueError:
                damaged.append(number)
        if not damaged:
            return messages
        self._outbox.on_damaged(batch, damaged)
        for number in damaged:
            self.reporter.tell(OutboxSetAside(self._entity, number, "damaged on disk"))
        self._after()
        return []

    def _after(self) -> None:
        """Let others take what may be sent now that a batch is gone."""
        if self._outbox.depth.messages == 0:
            self._empty.set()
        else:
            self._wake()


def _close(sender: Any) -> None:
    # It is given up, whatever it says.
    with contextlib.suppress(Exception):
        prompt(sender).close()
