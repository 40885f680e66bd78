"""What a topic costs beside a queue, printed as JSON: `python -m benchmarks.fanout [--rounds N] [--seconds S]`.

The broker is in this process, on a store of its own in a file, with every sync; the wire is left out. Three figures:
bytes written for a message of 1 KiB that goes to 10 subscriptions, against 10 sends to a queue; the rate of sends to a
topic of which one subscription takes the message beside 100 that do not, against sends of the same messages to a
queue; and the rate of sends to a topic with 100,000 correlation rules against one with 10. What ends in ``_new`` has
messages each with a property that no other has.

A disk is not as quick in one second as in the next, by more than what is asked for. So slices are short, each round
takes the entities in another order, and what counts is the median of the ratios within a round. The collector of
garbage is set as in a server.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import tempfile
import time
from pathlib import Path
from statistics import median

import msgspec

from duobus.broker import MessageBroker, Queue, ScaleUnit
from duobus.clock import BrokerTime, Clock, Entropy
from duobus.codec import Int, build_message
from duobus.model.batches import Mailbox, SendBatch
from duobus.model.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from duobus.server.process import GC_THRESHOLDS
from duobus.storage.catalog.memory import MemoryCatalog
from duobus.storage.sqlite.store import SqliteStore
from duobus.storage.writers import StoreWriter

NAMESPACE = "bench"
PAYLOAD = build_message(["m1", None, None, "Order-7"], {"color": "red", "region": "r7"}, data=b"x" * 1024)
#: So many that a topic has forgotten the first when it comes again.
NEW = [
    build_message(
        ["m1", None, None, "Order-7"], {"color": "red", "region": "r7", "order": Int(number)}, data=b"x" * 1024
    )
    for number in range(4000)
]
#: Messages of one link's read, as the load generator's senders have them arrive.
READ = 100
#: Commits whose bytes are counted; nobody receives meanwhile, so this is the backlog of each subscription.
SENDS = 20
#: The same for a backlog that outgrows the copies without rows (``stores/folded.py``), so that some get theirs.
MANY_SENDS = 600
#: Rules of a subscription, where there are many.
RULES_EACH = 1000
#: Reads that are under way at once.
IN_FLIGHT = 4


class Box(Mailbox):
    """Counts what came back."""

    def __init__(self) -> None:
        super().__init__()
        self.event = asyncio.Event()

    def wake(self) -> None:
        self.event.set()


async def send(queue: Queue, number: int = 1, payloads: list[bytes] | None = None) -> None:
    """Send messages and wait until they are stored."""
    box = Box()
    queue.send(SendBatch(0, payloads or [PAYLOAD] * number, True, box))
    await box.event.wait()
    assert box.ready[0].error is None, box.ready[0].error


async def rate(queue: Queue, seconds: float, *, are_new: bool = False) -> float:
    """Messages a second, with IN_FLIGHT senders."""
    sent = 0
    reads = [NEW[first : first + READ] if are_new else [PAYLOAD] * READ for first in range(0, len(NEW), READ)]
    end = time.perf_counter() + seconds

    async def sender() -> None:
        nonlocal sent
        while time.perf_counter() < end:
            read = reads[sent // READ % len(reads)]
            sent += READ
            await send(queue, payloads=read)

    started = time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(IN_FLIGHT)))
    return sent / (time.perf_counter() - started)


def written() -> int:
    """Bytes that this process has given to write calls."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


async def bytes_of(queue: Queue, sends: int, number: int = 1) -> float:
    """Bytes written for each message of so many sends, one commit each."""
    before = written()
    for _ in range(sends):
        await send(queue, number)
    return (written() - before) / sends / number


def filtering(number: int, kind: str) -> tuple[RuleDescription, ...]:
    """A rule that takes region ``number`` and no other; that of the benchmark's message is 7."""
    if kind == "sql":
        return (RuleDescription(name="r", filter_type="Sql", sql_filter=f"region = 'r{number}'"),)
    members = {"Properties": {"region": f"r{number}"}}
    return (RuleDescription(name="r", filter_type="Correlation", correlation_filter=members),)


def correlating(rules: int) -> tuple[SubscriptionDescription, ...]:
    """Subscriptions with so many correlation rules, one of which takes the benchmark's message."""
    each = min(rules, RULES_EACH)
    return tuple(
        SubscriptionDescription(
            name=f"s{first}",
            rules=tuple(
                msgspec.structs.replace(filtering(number, "correlation")[0], name=f"r{number}")
                for number in range(first, first + each)
            ),
        )
        for first in range(0, rules, each)
    )


async def measure(folder: Path, rounds: int, seconds: float, rules: int = 100_000) -> dict[str, object]:
    """Everything."""
    loop = asyncio.get_running_loop()
    unit = ScaleUnit(MemoryCatalog(), lambda *_: None)
    writer = StoreWriter(loop, "bench")
    broker = MessageBroker(
        1,
        SqliteStore(str(folder / "bench.db"), 1),
        writer,
        time=BrokerTime(Clock()),
        entropy=Entropy(),
        watcher=unit,
    )
    unit.brokers[1] = broker
    await unit.start(unit.catalog.read())
    size = 81_920
    queue = await unit.create_queue(NAMESPACE, QueueDescription(name="q", max_size_in_megabytes=size))
    ten = tuple(SubscriptionDescription(name=f"s{number}") for number in range(10))
    wide = await unit.topics.create_topic(
        NAMESPACE, TopicDescription(name="wide", max_size_in_megabytes=size, subscriptions=ten)
    )
    topics: dict[str, Queue] = {}
    for kind in ("sql", "correlation"):
        subscriptions = tuple(
            SubscriptionDescription(name=f"s{number}", rules=filtering(number, kind)) for number in range(7, 108)
        )
        about = TopicDescription(name=kind, max_size_in_megabytes=size, subscriptions=subscriptions)
        topics[kind] = await unit.topics.create_topic(NAMESPACE, about)
    single, fanned = await bytes_of(queue, SENDS), await bytes_of(wide, SENDS)
    read, fanned_read = await bytes_of(queue, SENDS, READ), await bytes_of(wide, SENDS, READ)
    long, fanned_long = await bytes_of(queue, MANY_SENDS), await bytes_of(wide, MANY_SENDS)
    # As many subscriptions for few rules as for many: what rules cost is asked for.
    for name, number in (("few", 10), ("many", rules)):
        subscriptions = correlating(number)
        more = max(0, -(-rules // RULES_EACH) - len(subscriptions))
        subscriptions += tuple(SubscriptionDescription(name=f"n{n}", rules=()) for n in range(more))
        about = TopicDescription(name=name, max_size_in_megabytes=size, subscriptions=subscriptions)
        topics[name] = await unit.topics.create_topic(NAMESPACE, about)
    entities = {"queue": queue, **topics, "ten": wide}
    names = [*entities, "queue_new", *(f"{name}_new" for name in topics)]
    rates: dict[str, list[float]] = {name: [] for name in names}
    shuffled = random.Random(5)
    for _ in range(rounds):
        for name in shuffled.sample(names, len(names)):
            entity = entities[name.removesuffix("_new")]
            rates[name].append(await rate(entity, seconds, are_new=name.endswith("_new")))
    await unit.stop()
    writer.stop()
    medians = {name: round(median(found)) for name, found in rates.items()}

    def over(name: str, other: str) -> float:
        return round(median([rate / base for rate, base in zip(rates[name], rates[other], strict=True)]), 3)

    return {
        "bytes_of_a_send": round(single),
        "bytes_of_a_fan_out_to_10": round(fanned),
        "ten_sends_over_one_fan_out": round(10 * single / fanned, 2),
        "bytes_of_a_send_onto_a_backlog": round(long),
        "bytes_of_a_fan_out_to_10_onto_a_backlog": round(fanned_long),
        "ten_sends_over_one_fan_out_onto_a_backlog": round(10 * long / fanned_long, 2),
        "bytes_of_each_of_100_sends": round(read),
        "bytes_of_each_of_100_fan_outs_to_10": round(fanned_read),
        "ten_of_100_sends_over_one_fan_out": round(10 * read / fanned_read, 2),
        "messages_per_second": medians,
        "one_of_101_sql_filters_over_queue": over("sql", "queue"),
        "one_of_101_correlation_filters_over_queue": over("correlation", "queue"),
        "one_of_101_sql_filters_over_queue_new": over("sql_new", "queue_new"),
        "one_of_101_correlation_filters_over_queue_new": over("correlation_new", "queue_new"),
        "many_correlation_rules_over_10": over("many", "few"),
        "many_correlation_rules_new_over_10": over("many_new", "few_new"),
        "copies_per_second_to_10": medians["ten"] * 10,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--seconds", type=float, default=0.06)
    parser.add_argument("--rules", type=int, default=100_000, help="correlation rules, where there are many")
    arguments = parser.parse_args()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(Path(folder), arguments.rounds, arguments.seconds, arguments.rules))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
