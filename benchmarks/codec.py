"""What the codec, the AMQP engine and a fragment cost, in microseconds of one thread per operation, printed as JSON.

The best of several rounds counts: other work on the machine can only add to it. Run: ``python -m benchmarks.codec``,
or of the compiled twin: ``PYTHONPATH=.build/compiled python -m benchmarks.codec``.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable

from duobus.amqp import (
    ACCEPTED,
    AttachReceived,
    Connection,
    ConnectionSettings,
    Link,
    OpenReceived,
    SaslInitReceived,
    Source,
    Target,
)
from duobus.codec import Timestamp, annotations_section, build_message, decode, encode, header_section, scan, scan_plain
from duobus.fragment.fragment import Fragment
from duobus.fragment.send import Run
from duobus.fragment.settlement import COMPLETE, SettleBatch
from duobus.fragment.source import SourceSettings
from duobus.gateway.amqp.mapping import HeadMaker
from duobus.model.batches import Mailbox, SendBatch
from duobus.storage.interface import CommitBatch, SourceRow

ROUNDS = 30
RUN = 200
BODY = b"x" * 1024


def best(action: Callable[[], object], per_call: int = 1, calls: int = 200) -> float:
    """Return the microseconds of one operation, of which one call of ``action`` does ``per_call``."""
    least = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            action()
        least = min(least, time.perf_counter() - start)
    return round(least / calls / per_call * 1e6, 3)


def carry(source: Connection, destination: Connection) -> None:
    """Move what one end wrote to the other and give the answers that its owner would give."""
    events = destination.receive(source.take_output(), 0)
    while events:
        for event in events:
            if isinstance(event, SaslInitReceived):
                destination.sasl_outcome(True)
            elif isinstance(event, OpenReceived) and destination.is_acceptor:
                destination.open(0)
            elif isinstance(event, AttachReceived):
                event.link.accept()
                event.link.grant(2**31 - 1)
        events = destination.receive(b"", 0)


def connected() -> tuple[Connection, Connection, Link]:
    """Return a client, a server, and the client's end of a link on which it sends."""
    wide = 2**31 - 1
    client = Connection(ConnectionSettings("client", mechanisms=("ANONYMOUS",)), acceptor=False)
    server = Connection(ConnectionSettings("server", incoming_window=wide), acceptor=True)
    client.open(0)
    link = client.begin().attach_sender("link", Source(), Target(address="queue"))
    carry(client, server)
    carry(server, client)
    return client, server, link


def measure_engine() -> dict[str, float]:
    """Return the costs of the engine."""
    message = build_message(["id-1234567890"], data=BODY)
    heads = [header_section(True, None, None, True, 0) + annotations_section({"x-opt-sequence-number": 5})] * RUN
    payloads = [message] * RUN
    figures = {}

    client, server, link = connected()

    def send() -> None:
        link.send_run(b"12345678", 1, heads, payloads, False)
        client.out.clear()

    def send_and_join() -> None:
        link.send_run(b"12345678", 1, heads, payloads, False)
        client.take_output()

    figures["send_run, 1 KiB message"] = best(send, RUN, 20)
    figures["send_run and take_output, 1 KiB message"] = best(send_and_join, RUN, 20)

    client, server, link = connected()
    wires = []
    for _ in range(ROUNDS * 20):
        link.send_run(b"12345678", 1, [b""] * RUN, payloads, False)
        wires.append(client.take_output())
    waiting = iter(wires)
    figures["receive, 1 KiB transfer"] = best(lambda: server.receive(next(waiting), 0), RUN, 20)

    client, server, link = connected()
    session = link.session
    for name, ids in (("in order", range(RUN)), ("scattered", range(0, 2 * RUN, 2))):
        for n in ids:
            session.disposition(True, n, n, ACCEPTED, False)
        wire = client.take_output()
        figures[f"receive, one disposition, {name}"] = best(lambda wire=wire: server.receive(wire, 0), RUN, 20)  # type: ignore[misc]
    figures["write, one disposition"] = best(lambda: session.disposition(True, 5, 9, ACCEPTED, False))
    return figures


def measure_codec() -> dict[str, float]:
    """Return the costs of the codec."""
    plain = build_message(["id-1234567890"], data=BODY, header=header_section(True, 4))
    nulls = build_message(["id-1234567890"] + [None] * 12, {"a": 1}, data=BODY)
    session = build_message(["id-1234567890"] + [None] * 9 + ["session-1"], data=BODY)
    keyed = build_message(["id-1234567890"], data=BODY, annotations={"x-opt-partition-key": "key"})
    value = {"text": "value", "number": 5, "id": uuid.UUID(int=7), "when": Timestamp(9), "list": [1, 2, 3.5, None]}
    encoded = encode(value)
    return {
        "scan_plain, header, message-id, data": best(lambda: scan_plain(plain, True)),
        "scan_plain, 13 fields, application properties, data": best(lambda: scan_plain(nulls, True)),
        "scan, message-id, data": best(lambda: scan(plain)),
        "scan, session": best(lambda: scan(session)),
        "scan, partition key": best(lambda: scan(keyed)),
        "encode, map of 5": best(lambda: encode(value)),
        "decode, map of 5": best(lambda: decode(encoded)),
    }


def measure_fragment() -> dict[str, float]:
    """Return the costs of a fragment, without its store."""
    payloads = [build_message(["id-1234567890"], data=BODY)] * RUN
    fragment = Fragment("handle", 1, 1, 1, bytes(10))
    source = fragment.add_source(SourceRow(1, 1, 0), SourceSettings(default_ttl_ms=3_600_000))
    mailbox = Mailbox()

    def commit(command: Run | SettleBatch) -> None:
        batch = CommitBatch(1, 1_000)
        fragment.apply(command, 1_000, batch)
        fragment.touch(source, batch, RUN)
        fragment.release(command, 1_000)

    def live() -> None:
        commit(Run("handle", 0, SendBatch(0, payloads, True, mailbox), None, None))
        first, messages, _ = fragment.lock(0, 0, RUN, 1_000)
        ranges = [(first, len(messages))]
        commit(SettleBatch("handle", 0, None, prefix=fragment.prefix, outcome=COMPLETE, ranges=ranges))
        # what a lock leaves behind until its end
        source.ends.clear()

    commit(Run("handle", 0, SendBatch(0, payloads, True, mailbox), None, None))
    _, messages, _ = fragment.lock(0, 0, RUN, 1_000)
    maker = HeadMaker(3_600_000, locks=True)
    return {
        "fragment, one message enqueued, locked and completed": best(live, RUN, 20),
        "head of one message": best(lambda: maker.heads(messages, 1, fragment.prefix, 1, 61_000), RUN, 20),
    }


def main() -> None:
    """Measure everything and print it."""
    print(json.dumps({"unit": "us", **measure_codec(), **measure_engine(), **measure_fragment()}, indent=2))


if __name__ == "__main__":
    main()
