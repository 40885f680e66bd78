"""What a pair costs and how quick it is, as JSON: ``python -m benchmarks.paired [--pairs 20] [--quick]``.

Over two brokers of its own and the official SDK:

- *healthy*: single awaited sends and lists through the SDK's sender and through a paired one, in interleaved pairs of
  one run; the median of their ratios, beside that of two senders of the SDK. The processor time that the pair adds to a
  call, and to a message of a list, is measured over senders that do nothing, since it is far below what the SDK's own
  varies by.
- *passive*: the same for passive replication.
- *failover*: from the first failed send to ``FailoverEngaged``, beyond the interval; and from the primary's return to
  ``PrimaryHealthy``, beside the ping interval.
- *syphon*: messages a second from a backlog queue to an entity, against a loop of the SDK that receives as many, sends
  them as one list and completes them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from duobus.ha.aio import PassiveReplicationSender, Syphon, pair_namespace
from duobus.ha.aio import backlog_queues as backlog
from duobus.ha.aio.paired_sender import PairedSender
from duobus.ha.aio.syphon import BATCH
from duobus.ha.events import Event, FailoverEngaged, PrimaryHealthy, Reporter, SendFailed, Syphoned, SyphonPolled
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.transfer import to_backlog
from duobus.testing.server import ServerProcess, queues_config
from duobus_demo.clients import silence_sdk_logs

NAME = "contoso"
QUEUES = backlog.paths(NAME, 2)
BODY = b"x" * 1024
LIST = 100
INTERVAL = timedelta(seconds=1)
PING = timedelta(seconds=1)
#: A body that is sent again and again; the SDK encodes it each time.
CALLS = 20_000
#: Calls of one way, then of the other.
SLICE = 5


class Nobody:
    """A sender that does nothing, so that what is around it can be measured."""

    entity_name = "orders"
    fully_qualified_namespace = "nobody"

    async def send_messages(self, message: Any, timeout: float | None = None, **_: Any) -> None:  # noqa: ASYNC109
        return None

    async def close(self) -> None:
        return None


def client(server: ServerProcess) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(server.connection_string, retry_total=0)


async def rate_of(send: Callable[[Any], Awaitable[None]], what: Any, seconds: float) -> float:
    """Calls a second, one after the other."""
    calls = 0
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        for _ in range(5):
            await send(what)
        calls += 5
    return calls / elapsed


async def ratios_of(
    plain: Callable[[Any], Awaitable[None]],
    other: Callable[[Any], Awaitable[None]],
    what: Any,
    pairs: int,
    seconds: float,
) -> dict[str, float]:
    """Rates of both ways in interleaved pairs, each way first in turn, and the median of their ratios.

    The two of a pair take turns every few calls, so that what else the machine does slows both.
    """
    rates: dict[str, list[float]] = {"sdk": [], "pair": []}
    order = [("sdk", plain), ("pair", other)]
    for _ in range(pairs):
        took = {"sdk": 0.0, "pair": 0.0}
        slices = 0
        while sum(took.values()) < 2 * seconds:
            order.reverse()
            for name, send in order:
                began = time.perf_counter()
                for _ in range(SLICE):
                    await send(what)
                took[name] += time.perf_counter() - began
            slices += 1
        for name, elapsed in took.items():
            rates[name].append(slices * SLICE / elapsed)
    ratios = [mine / theirs for mine, theirs in zip(rates["pair"], rates["sdk"], strict=True)]
    return {
        "sdk_per_second": round(median(rates["sdk"]), 1),
        "pair_per_second": round(median(rates["pair"]), 1),
        "ratio": round(median(ratios), 4),
        "ratio_quarter": round(sorted(ratios)[len(ratios) // 4], 4),
        "ratio_three_quarters": round(sorted(ratios)[3 * len(ratios) // 4], 4),
    }


async def cpu_of(send: Callable[[Any], Awaitable[None]], what: Any) -> float:
    """Microseconds of processor time of a call."""
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(CALLS):
            await send(what)
        best = min(best, time.process_time() - began)
    return best * 1e6 / CALLS


async def added_cpu(around: Callable[[Any], Any]) -> dict[str, float]:
    """What a way around adds to a call of a sender that does nothing."""
    nobody = Nobody()
    wrapped = around(nobody)
    one, many = ServiceBusMessage(BODY, message_id="m"), [ServiceBusMessage(BODY, message_id="m") for _ in range(LIST)]
    call = await cpu_of(wrapped.send_messages, one) - await cpu_of(nobody.send_messages, one)
    listed = await cpu_of(wrapped.send_messages, many) - await cpu_of(nobody.send_messages, many)
    return {"us_per_call": round(call, 2), "us_per_message_in_lists": round(listed / LIST, 3)}


def options_of(secondary: ServerProcess, hear: Callable[[Event], None] | None = None) -> Any:
    return SendAvailabilityPairedNamespaceOptions(
        client(secondary),
        backlog_queue_count=len(QUEUES),
        failover_interval=INTERVAL,
        ping_primary_interval=PING,
        primary_name=NAME,
        on_event=hear,
    )


async def healthy(primary: ServerProcess, secondary: ServerProcess, pairs: int, seconds: float) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(client(primary))
        pair = await stack.enter_async_context(await pair_namespace(client(primary), options_of(secondary)))
        one, two = plain.get_queue_sender("orders"), pair.get_queue_sender("orders")
        same = plain.get_queue_sender("orders")
        single, many = ServiceBusMessage(BODY, message_id="m"), [ServiceBusMessage(BODY) for _ in range(LIST)]
        await rate_of(one.send_messages, single, 1)
        await rate_of(two.send_messages, single, 1)
        await rate_of(same.send_messages, single, 1)
        gc.collect()
        found = {
            # What the measurement itself tells apart: two senders of the SDK.
            "control": await ratios_of(one.send_messages, same.send_messages, single, pairs, seconds),
            "single": await ratios_of(one.send_messages, two.send_messages, single, pairs, seconds),
            "list": await ratios_of(one.send_messages, two.send_messages, many, pairs, seconds),
            **await added_cpu(lambda sender: PairedSender(pair, "orders", sender)),
        }
        for sender in (one, two, same):
            await sender.close()
        return found


async def passive(primary: ServerProcess, secondary: ServerProcess, pairs: int, seconds: float) -> dict[str, Any]:
    async with client(primary) as plain, client(primary) as active, client(secondary) as backup:
        one = plain.get_queue_sender("orders")
        two = PassiveReplicationSender([active.get_queue_sender("orders"), backup.get_queue_sender("orders")])
        single = ServiceBusMessage(BODY, message_id="m")
        await rate_of(one.send_messages, single, 1)
        await rate_of(two.send_messages, single, 1)
        found = {
            "single": await ratios_of(one.send_messages, two.send_messages, single, pairs, seconds),
            **await added_cpu(lambda sender: PassiveReplicationSender([sender, Nobody()])),  # type: ignore[list-item]
        }
        await one.close()
        await two.close()
        return found


async def failover(primary: ServerProcess, secondary: ServerProcess) -> dict[str, float]:
    """One outage: how late failover engages, and how late the first message is at the primary again."""
    at: dict[type[Event], float] = {}
    changed = asyncio.Event()

    def hear(event: Event) -> None:
        at.setdefault(type(event), time.perf_counter())
        changed.set()

    async def until(kind: type[Event]) -> None:
        while kind not in at:
            changed.clear()
            await changed.wait()

    async with await pair_namespace(client(primary), options_of(secondary, hear)) as pair:
        sender = pair.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage(BODY))
        primary.kill()
        while SendFailed not in at:
            try:
                await sender.send_messages(ServiceBusMessage(BODY))
            except Exception:  # noqa: BLE001 - whatever the SDK says of a server that is away
                await asyncio.sleep(0.01)
        await until(FailoverEngaged)
        await sender.send_messages(ServiceBusMessage(BODY))
        await asyncio.to_thread(primary.start)
        returned = time.perf_counter()
        await until(PrimaryHealthy)
        return {
            "engaged_late_ms": round((at[FailoverEngaged] - at[SendFailed] - INTERVAL.total_seconds()) * 1000, 1),
            "back_after_ms": round((at[PrimaryHealthy] - returned) * 1000, 1),
            "ping_interval_ms": PING.total_seconds() * 1000,
        }


async def fill(server: ServerProcess, queue: str, messages: int) -> None:
    """Put messages into a backlog queue, as a paired sender does."""
    async with client(server) as sdk, sdk.get_queue_sender(queue) as sender:
        one = to_backlog(ServiceBusMessage(BODY, message_id="m"), "orders", 0)
        for _ in range(messages // LIST):
            await sender.send_messages([one] * LIST)


async def bare(primary: ServerProcess, secondary: ServerProcess, queue: str, messages: int) -> float:
    """Messages a second of a loop that receives, sends and completes."""
    async with (
        client(primary) as there,
        client(secondary) as behind,
        behind.get_queue_receiver(queue) as receiver,
        there.get_queue_sender("orders") as sender,
    ):
        moved, began = 0, 0.0
        while moved < messages:
            batch = await receiver.receive_messages(BATCH, max_wait_time=5)
            began = began or time.perf_counter()
            await sender.send_messages([message.raw_amqp_message for message in batch])
            await asyncio.gather(*(receiver.complete_message(message) for message in batch))
            moved += len(batch)
        return moved / (time.perf_counter() - began)


async def syphoned(primary: ServerProcess, secondary: ServerProcess, queue: str, messages: int) -> float:
    """Messages a second of a syphon."""
    done = asyncio.Event()
    began = 0.0

    def hear(event: Event) -> None:
        nonlocal began
        # From the first receive on, as of the loop: attaching takes longer than a thousand messages.
        began = began or (time.perf_counter() if isinstance(event, SyphonPolled) else 0.0)
        if reporter.counts[Syphoned.__name__] >= messages:
            done.set()

    reporter = Reporter(hear)
    async with client(primary) as there, client(secondary) as behind:
        task = asyncio.create_task(Syphon(there, behind, [queue], reporter=reporter).run())
        await done.wait()
        elapsed = time.perf_counter() - began
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return messages / elapsed


async def syphon(primary: ServerProcess, secondary: ServerProcess, rounds: int, messages: int) -> dict[str, float]:
    rates: dict[str, list[float]] = {"loop": [], "syphon": []}
    for turn in range(rounds):
        order = [("loop", bare), ("syphon", syphoned)]
        for name, way in order if turn % 2 else reversed(order):
            await fill(secondary, QUEUES[0], messages)
            rates[name].append(await way(primary, secondary, QUEUES[0], messages))
    ratios = [mine / theirs for mine, theirs in zip(rates["syphon"], rates["loop"], strict=True)]
    return {
        "loop_per_second": round(median(rates["loop"])),
        "syphon_per_second": round(median(rates["syphon"])),
        "ratio": round(median(ratios), 3),
    }


async def measure(folder: Path, parts: list[str], pairs: int, seconds: float, messages: int) -> dict[str, Any]:
    """Play what was asked for."""
    emulator = ("--emulator",)
    orders: dict[str, dict[str, Any]] = {"orders": {}}
    backlogs = queues_config({**orders, **{queue: {"MaxDeliveryCount": 2_147_483_647} for queue in QUEUES}})
    found: dict[str, Any] = {}
    with (
        ServerProcess(folder / "primary", config=queues_config(orders), arguments=emulator) as primary,
        ServerProcess(folder / "secondary", config=backlogs, arguments=emulator) as secondary,
    ):
        if "healthy" in parts:
            found["healthy"] = await healthy(primary, secondary, pairs, seconds)
        if "passive" in parts:
            found["passive"] = await passive(primary, secondary, pairs, seconds)
        if "syphon" in parts:
            found["syphon"] = await syphon(primary, secondary, max(1, pairs // 4), messages)
        if "failover" in parts:
            found["failover"] = [await failover(primary, secondary) for _ in range(max(1, pairs // 7))]
    return found


PARTS = ("healthy", "passive", "syphon", "failover")


def main() -> None:
    """Parse the command line and print what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paired", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=int, default=20, help="interleaved pairs of each comparison (20)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one of a pair (1)")
    parser.add_argument("--messages", type=int, default=5_000, help="messages of a round of the syphon (5000)")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this; repeatable")
    parser.add_argument("--quick", action="store_true", help="a look whether it runs: no figures to keep")
    arguments = parser.parse_args()
    pairs, seconds, messages = arguments.pairs, arguments.seconds, arguments.messages
    if arguments.quick:
        pairs, seconds, messages = 2, 0.2, 500
    silence_sdk_logs()
    with tempfile.TemporaryDirectory(prefix="duobus-paired-") as folder:
        found = asyncio.run(measure(Path(folder), arguments.part or list(PARTS), pairs, seconds, messages))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
