"""Many senders on many queues, one message in flight each.

The loop of `exchange` looks at every link in every turn, which is right for a few busy links; with a thousand links
that would take the generator longer than the broker. This loop looks at links that were answered only.
"""

import select
from collections.abc import Sequence
from time import perf_counter

from benchmarks.load.exchange import BEAT_SECONDS, TICK_MS, Limits
from benchmarks.load.sender import Sender
from benchmarks.load.wire import EMPTY_FRAME, LoadError


def run_many(senders: Sequence[Sender], limits: Limits) -> tuple[float, float]:
    """Let each sender send again as soon as its message was accepted, until time or messages are used up.

    Returns:
        When the first message was sent and when the last one was accepted; seconds.

    Raises:
        LoadError: a message was not accepted, or nothing came for `limits.stall` seconds.
    """
    left = (1 << 60) if limits.messages is None else limits.messages
    by_descriptor = {sender.sock.fileno(): sender for sender in senders}
    with select.epoll() as poll:
        for descriptor in by_descriptor:
            poll.register(descriptor, select.EPOLLIN)
        started = heard = beat = now = perf_counter()
        deadline = started + (1e9 if limits.seconds is None else limits.seconds)
        waiting = 0
        for sender in senders:
            if waiting < left:
                waiting += _send(sender)
        left -= waiting
        while waiting:
            events = poll.poll(TICK_MS / 1000)
            now = perf_counter()
            for descriptor, _ in events:
                heard = now
                sender = by_descriptor[descriptor]
                data = sender.read()
                if data is None:
                    continue
                before = sender.settled
                sender.feed(data, now)
                if sender.settled > before:
                    waiting -= 1
                    if left > 0 and now < deadline:
                        sent = _send(sender)
                        waiting += sent
                        left -= sent
            if now - heard > limits.stall:
                raise LoadError(f"the peer was silent for {limits.stall:g} s, with {waiting} messages not accepted")
            if now - beat > BEAT_SECONDS:
                beat = now
                for sender in senders:
                    sender.write(EMPTY_FRAME)
    return started, now


def _send(sender: Sender) -> int:
    sent = sender.pump(1)
    if sender.wants_to_write:
        raise LoadError(f"{sender.name}: the socket did not take the one message that was in flight")
    if not sent:
        raise LoadError(f"{sender.name}: the peer gave no credit for one message")
    return sent
