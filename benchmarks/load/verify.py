"""What is worked out after a run: whether it was right, and its latencies."""

from collections.abc import Sequence

from benchmarks.load.message import MARKS
from benchmarks.load.receiver import Receiver
from benchmarks.load.sender import Sender
from benchmarks.load.wire import LoadError


def check_accepted(sender: Sender) -> None:
    """Make sure that each delivery was accepted exactly once.

    Raises:
        LoadError: one was not, or twice.
    """
    _check_ranges(sender.name, "accepted", [(first, last) for _, first, last in sender.log], len(sender.sent_at))


def check_received(receivers: Sequence[Receiver], counts: dict[int, int]) -> None:
    """Make sure that each message came exactly once, and that each was settled exactly once.

    Args:
        receivers: the receivers of the run.
        counts: messages sent, by number of the sender.

    Raises:
        LoadError: a message is missing, came twice, or was never sent.
    """
    seen: set[tuple[int, int]] = set()
    total = 0
    for receiver in receivers:
        ranges = [(first, last) for _, first, last in receiver.log]
        _check_ranges(receiver.name, "settled", ranges, receiver.received)
        for _, sender, number, _ in MARKS.iter_unpack(b"".join(receiver.marks)):
            if number >= counts.get(sender, 0):
                raise LoadError(f"message {number} of sender {sender} came, which was never sent")
            seen.add((sender, number))
        total += len(receiver.marks)
    if len(seen) != total:
        raise LoadError(f"{total - len(seen)} messages came more than once")
    if total != sum(counts.values()):
        raise LoadError(f"{total} messages came of {sum(counts.values())} sent")


def _check_ranges(name: str, word: str, ranges: list[tuple[int, int]], count: int) -> None:
    due = 0
    for first, last in sorted(ranges):
        if first != due or last < first:
            raise LoadError(f"{name}: deliveries up to {due - 1} are {word}, then come {first} to {last}")
        due = last + 1
    if due != count:
        raise LoadError(f"{name}: {due} deliveries are {word} of {count}")


def send_latencies(senders: Sequence[Sender]) -> list[float]:
    """Return the time from sending to acceptance of each delivery, seconds, sorted."""
    times: list[float] = []
    for sender in senders:
        sent_at = sender.sent_at
        for now, first, last in sender.log:
            times.extend([now - then for then in sent_at[first : last + 1]])
    times.sort()
    return times


def end_to_end_latencies(receivers: Sequence[Receiver]) -> list[float]:
    """Return the time from sending to receiving of each message, seconds, sorted."""
    times: list[float] = []
    for receiver in receivers:
        sent_at = [mark[3] for mark in MARKS.iter_unpack(b"".join(receiver.marks))]
        before = 0
        for now, received in receiver.reads:
            times.extend([now - then for then in sent_at[before:received]])
            before = received
    times.sort()
    return times


def percentile(times: Sequence[float], share: float) -> float | None:
    """Return the value below which `share` (0 to 1) of the sorted `times` lie; None when there are none."""
    if not times:
        return None
    return times[min(len(times) - 1, int(share * len(times)))]
