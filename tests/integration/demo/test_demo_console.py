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
from duobus_demo.shop.plan import BACKLOGS, FAILURES, ORDERS, PAYMENTS, REMINDERS, Till


def counts_of(connection_string: str, queue: str) -> tuple[int, int, int]:
    """Active, dead-lettered and scheduled messages of a queue."""
    with Remote(connection_string, None, None).administration(queue) as administration:
        assert isinstance(administration, ServiceBusAdministrationClient)
        found = administration.get_queue_runtime_properties(queue)
    counts = (found.active_message_count, found.dead_letter_message_count, found.scheduled_message_count)
    return counts[0] or 0, counts[1] or 0, counts[2] or 0


def test_the_same_seed_makes_the_same_orders() -> None:
    assert [str(Till(3).order()) for _ in range(2)] == [str(Till(3).order()) for _ in range(2)]
    assert str(Till(3).order()) != str(Till(4).order())


def test_skipping_the_parts_without_a_console_is_refused() -> None:
    done = run_demo("--skip-parts")
    assert done.returncode == 2
    assert "--skip-parts goes with --console" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(RUN_LIMIT_S + 20)
def test_a_shop_can_be_looked_at_until_the_demonstration_is_told_to_end(tmp_path: Path) -> None:
    words = [*DEMO, "--console", "--skip-parts", "--json", "--keep", str(tmp_path)]
    clock = Clock()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            assert told["console"].startswith(told["url"] + "sign-in#code=")
            with urllib.request.urlopen(told["url"], timeout=60) as answer:
                assert "Sign in" in answer.read().decode()
            members = [
                json.loads((tmp_path / "console" / name).read_text())
                for name in ("shop/ready.json", "spare/ready.json", "console.json")
            ]
            shop, spare = (str(one["connection_string"]) for one in members[:2])
            assert counts_of(shop, REMINDERS)[2] > 0
            assert counts_of(shop, ORDERS)[0] > 0
            until_ms = clock.monotonic_ms() + 60_000
            while not any(counts_of(spare, queue)[0] for queue in BACKLOGS):
                assert clock.monotonic_ms() < until_ms, "no order went to the other namespace"
            # Orders go there once the store is seen to be away, and a third of the failed payments is in that store.
            assert 0 < counts_of(shop, PAYMENTS)[1] < sum(failure.payments for failure in FAILURES)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    for one in members:
        with pytest.raises(ProcessLookupError):
            os.kill(int(one["pid"]), 0)
