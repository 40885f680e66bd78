"""``duobus demo --console``: a shop to look at, that stays until it is told to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from test_demo_command import DEMO, RUN_LIMIT_S, run_demo

from duobus.cli.remote import Remote
from duobus.clock import Clock
from duobus.testing.server import ServerProcess
from duobus_demo.drills import state_of
from duobus_demo.shop.opening import LOST_STORE, open_shop
from duobus_demo.shop.plan import BACKLOGS, FAILURES, ORDERS, PAYMENTS, REMINDERS, Till


def counts_of(server: ServerProcess, queue: str) -> tuple[int, int, int]:
    """Active, dead-lettered and scheduled messages of a queue."""
    with Remote(server.connection_string, None, None).administration(queue) as administration:
        assert isinstance(administration, ServiceBusAdministrationClient)
        found = administration.get_queue_runtime_properties(queue)
    return found.active_message_count, found.dead_letter_message_count, found.scheduled_message_count


def test_the_same_seed_makes_the_same_orders() -> None:
    assert [str(Till(3).order()) for _ in range(2)] == [str(Till(3).order()) for _ in range(2)]
    assert str(Till(3).order()) != str(Till(4).order())


def test_skipping_the_parts_without_a_console_is_refused() -> None:
    done = run_demo("--skip-parts")
    assert done.returncode == 2
    assert "--skip-parts goes with --console" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(RUN_LIMIT_S + 20)
def test_a_shop_has_failed_payments_letters_for_later_and_orders_that_wait_elsewhere(tmp_path: Path) -> None:
    failed = sum(failure.payments for failure in FAILURES)
    clock = Clock()
    with open_shop(tmp_path, clock, loses_store=False) as shop:
        assert counts_of(shop.shop, PAYMENTS) == (0, failed, 0)
        assert counts_of(shop.shop, REMINDERS)[2] > 0
        assert counts_of(shop.shop, ORDERS)[0] > 0
        with urllib.request.urlopen(shop.ready["url"], timeout=10) as answer:
            assert "Sign in" in answer.read().decode()
        shop.lose_store()
        assert state_of(shop.shop, LOST_STORE) == "failed"
        until_ms = clock.monotonic_ms() + 30_000
        while not any(counts_of(shop.spare, queue)[0] for queue in BACKLOGS):
            assert clock.monotonic_ms() < until_ms, "no order went to the other namespace"
    assert not shop.shop.is_running
    assert not shop.spare.is_running


@pytest.mark.slow
@pytest.mark.timeout(RUN_LIMIT_S + 20)
def test_the_demonstration_names_the_console_and_ends_everything_when_it_is_told_to(tmp_path: Path) -> None:
    words = [*DEMO, "--console", "--skip-parts", "--json", "--keep", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["console"].startswith(told["url"] + "sign-in#code=")
        folder = tmp_path / "console"
        pids = [json.loads((folder / name).read_text())["pid"] for name in ("shop/ready.json", "console.json")]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
