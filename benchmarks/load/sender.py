"""The sending links: single messages, and batches of the Service Bus format."""

from itertools import repeat
from time import perf_counter

from benchmarks.load import wire
from benchmarks.load.link import Link, Target
from benchmarks.load.message import BatchTemplate, FrameTemplate, Run, transfer_head
from benchmarks.load.wire import LoadError, unpack_u32

BURST = 256
"""Messages per write: large enough to be cheap, small enough that the first of a burst is not stale when it leaves."""


class Sender(Link):
    """A link that keeps up to `window` messages without an outcome in flight.

    Args:
        target: the peer and the entity.
        run: the run whose mark the messages bear.
        number: which sender of the run this is.
        window: messages in flight at most.
        body_bytes: bytes of each body, at least `message.BODY_MIN`.

    Attributes:
        sent: messages sent; `settled` of them are accepted.
        sent_at: the time of sending of each delivery, seconds.
        per_delivery: messages in each delivery.
    """

    __slots__ = ("_template", "number", "per_delivery", "sent", "sent_at", "window")

    def __init__(self, target: Target, run: Run, number: int, window: int, body_bytes: int) -> None:
        self.number = number
        self.window = window
        self.sent = 0
        self.sent_at: list[float] = []
        self.per_delivery = 1
        self._template = FrameTemplate(run, number, body_bytes, durable=target.wants_durable)
        super().__init__(target, f"sender-{run.name}-{number}", is_receiver=False)
        if self._template.size > self.max_frame:
            self.close()
            raise LoadError(f"a message of {self._template.size} bytes does not fit a frame of {self.max_frame}")

    @property
    def messages_settled(self) -> int:
        """Messages accepted."""
        return self.settled * self.per_delivery

    def state(self) -> str:
        """See Link."""
        return (
            f"{self.name} sent {self.sent}, accepted {self.messages_settled}, credit up to {self.credit_limit}, "
            f"session window up to {self.frame_limit}, at {self.frames_out}"
        )

    def pump(self, quota: int) -> int:
        """Send what window, credit and the peer's session window allow, `quota` messages at most.

        Returns:
            How many messages were sent.
        """
        if self._out:
            return 0
        sent = self.sent
        limit = min(self.settled + self.window, self.credit_limit, sent + self.frame_limit - self.frames_out)
        limit = min(limit, sent + quota)
        if sent >= limit:
            return 0
        template = self._template
        pack, start, tag = template.pack, template.start, template.tag_start
        text, rest = template.id_start, template.rest
        first = sent
        while sent < limit and not self._out:
            stop = min(limit, sent + BURST)
            now = perf_counter()
            self.sent_at.extend(repeat(now, stop - sent))
            self.write(b"".join([pack(start, n, tag, n, text, b"%08x" % n, rest, n, now) for n in range(sent, stop)]))
            sent = stop
        self.sent = sent
        self.frames_out += sent - first
        return sent - first

    def feed(self, data: bytes, now: float) -> None:
        """Take dispositions and flows."""
        if self._rest:
            data = self._rest + data
        pos, end = 0, len(data)
        while end - pos >= 8:
            behind = pos + unpack_u32(data, pos)[0]
            if behind > end:
                break
            known = behind - pos > 20 and data[pos + 10] == wire.DISPOSITION and data[pos + 4] == 2
            if not known or not self._fast_disposition(data, pos + 11, now):
                self._control(wire.read_frame(data, pos, behind), now)
            pos = behind
        self._rest = data[pos:]


class BatchSender(Sender):
    """A sender of whole batches: each delivery holds `per_delivery` messages, accepted or rejected together.

    Args:
        target, run, number, body_bytes: as for `Sender`.
        window: batches in flight at most.
        per_delivery: messages in a batch.
    """

    __slots__ = ("_batch",)

    def __init__(self, target: Target, run: Run, number: int, window: int, body_bytes: int, per_delivery: int) -> None:
        super().__init__(target, run, number, window, body_bytes)
        self.per_delivery = per_delivery
        self._batch = BatchTemplate(run, number, body_bytes, per_delivery, durable=target.wants_durable)

    def pump(self, quota: int) -> int:
        """Send what window, credit and the session window allow, as whole batches of `quota` messages at most."""
        first = len(self.sent_at)
        delivery = first
        room = self.max_frame - 64
        frames = -(-self._batch.size // room)
        limit = min(self.settled + self.window, self.credit_limit, first + quota // self.per_delivery)
        while delivery < limit and not self._out and self.frames_out + frames <= self.frame_limit:
            now = perf_counter()
            self.sent_at.append(now)
            self.write(self._frames(delivery, self._batch.payload(delivery, now), room))
            self.frames_out += frames
            delivery += 1
        self.sent = delivery * self.per_delivery
        return (delivery - first) * self.per_delivery

    @staticmethod
    def _frames(delivery: int, payload: bytes, room: int) -> bytes:
        tag = wire.binary(delivery.to_bytes(4, "big"))
        parts = []
        for at in range(0, len(payload), room):
            more = wire.TRUE if at + room < len(payload) else wire.FALSE
            head = transfer_head(wire.uint(delivery), tag, wire.uint(wire.BATCH_FORMAT), more)
            parts.append(wire.frame(head + payload[at : at + room]))
        return b"".join(parts)
