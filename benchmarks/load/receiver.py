"""The receiving link: peek-lock, credit topped up at half, one ranged disposition per read."""

from benchmarks.load import wire
from benchmarks.load.link import WINDOW, Link, Target
from benchmarks.load.message import MARKS, Run
from benchmarks.load.wire import Frame, LoadError, unpack_u32


class Receiver(Link):
    """A link that accepts whatever comes and waits for the peer to settle it, if the peer ever does.

    Args:
        target: the peer and the entity.
        run: the run whose messages are expected.
        number: which receiver of the run this is.
        credit: link credit, given again when half of it is used.
        takes_foreign: whether messages without the mark of the run are accepted, too (to empty a queue); otherwise one
            is an error.

    Attributes:
        received: messages received; `settled` of them are settled, by the peer where it confirms settlements.
        marks: the last 24 bytes of each message of the run, see `message`.
        reads: (time, messages received so far) after each read.
    """

    __slots__ = (
        "_credit_end",
        "_frames_in",
        "_mark",
        "_partial",
        "_partial_of",
        "credit",
        "marks",
        "reads",
        "received",
        "takes_foreign",
    )

    def __init__(
        self, target: Target, run: Run, number: int, credit: int = 500, *, takes_foreign: bool = False
    ) -> None:
        self.credit = credit
        self.received = 0
        self.marks: list[bytes] = []
        self.reads: list[tuple[float, int]] = []
        self.takes_foreign = takes_foreign
        self._mark = run.mark
        self._frames_in = 0
        self._partial = b""
        self._partial_of = -1
        self._credit_end = 0
        super().__init__(target, f"receiver-{run.name}-{number}", is_receiver=True)

    def start(self) -> None:
        """Give the first credit."""
        self.write(self._top_up())

    def state(self) -> str:
        """See Link."""
        return f"{self.name} received {self.received}, settled {self.settled}"

    def _top_up(self) -> bytes:
        self._credit_end = self.received + self.credit
        return wire.flow(self._frames_in, WINDOW, 0, WINDOW, self.received, self.credit)

    def feed(self, data: bytes, now: float) -> None:
        """Take transfers and dispositions, and answer the transfers at once."""
        if self._rest:
            data = self._rest + data
        pos, end = 0, len(data)
        first = expected = self.received
        frames = 0
        mark, keep, u32 = self._mark, self.marks.append, unpack_u32
        while end - pos >= 8:
            behind = pos + u32(data, pos)[0]
            if behind > end:
                break
            if behind - pos > 56 and data[pos + 10] == 0x14:
                # a transfer: skip list header and handle, read the delivery-id, know by the mark that it is complete
                frames += 1
                at = pos + 14 if data[pos + 11] == 0xC0 else pos + 20
                ctor = data[at]
                at += 1 if ctor == 0x43 else 2 if ctor == 0x52 else 5
                ctor = data[at]
                if ctor == 0x70:
                    delivery = u32(data, at + 1)[0]
                elif ctor == 0x52:
                    delivery = data[at + 1]
                else:
                    delivery = 0 if ctor == 0x43 else -1
                marks = data[behind - 24 : behind]
                if delivery == expected and marks.startswith(mark):
                    keep(marks)
                    expected += 1
                else:
                    expected += self._general_transfer(wire.read_frame(data, pos, behind), expected)
            elif behind - pos <= 20 or data[pos + 10] != 0x15 or not self._fast_disposition(data, pos + 11, now):
                frame = wire.read_frame(data, pos, behind)
                if frame.code == wire.TRANSFER:
                    frames += 1
                    expected += self._general_transfer(frame, expected)
                else:
                    self._control(frame, now)
            pos = behind
        self._rest = data[pos:]
        self._frames_in += frames
        if expected > first:
            self._answer(first, expected, now)

    def _answer(self, first: int, expected: int, now: float) -> None:
        self.received = expected
        self.reads.append((now, expected))
        confirmed = self.target.confirms_settlements
        answer = wire.accept(first, expected - 1, settled=not confirmed)
        if not confirmed:
            self.settled = expected
            self.log.append((now, first, expected - 1))
        if self._credit_end - expected <= self.credit // 2:
            answer += self._top_up()
        self.write(answer)

    def _general_transfer(self, frame: Frame, expected: int) -> int:
        """Take a transfer that the fast path does not handle: in several frames, or not of this run.

        Returns:
            1 if it completes a delivery, else 0.
        """
        delivery = frame.field(1)
        # the last frame of a delivery may have taken the fast way, so what is kept is good for this delivery only
        continues = self._partial_of == expected
        if delivery != expected and not (delivery is None and continues):
            raise LoadError(f"{self.name}: delivery-id {delivery} came where {expected} was due")
        payload = self._partial + frame.payload if continues else frame.payload
        if frame.field(5):
            self._partial, self._partial_of = payload, expected
            return 0
        marks = payload[-MARKS.size :]
        if marks.startswith(self._mark):
            self.marks.append(marks)
        elif not self.takes_foreign:
            raise LoadError(f"{self.name}: the queue holds a message that this run did not send; empty it first")
        return 1
