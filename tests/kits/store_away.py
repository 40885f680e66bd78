"""A broker of which a messaging store is away while a program of another language sends to it."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner

from duobus.cli.main import main
from duobus.testing.server import ServerProcess, queues_config

QUEUE: Final = "orders"
#: What every error of a send to it has to say.
MARK: Final = f"StoreUnavailable:{QUEUE} TrackingId:"
#: When the store comes back, after the first send was refused.
BACK_S: Final = 1.5
#: A program that is slow to start, as a JVM on a busy machine, has so long for its first send.
FIRST_SEND_S: Final = 15.0


def drill(server: ServerProcess, *words: str) -> None:
    """Run ``duobus store``."""
    done = CliRunner().invoke(main, ["store", *words], env={"DUOBUS_CONNECTION_STRING": server.connection_string})
    assert done.exit_code == 0, done.output


def heal_after_a_refusal(server: ServerProcess) -> None:
    address = f"http://localhost:{server.ready['http_port']}/metrics"
    end_s = time.monotonic() + FIRST_SEND_S
    while time.monotonic() < end_s:
        with urllib.request.urlopen(address, timeout=60) as answer:
            if b'duobus_errors_total{condition="com.microsoft:server-busy"' in answer.read():
                break
        time.sleep(0.1)
    time.sleep(BACK_S)
    drill(server, "heal", "1")


@contextmanager
def broker_without_its_store(folder: Path) -> Iterator[dict[str, Any]]:
    """Give what a program needs to send to the queue; its store is back BACK_S after the first refusal."""
    options = ("--emulator", "--allow-drills")
    with ServerProcess(folder, config=queues_config({QUEUE: {}}), arguments=options) as server:
        drill(server, "fail", "1")
        healing = threading.Thread(target=heal_after_a_refusal, args=(server,))
        healing.start()
        try:
            yield {"connection": server.connection_string, "queue": QUEUE}
        finally:
            healing.join()
            # The clients that a program left open are not waited for.
            server.kill()
