"""Drills of a part: messaging stores fail, stall and are healed by the commands that an operator has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final

from duobus.testing.server import DemoFailed, ServerProcess

_COMMAND_TIMEOUT_S: Final = 30.0


def state_of(server: ServerProcess, store: int) -> str:
    """How a messaging store is: ``open``, ``opening`` or ``failed``."""
    return next(str(found["state"]) for found in duobus(server, "store", "list") if found["store"] == store)


def operate(server: ServerProcess, drill: str, store: int) -> dict[str, Any]:
    """Run ``duobus store fail``, ``stall`` or ``heal``; return how the store is then."""
    return duobus(server, "store", drill, str(store))[0]


def stores_of(server: ServerProcess, entity: str) -> set[int]:
    """The stores in which an entity lies."""
    return {int(found["store"]) for found in duobus(server, "fragment", "list", entity)}


def duobus(server: ServerProcess, *words: str) -> list[dict[str, Any]]:
    """Run a command against a broker; return the lines that it printed.

    Raises:
        DemoFailed: It failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "duobus", *words, "-o", "jsonl"],
        env={**os.environ, "DUOBUS_CONNECTION_STRING": server.connection_string},
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise DemoFailed(f"duobus {' '.join(words)} failed: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines()]
