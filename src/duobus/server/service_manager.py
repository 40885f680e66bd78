"""What started the server and wants to hear of it: systemd, by the datagrams of sd_notify(3)."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Final

from duobus.clock import Clock
from duobus.telemetry.logs import Log

#: Abstract addresses of Linux begin with this character in the environment, and with a null byte for the system.
_ABSTRACT: Final = "@"


class ServiceManager:
    """Tells a service manager how the server is; does nothing where none has asked.

    Args:
        environment: Of the process: ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``.
        clock: Time, which a reload has to tell.
        log: Where it is told, once, that the manager cannot be reached.

    Attributes:
        feed_s: How often the manager has to hear of the server, halved so that one datagram may be late; or None.
    """

    def __init__(self, environment: Mapping[str, str], clock: Clock, log: Log) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._clock = clock
        self._log = log
        self._has_failed = False
        self.feed_s = _feed_s(environment) if self._address else None

    def ready(self, status: str) -> None:
        """Clients can connect; a reload, if there was one, is over."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Files are read again; ``ready`` has to follow."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={self._clock.monotonic_ms() * 1000}")

    def status(self, text: str) -> None:
        """What the server does now, for people."""
        self._tell(f"STATUS={text}")

    def stopping(self, status: str) -> None:
        """The stop has begun."""
        self._tell("STOPPING=1", f"STATUS={status}")

    async def feed(self) -> None:
        """Say again and again that the loop turns, for as long as it does: until the task is cancelled."""
        if self.feed_s is None:
            return
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self.feed_s)

    def _tell(self, *members: str) -> None:
        if not self._address:
            return
        address = self._address
        if address.startswith(_ABSTRACT):
            address = "\0" + address[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
                # A manager that does not read must not hold up clients.
                link.setblocking(False)
                link.sendto("\n".join(members).encode(), address)
        except (OSError, ValueError) as error:
            if not self._has_failed:
                self._log.warning("service manager not reached", address=self._address, error=str(error))
            self._has_failed = True


def _feed_s(environment: Mapping[str, str]) -> float | None:
    """Half of the time after which the manager gives the process up, if it watches this process."""
    limit = environment.get("WATCHDOG_USEC", "")
    whose = environment.get("WATCHDOG_PID", "")
    if not limit.isascii() or not limit.isdigit() or int(limit) == 0 or whose not in ("", str(os.getpid())):
        return None
    return int(limit) / 2_000_000
