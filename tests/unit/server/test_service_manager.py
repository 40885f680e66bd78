"""What the service manager is told, and when: the watchdog by the loop that serves, nothing where nobody has asked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

import pytest

from duobus.clock import Clock
from duobus.server.service_manager import ServiceManager
from duobus.telemetry.logs import Log
from simulation.world.loop import SimulationLoop


class Recorded(ServiceManager):
    """Keeps what would be sent, with the time of the loop."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__(environment, Clock(), Log("test"))
        self.told: list[tuple[float, tuple[str, ...]]] = []

    def _tell(self, *members: str) -> None:
        self.told.append((asyncio.get_running_loop().time(), members))


def fed(environment: Mapping[str, str], seconds: float) -> list[float]:
    """Times at which a watchdog was fed while a loop turned for so long."""
    manager = Recorded(environment)

    async def story() -> None:
        feeder = asyncio.create_task(manager.feed())
        await asyncio.sleep(seconds)
        feeder.cancel()

    loop = SimulationLoop()
    try:
        loop.run(story(), time_limit_s=seconds + 60)
    finally:
        loop.close()
    assert all(members == ("WATCHDOG=1",) for _, members in manager.told)
    return [at for at, _ in manager.told]


# The loop of the simulation has no threads: what is told there is told by the loop itself.
def test_the_watchdog_is_fed_twice_in_its_time_for_as_long_as_the_loop_turns() -> None:
    environment = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    assert fed(environment, 50) == [0, 15, 30, 45]


@pytest.mark.parametrize(
    "environment",
    [
        {"WATCHDOG_USEC": "30000000"},
        {"NOTIFY_SOCKET": "/run/x"},
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "often"},
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid() + 1)},
    ],
)
def test_a_watchdog_that_does_not_watch_this_process_is_not_fed(environment: dict[str, str]) -> None:
    assert fed(environment, 100) == []


def test_a_manager_that_cannot_be_reached_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": "/nowhere/socket"}, Clock(), Log("test"))
    manager.ready("Serving")
    manager.stopping("Stopping")
    assert [record.getMessage() for record in caplog.records] == ["service manager not reached"]


def test_without_a_manager_nothing_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceManager({}, Clock(), Log("test"))
    manager.ready("Serving")
    manager.reloading()
    assert caplog.records == []
