"""Two brokers with the shop in them, and a console beside them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from duobus.clock import Clock
from duobus.console.profiles import Profile, Profiles
from duobus.testing.server import DEFAULT_OPTIONS, DemoFailed, ServerProcess
from duobus_demo.clients import endpoints_of, silence_sdk_logs
from duobus_demo.drills import operate
from duobus_demo.shop.business import Business
from duobus_demo.shop.history import write_history
from duobus_demo.shop.plan import Till, shop_config, spare_config

SEED: Final = 21
STORES: Final = 3
#: The store that is away.
LOST_STORE: Final = 3
_READY_S: Final = 30.0
_POLL_S: Final = 0.05
_STOP_S: Final = 10.0


class Shop(NamedTuple):
    """A shop that is open.

    Attributes:
        url: The console's address, which signs in.
        ready: The members of the console's ready file.
        shop: The broker of the shop.
        spare: The broker to which its messages go when a store is away.
    """

    url: str
    ready: dict[str, Any]
    shop: ServerProcess
    spare: ServerProcess

    def lose_store(self) -> None:
        """Take one of the shop's stores away."""
        operate(self.shop, "fail", LOST_STORE)


@contextmanager
def open_shop(folder: Path, clock: Clock, *, port: int = 0, loses_store: bool = True) -> Iterator[Shop]:
    """Start brokers and console, fill the shop, and keep its programs running until the end.

    Args:
        folder: For the data and the logs.
        clock: Time.
        port: Of the console; 0 for a free one.
        loses_store: Whether one of three stores is taken away when everything is filled.

    Raises:
        DemoFailed: Something did not start; the text says what to do.
    """
    silence_sdk_logs()
    options = (*DEFAULT_OPTIONS, "--allow-drills", "--stores", str(STORES), "--backup-to", str(folder / "backups"))
    shop = ServerProcess(folder / "shop", config=shop_config(), arguments=options, clock=clock)
    spare = ServerProcess(folder / "spare", config=spare_config(), clock=clock)
    with shop, spare:
        first, second = endpoints_of(shop)[0], endpoints_of(spare)[0]
        with first.client() as client:
            write_history(client, Till(SEED), clock)
        with _running_console(folder, shop, spare, port, clock) as ready, Business(first, second, SEED + 1):
            found = Shop(f"{ready['url']}sign-in#code={ready['code']}", ready, shop, spare)
            if loses_store:
                found.lose_store()
            yield found


@contextmanager
def _running_console(
    folder: Path, shop: ServerProcess, spare: ServerProcess, port: int, clock: Clock
) -> Iterator[dict[str, Any]]:
    """A console that knows both namespaces; yields the members of its ready file."""
    profiles = folder / "profiles.json"
    for name, server in (("shop", shop), ("spare", spare)):
        Profiles(profiles).add(Profile(name, server.connection_string))
    ready_file, log = folder / "console.json", folder / "console.log"
    words = [sys.executable, "-m", "duobus", "console", "--connection-string", shop.connection_string]
    words += ["--profiles", str(profiles), "--port", str(port), "--ready-file", str(ready_file)]
    with log.open("ab") as output:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield _read_when_ready(ready_file, process, log, clock)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _read_when_ready(ready_file: Path, process: subprocess.Popen[bytes], log: Path, clock: Clock) -> dict[str, Any]:
    until_ms = clock.monotonic_ms() + int(_READY_S * 1000)
    pause = threading.Event()
    while not ready_file.exists():
        if process.poll() is not None or clock.monotonic_ms() > until_ms:
            raise DemoFailed(f"The console did not start.\n{log.read_text(errors='replace')}")
        pause.wait(_POLL_S)
    members: dict[str, Any] = json.loads(ready_file.read_text())
    return members
