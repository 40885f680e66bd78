"""What clients hear when a server dies, and whether anything is lost, in both ways, with the official SDK."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from prototypes.remote_fragment.servers import PROXIED, REMOTE, Servers

FRONT, OTHER = 0, 1
MESSAGES: Final = 200
SENDERS: Final = 16
#: For how long drills send, when the owner dies, and when what nobody has received by then counts as lost; in seconds.
SENDING_S, DEATH_S, TIMEOUT_S = 4.0, 1.5, 75.0


def drills(servers: Servers) -> int:
    """Every drill in both ways; the exit status is 1 when a message was lost."""
    # The SDK logs what it raises as well.
    logging.disable(logging.CRITICAL)
    lost = 0
    for drill in (owner_dies_before_settlement, owner_dies_before_answer, front_dies_with_locks):
        print(f"\n{(drill.__doc__ or '').splitlines()[0]}")
        for queue in (PROXIED, REMOTE):
            lost += drill(servers, queue)
    return 1 if lost else 0


def _client(servers: Servers, server: int, **options: Any) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(servers.connection_string(server), **options)


def _fill(bus: ServiceBusClient, queue: str) -> set[str]:
    """Send messages one by one, so that they spread over all fragments."""
    ids = {str(number) for number in range(MESSAGES)}
    with bus.get_queue_sender(queue) as sender:
        for message_id in ids:
            sender.send_messages(ServiceBusMessage("x", message_id=message_id))
    return ids


def _receive(receiver: Any, number: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < number:
        more = receiver.receive_messages(number - len(found), max_wait_time=5)
        if not more:
            break
        found += more
    return found


def _drain(servers: Servers, server: int, queue: str, until: Callable[[Counter[str]], bool]) -> Counter[str]:
    """Receive and complete until ``until`` is content or the time-out ends: how often each message came."""
    came: Counter[str] = Counter()
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end and not until(came):
        with suppress(ServiceBusError), _client(servers, server) as bus, bus.get_queue_receiver(queue) as receiver:
            while time.monotonic() < end and not until(came):
                for message in receiver.receive_messages(100, max_wait_time=1):
                    receiver.complete_message(message)
                    came[str(message.message_id)] += 1
    return came


def _restart(servers: Servers, server: int) -> None:
    servers.start(server)
    servers.await_shared()
    # The servers find each other's fragments within a beat and a look.
    time.sleep(2)


def _say(queue: str, told: dict[str, Any], heard: Counter[str], lost: set[str]) -> int:
    told["lost"] = len(lost)
    print(f"  {queue:8} " + ", ".join(f"{name}: {value}" for name, value in told.items()))
    for text, number in heard.most_common(4):
        print(f"           heard {number} times: {text[:150]}")
    return len(lost)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0].split(' TrackingId')[0].split(' Reference:')[0]}"


def owner_dies_before_settlement(servers: Servers, queue: str) -> int:
    """The owner of half of the fragments dies between a delivery and its settlement."""
    heard: Counter[str] = Counter()
    completed: set[str] = set()
    with _client(servers, FRONT) as bus:
        ids = _fill(bus, queue)
        with suppress(ServiceBusError), bus.get_queue_receiver(queue) as receiver:
            messages = _receive(receiver, MESSAGES)
            died = time.monotonic()
            servers.kill(OTHER)
            for message in messages:
                try:
                    receiver.complete_message(message)
                    completed.add(str(message.message_id))
                except Exception as error:  # noqa: BLE001 - whatever a client hears is the result
                    heard[_short(error)] += 1
    left = ids - completed
    came = _drain(servers, FRONT, queue, lambda came: left <= came.keys())
    told = {
        "received": len(messages),
        "completed": len(completed),
        "completed but delivered again": len(completed & came.keys()),
        "delivered again": sum(came.values()),
        "all back after s": round(time.monotonic() - died, 1),
    }
    _restart(servers, OTHER)
    return _say(queue, told, heard, left - came.keys())


def owner_dies_before_answer(servers: Servers, queue: str) -> int:
    """The owner of half of the fragments dies between sends and their answers; clients repeat what failed."""
    heard: Counter[str] = Counter()
    accepted: dict[str, float] = {}
    end = time.monotonic() + SENDING_S

    def send(number: int) -> None:
        count = 0
        while time.monotonic() < end:
            count += 1
            message_id = f"{number}-{count}"
            while message_id not in accepted and time.monotonic() < end + TIMEOUT_S:
                try:
                    with (
                        _client(servers, FRONT, retry_total=0) as bus,
                        bus.get_queue_sender(queue) as sender,
                    ):
                        while time.monotonic() < end or message_id not in accepted:
                            sender.send_messages(ServiceBusMessage("x", message_id=message_id))
                            accepted[message_id] = time.monotonic()
                            if time.monotonic() < end:
                                count += 1
                                message_id = f"{number}-{count}"
                except Exception as error:  # noqa: BLE001 - whatever a client hears is the result
                    heard[_short(error)] += 1
                    time.sleep(0.1)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(SENDERS)]
    for thread in threads:
        thread.start()
    time.sleep(DEATH_S)
    died = time.monotonic()
    servers.kill(OTHER)
    for thread in threads:
        thread.join()
    times = sorted(instant for instant in accepted.values() if instant > died - 0.2)
    gap = max((b - a for a, b in pairwise(times)), default=0.0)
    ids = set(accepted)
    came = _drain(servers, FRONT, queue, lambda came: ids <= came.keys())
    told = {
        "accepted": len(ids),
        "stored twice": sum(number - 1 for number in came.values()),
        "failed sends": sum(heard.values()),
        "longest time without an accepted send, s": round(gap, 2),
    }
    _restart(servers, OTHER)
    return _say(queue, told, heard, ids - came.keys())


def front_dies_with_locks(servers: Servers, queue: str) -> int:
    """The front dies while a client of it holds locks; the client goes to the other server."""
    with _client(servers, FRONT) as bus:
        ids = _fill(bus, queue)
        with suppress(ServiceBusError), bus.get_queue_receiver(queue) as receiver:
            number = len(_receive(receiver, MESSAGES))
            died = time.monotonic()
            servers.kill(FRONT)
    came: Counter[str] = Counter()
    backs: dict[str, float] = {}

    def until(found: Counter[str]) -> bool:
        for message_id in found:
            backs.setdefault(message_id, time.monotonic() - died)
        return ids <= found.keys()

    came = _drain(servers, OTHER, queue, until)
    instants = sorted(backs.values())
    told = {
        "held": number,
        "half back after s": round(instants[len(ids) // 2 - 1], 1) if len(instants) >= len(ids) // 2 else None,
        "all back after s": round(instants[-1], 1) if len(instants) == len(ids) else None,
        "came twice": sum(n - 1 for n in came.values()),
    }
    _restart(servers, FRONT)
    return _say(queue, told, Counter(), ids - came.keys())
