"""The loop: drive senders and receivers until everything is sent, accepted, received and settled."""

import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from benchmarks.load import wire
from benchmarks.load.link import Link
from benchmarks.load.receiver import Receiver
from benchmarks.load.sender import Sender
from benchmarks.load.wire import LoadError

TICK_MS = 50
"""How long a poll waits at most; bounds how late the end of a timed run is noticed."""
BEAT_SECONDS = 15.0
"""Time between empty frames on links that may be idle; half of any idle time-out that brokers announce is longer."""


@dataclass(frozen=True)
class Limits:
    """When to stop, and how far senders may run ahead.

    Attributes:
        messages: messages to send in all, shared equally by the senders; None for a timed run.
        seconds: time to send for; None for a counted run.
        backlog: messages sent and not yet received at most.
        stall: seconds without a byte from the peer after which the run fails.
    """

    messages: int | None = None
    seconds: float | None = None
    backlog: int = 1 << 60
    stall: float = 30.0


class Exchange:
    """One closed-loop run.

    Args:
        senders: the sending links; none to drain `expected` messages that are there already.
        receivers: the receiving links; none to leave the messages in the queue.
        limits: when to stop.
        expected: messages that lie in the queue before the start.
    """

    def __init__(
        self, senders: Sequence[Sender], receivers: Sequence[Receiver], limits: Limits, expected: int = 0
    ) -> None:
        self._senders = senders
        self._receivers = receivers
        self._limits = limits
        self._expected = expected
        self._sending = bool(senders)
        self._deadline = 0.0
        count = len(senders)
        total = (1 << 60) if limits.messages is None else limits.messages
        # the first senders take the remainder, so that the sum is exactly what was asked for
        self._shares = [total // count + (i < total % count) for i in range(count)]

    def run(self) -> tuple[float, float]:
        """Run to the end.

        Returns:
            When the first message was sent (or the first credit given), and when the last settlement came; seconds.

        Raises:
            LoadError: a message was not accepted, or nothing came for `limits.stall` seconds.
        """
        started = perf_counter()
        self._deadline = started + (1e9 if self._limits.seconds is None else self._limits.seconds)
        for receiver in self._receivers:
            receiver.start()
        self._pump()
        finished = serve([*self._senders, *self._receivers], self._turn, self._limits.stall)
        return started, finished

    def _turn(self, now: float) -> bool:
        if self._sending:
            if now >= self._deadline:
                self._sending = False
            else:
                self._pump()
        return self._is_done()

    def _pump(self) -> None:
        senders = self._senders
        limits = self._limits
        ahead = 0
        if self._receivers:
            ahead = sum(s.sent for s in senders) + self._expected - sum(r.received for r in self._receivers)
        room = limits.backlog - ahead
        left = 0
        for sender, share in zip(senders, self._shares, strict=True):
            room -= sender.pump(min(room, share - sender.sent))
            left += share - sender.sent
        self._sending = left > 0

    def _is_done(self) -> bool:
        if self._sending:
            return False
        sent = 0
        for sender in self._senders:
            if sender.messages_settled < sender.sent:
                return False
            sent += sender.sent
        if not self._receivers:
            return True
        received = sum(r.received for r in self._receivers)
        if received > sent + self._expected:
            raise LoadError(f"{received} messages came, of {sent + self._expected} in the queue")
        return received == sent + self._expected and all(r.settled == r.received for r in self._receivers)


def serve(links: Sequence[Link], turn: Callable[[float], bool], stall: float) -> float:
    """Read and write until `turn`, called after each round of the poll with its time, says that the run is over.

    Returns:
        The time of the last turn, seconds of `perf_counter`.

    Raises:
        LoadError: no byte came for `stall` seconds, a peer broke off, or a link found fault with what came.
    """
    poll = select.poll()
    by_descriptor = {link.sock.fileno(): link for link in links}
    writing = dict.fromkeys(by_descriptor, False)
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    heard = beat = now = perf_counter()
    while not turn(now):
        for descriptor, link in by_descriptor.items():
            if link.wants_to_write != writing[descriptor]:
                writing[descriptor] = link.wants_to_write
                poll.modify(descriptor, select.POLLIN | (select.POLLOUT if link.wants_to_write else 0))
        events = poll.poll(TICK_MS)
        now = perf_counter()
        for descriptor, event in events:
            if _serve_one(by_descriptor[descriptor], event, now):
                heard = now
        if now - heard > stall:
            raise LoadError(f"the peer was silent for {stall:g} s: " + "; ".join(link.state() for link in links))
        if now - beat > BEAT_SECONDS:
            beat = now
            for link in links:
                link.write(wire.EMPTY_FRAME)
    return now


def _serve_one(link: Link, event: int, now: float) -> bool:
    """Handle one event of the poll; return whether bytes came."""
    if event & select.POLLOUT:
        link.flush()
    if not event & (select.POLLIN | select.POLLHUP | select.POLLERR):
        return False
    data = link.read()
    if data is None:
        return False
    link.feed(data, now)
    return True
