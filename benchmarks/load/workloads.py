"""The workloads of the project: what is measured, by name (docs/explanation/performance.md).

A100, A1000: send with so many unsettled in flight, all accepted. B: drain preloaded messages by peek-lock, credit 500,
and wait for the broker's settlement. C1x1, C4x4: senders and receivers at once, in-flight 1,000 per sender, backlog
under 5,000. D: one message in flight, sent and received. E1, E10: batches of 100 messages in one transfer, so many in
flight. S4x4: as C4x4, with every message in one of 1,000 sessions at random, all of which are held. M1000: 1,000
senders, each on a connection and a queue of its own, with one message in flight each.
"""

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import perf_counter, process_time
from typing import Any

from benchmarks.load.exchange import Exchange, Limits, serve
from benchmarks.load.link import Target
from benchmarks.load.many import run_many
from benchmarks.load.message import Run
from benchmarks.load.receiver import Receiver
from benchmarks.load.sender import BatchSender, Sender
from benchmarks.load.sessions import SUFFIX, SessionReceiver, SessionSender
from benchmarks.load.verify import check_accepted, check_received, end_to_end_latencies, percentile, send_latencies
from benchmarks.load.wire import LoadError

CREDIT = 500
PER_BATCH = 100
BACKLOG = 5000
C_WINDOW = 1000


class Observer:
    """Told when the measured part of a workload begins and ends; the runner reads the broker's CPU time there."""

    def begin(self) -> None:
        """The links are open, the first message is about to go."""

    def end(self) -> None:
        """The last settlement has come."""


@dataclass(frozen=True)
class Workload:
    """The parameters of a workload.

    Attributes:
        name: as given.
        senders, receivers: how many links; B has no sender that is measured.
        window: deliveries in flight per sender.
        per_batch: messages in a transfer, 1 for ordinary ones.
        limits: when to stop.
        body_bytes: bytes of each body.
        credit: credit of each receiver.
        sessions: whether messages belong to sessions.
        queues: how many queues there are, one for each sender (see `queue_name`); 0 for the one of the target.
    """

    name: str
    senders: int
    receivers: int
    window: int
    limits: Limits
    per_batch: int = 1
    body_bytes: int = 1024
    credit: int = CREDIT
    sessions: bool = False
    queues: int = 0


@dataclass(frozen=True)
class Result:
    """What a run measured; times in milliseconds, rates in messages per second, CPU in microseconds per message."""

    workload: str
    messages: int
    seconds: float
    rate: float
    send_p50_ms: float | None
    send_p99_ms: float | None
    end_to_end_p50_ms: float | None
    end_to_end_p99_ms: float | None
    generator_cpu_us: float

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


def parse(name: str, limits: Limits) -> Workload:
    """Make the workload called `name`: A<window>, B, C or S<senders>x<receivers>, D, E<batches in flight> or M<queues>.

    Args:
        name: see above.
        limits: when to stop; B needs a number of messages and takes 100,000 without one.

    Raises:
        ValueError: no workload is called so.
    """
    if match := re.fullmatch(r"A(\d+)", name):
        return Workload(name, 1, 0, int(match[1]), limits)
    if name == "B":
        messages = 100_000 if limits.messages is None else limits.messages
        return Workload(name, 0, 1, C_WINDOW, replace(limits, messages=messages, seconds=None))
    if match := re.fullmatch(r"C(\d+)x(\d+)", name):
        return Workload(name, int(match[1]), int(match[2]), C_WINDOW, replace(limits, backlog=BACKLOG))
    if match := re.fullmatch(r"S(\d+)x(\d+)", name):
        ahead = replace(limits, backlog=BACKLOG)
        return Workload(name, int(match[1]), int(match[2]), C_WINDOW, ahead, sessions=True)
    if name == "D":
        return Workload(name, 1, 1, 1, replace(limits, backlog=1))
    if match := re.fullmatch(r"E(\d+)", name):
        return Workload(name, 1, 0, int(match[1]), _whole_batches(limits), per_batch=PER_BATCH)
    if match := re.fullmatch(r"M([1-9]\d*)", name):
        queues = int(match[1])
        return Workload(name, queues, 0, 1, limits, queues=queues)
    raise ValueError(f"no workload is called {name!r}: try A100, A1000, B, C1x1, C4x4, S4x4, D, E1, E10 or M1000")


def queue_name(queue: str, number: int) -> str:
    """Return the name of one of the queues of a workload that has several; `queue` is the name of the plain one."""
    return f"{queue}-{number:04d}"


def _whole_batches(limits: Limits) -> Limits:
    if limits.messages is None:
        return limits
    return replace(limits, messages=-(-limits.messages // PER_BATCH) * PER_BATCH)


def run(target: Target, workload: Workload, observer: Observer | None = None) -> Result:
    """Run a workload on an empty queue and leave the queue empty.

    Raises:
        LoadError: a message was lost, doubled or not accepted, or the peer misbehaved: the measurement is void.
    """
    this = Run()
    observer = observer or Observer()
    if workload.sessions:
        target = target._replace(address=target.address + SUFFIX)
    with _collector_off(), ExitStack() as stack:
        preloaded = 0
        if workload.senders == 0:
            preloaded = _preload(target, this, workload)
        senders = _open_senders(stack, target, this, workload)
        receivers = _open_receivers(stack, target, this, workload)
        if workload.queues:
            return _many(senders, target, this, workload, observer)
        result = _measure(senders, receivers, workload, preloaded, observer)
        if senders and not receivers:
            _drain(target, this, workload, {sender.number: sender.sent for sender in senders})
    return result


def _open_receivers(stack: ExitStack, target: Target, this: Run, workload: Workload) -> list[Receiver]:
    receivers: list[Receiver] = []
    for number in range(workload.receivers):
        if workload.sessions:
            receiver: Receiver = SessionReceiver(target, this, number, workload.receivers)
        else:
            receiver = Receiver(target, this, number, workload.credit)
        receivers.append(stack.enter_context(closing(receiver)))
    return receivers


def _open_senders(stack: ExitStack, target: Target, this: Run, workload: Workload) -> list[Sender]:
    senders: list[Sender] = []
    for number in range(workload.senders):
        own = target._replace(address=queue_name(target.address, number)) if workload.queues else target
        plain = (own, this, number, workload.window, workload.body_bytes)
        if workload.sessions:
            sender: Sender = SessionSender(*plain)
        else:
            sender = BatchSender(*plain, workload.per_batch) if workload.per_batch > 1 else Sender(*plain)
        senders.append(stack.enter_context(closing(sender)))
    return senders


def _measure(
    senders: Sequence[Sender],
    receivers: Sequence[Receiver],
    workload: Workload,
    preloaded: int,
    observer: Observer,
) -> Result:
    work: Callable[[], tuple[float, float]] = Exchange(senders, receivers, workload.limits, preloaded).run
    if workload.queues:
        work = partial(run_many, senders, workload.limits)
    observer.begin()
    cpu = process_time()
    started, finished = work()
    cpu = process_time() - cpu
    observer.end()
    counts = {sender.number: sender.sent for sender in senders} or {0: preloaded}
    for sender in senders:
        check_accepted(sender)
    if receivers:
        check_received(receivers, counts)
    messages = sum(counts.values())
    if not messages:
        raise LoadError("not one message went through")
    send = send_latencies(senders)
    # preloaded messages were sent long before: their age says nothing
    through = end_to_end_latencies(receivers) if senders else []
    return Result(
        workload.name,
        messages,
        finished - started,
        messages / (finished - started),
        _milliseconds(percentile(send, 0.5)),
        _milliseconds(percentile(send, 0.99)),
        _milliseconds(percentile(through, 0.5)),
        _milliseconds(percentile(through, 0.99)),
        cpu / messages * 1e6,
    )


def _many(senders: Sequence[Sender], target: Target, this: Run, workload: Workload, observer: Observer) -> Result:
    """Measure senders on queues of their own, and then empty queue after queue, each by a receiver of its own."""
    result = _measure(senders, [], workload, 0, observer)
    for sender in senders:
        sender.close()
    plain = replace(workload, queues=0)
    for sender in senders:
        own = target._replace(address=queue_name(target.address, sender.number))
        _drain(own, this, plain, {sender.number: sender.sent})
    return result


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _preload(target: Target, this: Run, workload: Workload) -> int:
    with closing(Sender(target, this, 0, workload.window, workload.body_bytes)) as sender:
        Exchange([sender], [], workload.limits).run()
        check_accepted(sender)
        return sender.sent


def _drain(target: Target, this: Run, workload: Workload, counts: dict[int, int]) -> None:
    with closing(Receiver(target, this, 0, workload.credit)) as receiver:
        Exchange([], [receiver], Limits(stall=workload.limits.stall), sum(counts.values())).run()
        check_received([receiver], counts)


def purge(target: Target, silence: float = 1.0) -> int:
    """Accept whatever lies in the queue, of any run, until nothing came for `silence` seconds.

    Returns:
        How many messages there were.
    """
    with closing(Receiver(target, Run(), 0, CREDIT, takes_foreign=True)) as receiver:
        since, count = perf_counter(), -1

        def quiet(now: float) -> bool:
            nonlocal since, count
            if receiver.received != count:
                since, count = now, receiver.received
            return now - since > silence and receiver.settled == receiver.received

        receiver.start()
        serve([receiver], quiet, silence + 30.0)
        return receiver.received


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keep the garbage collector from scanning the logs of the run; what a run allocates has no cycles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
