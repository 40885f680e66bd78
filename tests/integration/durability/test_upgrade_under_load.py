"""Clients wait while a server of an earlier version is replaced: nothing acknowledged is lost on the way (I1, I65)."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit_formats import age_file, version_of

from duobus.clock import Clock
from duobus.storage.interface import FORMAT_VERSION
from duobus.testing.server import DemoFailed, ServerProcess, queues_config
from duobus_demo.clients import endpoints_of, silence_sdk_logs
from duobus_demo.corpus import Outgoing
from duobus_demo.dispositions import Dispositions
from duobus_demo.feed import Feed
from duobus_demo.message_account import MessageAccount
from duobus_demo.run_state import RunState
from duobus_demo.workers.traffic import Traffic, WorkerCounts

QUEUE = "upgraded"
PROPERTIES = {"EnablePartitioning": True, "LockDuration": "PT5S", "MaxDeliveryCount": 1_000_000}
STORES = 2
#: Messages that are out at a time, and that each round lets in.
BACKLOG = 500
LIMIT_S = 60.0
WHOLE_LIMIT_S = 180.0
#: How often a server may be ready before it is killed.
ATTEMPTS = 5


def messages() -> Iterator[Outgoing]:
    dice = random.Random(65)
    for number in itertools.count(1):
        key = f"key-{number % 37}" if number % 2 else None
        yield Outgoing(f"message-{number}", partition_key=key, body=dice.randbytes(dice.choice((16, 1024))))


def kill_while_stores_age(server: ServerProcess, paths: list[Path], version: int, log: Path) -> None:
    """Give a server stores of an earlier version, and kill it while it brings them forward."""
    for _ in range(ATTEMPTS):
        server.terminate()
        # Its clients try again and again from here on.
        for path in paths:
            age_file(path, version)
        # One store has been brought forward then, the one behind it not, or not wholly.
        if is_killed_when_written(server, log):
            return
        server.start()
    pytest.fail(f"the server was ready before it was killed, {ATTEMPTS} times one after the other")


def is_killed_when_written(server: ServerProcess, log: Path) -> bool:
    """Start a process, and kill it as soon as it has written to the log of one of its stores.

    Returns:
        False when it was ready before that, as where this process has to wait for a processor. It is killed then, too.
    """
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            if log.exists() and log.stat().st_size > 0:
                server.kill()
                return
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        server.start()
    except DemoFailed:
        return True
    finally:
        is_over.set()
        watcher.join()
    server.kill()
    return False


def let_flow(run: RunState, number: int) -> None:
    """Let so many more messages through."""
    target = run.account.received_ids + number

    def has_come() -> bool:
        run.feed.allow(run.account.received_ids + BACKLOG)
        return run.account.received_ids >= target

    run.wait_until(has_come, LIMIT_S, f"{number} messages come through")


# The SDK leaves sockets open when a server ends, and the collector finds some of them while the test is still running.
@pytest.mark.filterwarnings(r"ignore:Exception ignored in.{0,2}<socket\.socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_stores_brought_forward_under_load_lose_nothing_though_the_server_is_killed_meanwhile(tmp_path: Path) -> None:
    silence_sdk_logs()
    clock = Clock()
    server = ServerProcess(
        tmp_path,
        config=queues_config({QUEUE: PROPERTIES}),
        arguments=("--emulator", "--tls-self-signed", "--stores", str(STORES)),
        clock=clock,
    )
    paths = [tmp_path / "data" / "stores" / f"store-{number}.db" for number in range(1, STORES + 1)]
    logs = [path.with_name(path.name + "-wal") for path in paths]
    dedup = MessageAccount(clock)
    run = RunState(QUEUE, Feed(messages(), limit=BACKLOG), dedup, Dispositions(), clock, WHOLE_LIMIT_S)
    with server, Traffic(run, endpoints_of(server), WorkerCounts(1, 1, 1, 1)) as traffic:
        for version, log in itertools.product(range(1, FORMAT_VERSION), logs):
            let_flow(run, 200)
            kill_while_stores_age(server, paths, version, log)
            server.start()
            dedup.watch_sends()
        let_flow(run, 200)
        run.feed.finish()
        run.wait_until(lambda: dedup.in_flight == 0, LIMIT_S, "the last sends have an outcome")
        left = traffic.drain(LIMIT_S)
    report = dedup.report()
    assert [version_of(path) for path in paths] == [FORMAT_VERSION] * STORES
    assert (report["lost"], report["altered"], report["revived"], left) == (0, 0, 0, 0), report
    # What was sent twice had no answer the first time; what was received twice had none to its completion.
    assert report["acknowledged"] == report["received"] > 1000
