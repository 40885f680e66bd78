"""What a hop costs: ``python -m benchmarks.forwarding [--messages 20000] [--rounds 5]``.

In one process, without a network, over real stores: the rate at which a queue's backlog of 1 KiB messages is forwarded
to another queue, as a share of the rate at which the same messages are sent to a queue, in interleaved rounds of one
run. Once with both queues in one store, where a hop is one commit, and once in two, where it is two.
"""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import msgspec

from duobus.broker import MessageBroker, Queue, ScaleUnit, transfer_message_count
from duobus.clock import BrokerTime, Clock, Entropy
from duobus.codec import build_message
from duobus.model.batches import Mailbox, SendBatch
from duobus.model.descriptions import QueueDescription
from duobus.storage.catalog.memory import MemoryCatalog
from duobus.storage.sqlite.store import SqliteStore
from duobus.storage.writers import StoreWriter

BODY_BYTES = 1024
#: Messages of one send, about what one read of a busy link brings; and sends that are under way at a time.
BATCH, WINDOW = 50, 20


class _Replies(Mailbox):
    """Counts what was stored."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = 0
        self.event = asyncio.Event()

    def wake(self) -> None:
        """See Mailbox."""
        for answer in self.ready:
            assert answer.error is None, answer.error
            self.stored += answer.batch.n
        self.ready = []
        self.event.set()


async def send(queue: Queue, messages: int) -> float:
    """Send so many messages; how many a second were stored."""
    payload = build_message(["m"], data=b"x" * BODY_BYTES)
    replies = _Replies()
    sent = 0
    began = perf_counter()
    while replies.stored < messages:
        while sent < messages and sent - replies.stored < BATCH * WINDOW:
            queue.send(SendBatch(0, [payload] * BATCH, True, replies))
            sent += BATCH
        replies.event.clear()
        await replies.event.wait()
    return messages / (perf_counter() - began)


async def forward(unit: ScaleUnit, origin: Queue, target: Queue, messages: int) -> float:
    """Forward what lies in a queue; how many a second have left it."""
    about = origin.description
    began = perf_counter()
    await unit.update_queue("bench", msgspec.structs.replace(about, forward_to=target.path))
    while transfer_message_count(origin):
        # Behind the commit under way.
        await origin.fragments[0].broker.use(lambda: None)
    rate = messages / (perf_counter() - began)
    assert target.numbers()[0][0] == messages
    await unit.update_queue("bench", about)
    return rate


async def measure(folder: Path, messages: int, rounds: int) -> dict[str, Any]:
    """All rounds: rates of sends and of hops, and the median of their ratios in the rounds."""
    catalog = MemoryCatalog()
    unit = ScaleUnit(catalog, lambda *event: None)
    loop = asyncio.get_running_loop()
    writers = []
    for number in (1, 2):
        store, writer = SqliteStore(str(folder / f"{number}.db"), number), StoreWriter(loop)
        time = BrokerTime(Clock())
        writers.append(writer)
        unit.brokers[number] = MessageBroker(number, store, writer, time=time, entropy=Entropy(), watcher=unit)
    await unit.start(catalog.read())
    rates: dict[str, list[float]] = {"send": [], "hop within a store": [], "hop between stores": []}
    for turn in range(rounds):
        # Turn by turn to one store and the other.
        names = ("plain", "first", "other", "near", "filler", "far")
        made = [await unit.create_queue("bench", QueueDescription(name=f"{name}{turn}")) for name in names]
        plain, first, other, near, _, far = made
        rates["send"].append(await send(plain, messages))
        for origin, target, name in ((first, near, "hop within a store"), (other, far, "hop between stores")):
            is_one = origin.fragments[0].broker is target.fragments[0].broker
            assert is_one == (name == "hop within a store"), "the stores are not as they were meant to be"
            await send(origin, messages)
            rates[name].append(await forward(unit, origin, target, messages))
        for queue in made:
            await unit.delete_queue("bench", queue.path)
    await unit.stop()
    for writer in writers:
        writer.stop()
    ratios = {
        name: median(hop / sent for hop, sent in zip(found, rates["send"], strict=True))
        for name, found in rates.items()
        if name != "send"
    }
    return {"rates": {name: round(median(found)) for name, found in rates.items()}, "ratios": ratios}


def main() -> None:
    """Parse the command line and print what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forwarding", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--messages", type=int, default=20_000, help="messages of a round (20000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (5)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="duobus-forwarding-") as folder:
        found = asyncio.run(measure(Path(folder), arguments.messages, arguments.rounds))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
