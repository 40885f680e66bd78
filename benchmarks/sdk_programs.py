"""Single sends and single receipts with the official SDK, sender and receiver in a process of its own each: SDK1.

    python -m benchmarks.sdk_programs send CONNECTION_STRING QUEUE SECONDS
    python -m benchmarks.sdk_programs receive CONNECTION_STRING QUEUE

This is how most programs use the SDK: `send_messages` of one message, and `complete_message` of each that comes. Each
process opens its link, prints `ready` and waits for a line on standard input. At its end a process prints one JSON
object. The subject of the last message says that it is the last one, so that the receiver knows when to end.
"""

import json
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from benchmarks.load.verify import percentile
from benchmarks.load.wire import LoadError
from benchmarks.load.workloads import Observer, Result

NAME: Final = "SDK1"
ROOT: Final = Path(__file__).resolve().parents[1]
LAST: Final = "last"
BODY: Final = 1024
SENT_AT: Final = struct.Struct(">d")
#: Seconds that a process may take to open its link, or to end after its last message.
PATIENCE_S: Final = 60.0


def send(connection_string: str, queue: str, seconds: float) -> dict[str, Any]:
    """Send single messages for so many seconds; return how many, and how long each took in seconds, sorted."""
    filler = bytes(BODY - SENT_AT.size)
    times: list[float] = []
    with ServiceBusClient.from_connection_string(connection_string) as client, client.get_queue_sender(queue) as sender:
        _announce()
        cpu = process_time()
        started = now = perf_counter()
        is_last = False
        while not is_last:
            is_last = now - started >= seconds
            subject = LAST if is_last else None
            message = ServiceBusMessage(SENT_AT.pack(now) + filler, message_id=str(len(times)), subject=subject)
            sender.send_messages(message)
            then, now = now, perf_counter()
            times.append(now - then)
        cpu = process_time() - cpu
    times.sort()
    return {
        "messages": len(times),
        "started": started,
        "p50": percentile(times, 0.5),
        "p99": percentile(times, 0.99),
        "cpu": cpu,
    }


def receive(connection_string: str, queue: str) -> dict[str, Any]:
    """Complete message after message until the last one; return how many there were, and their ages, sorted."""
    times: list[float] = []
    numbers: set[str | None] = set()
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver(queue, max_wait_time=PATIENCE_S) as receiver,
    ):
        _announce()
        cpu = process_time()
        for message in receiver:
            age = perf_counter() - SENT_AT.unpack_from(b"".join(message.body))[0]
            receiver.complete_message(message)
            times.append(age)
            numbers.add(message.message_id)
            if message.subject == LAST:
                break
        finished = perf_counter()
        cpu = process_time() - cpu
    times.sort()
    return {
        "messages": len(times),
        "different": len(numbers),
        "finished": finished,
        "p50": percentile(times, 0.5),
        "p99": percentile(times, 0.99),
        "cpu": cpu,
    }


def _announce() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def run(connection_string: str, queue: str, seconds: float, observer: Observer, stall: float) -> Result:
    """Run both programs against an empty queue and leave the queue empty.

    Raises:
        LoadError: a message was lost or doubled, or a program failed.
    """
    receiver = _start("receive", connection_string, queue)
    sender = _start("send", connection_string, queue, str(seconds))
    try:
        for program in (receiver, sender):
            assert program.stdout is not None
            if program.stdout.readline() != "ready\n":
                raise LoadError(f"a program of the SDK did not start: {_last_words(program)}")
        observer.begin()
        for program in (receiver, sender):
            assert program.stdin is not None
            program.stdin.write("go\n")
            program.stdin.flush()
        sent = _end(sender, seconds + stall)
        received = _end(receiver, stall)
        observer.end()
    finally:
        for program in (receiver, sender):
            program.kill()
            program.communicate()
    return result(sent, received)


def result(sent: dict[str, Any], received: dict[str, Any]) -> Result:
    """Put together what the two programs told.

    Raises:
        LoadError: the receiver completed other messages than the sender sent.
    """
    messages = sent["messages"]
    if not received["messages"] == received["different"] == messages:
        raise LoadError(
            f"{messages} messages were sent, {received['messages']} received, {received['different']} different ones"
        )
    elapsed = received["finished"] - sent["started"]
    cpu = (sent["cpu"] + received["cpu"]) / messages * 1e6
    return Result(
        NAME,
        messages,
        elapsed,
        messages / elapsed,
        sent["p50"] * 1e3,
        sent["p99"] * 1e3,
        received["p50"] * 1e3,
        received["p99"] * 1e3,
        cpu,
    )


def _start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sdk_programs", *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end(program: subprocess.Popen[str], patience: float) -> dict[str, Any]:
    try:
        told, errors = program.communicate(timeout=patience)
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"a program of the SDK did not end within {patience:g} s") from error
    try:
        found: dict[str, Any] = json.loads(told)
    except ValueError as error:
        raise LoadError(f"a program of the SDK failed: {errors[-1000:]}") from error
    return found


def _last_words(program: subprocess.Popen[str]) -> str:
    program.kill()
    return program.communicate()[1][-1000:]


def main(arguments: Sequence[str] | None = None) -> int:
    """As the module says."""
    word, *rest = sys.argv[1:] if arguments is None else arguments
    print(json.dumps(send(rest[0], rest[1], float(rest[2])) if word == "send" else receive(rest[0], rest[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
