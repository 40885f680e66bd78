"""Programs in other languages against a real broker: the queues that they get, how they are run, what they tell."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from duobus.testing.server import ServerProcess

#: Git-ignored; gone with ``make clean``.
CACHE = Path(__file__).parents[2] / ".build"

#: A hang is a failure. Its 20 s are for one program on an idle machine; here four share it.
LIMIT_S = 60.0

#: What is answered at once takes less, also on a busy machine. A client that is not answered waits for its own timers,
#: and a message for the end of another's lock: each of them takes half a minute or more.
PROMPT_S = 25.0

LISTEN_ONLY, SEND_ONLY = "listens", "sends"
KEY = "a key of the tests"

#: Kinds of queues, each with the number that a run may use up, and their properties.
Pool = Mapping[str, tuple[int, dict[str, Any]]]


def configuration(pool: Pool, topics: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The emulator's format, with two rules of one right each."""
    queues = [
        {"Name": f"{kind}-{index}", "Properties": properties}
        for kind, (number, properties) in pool.items()
        for index in range(number)
    ]
    rules = [
        {"KeyName": name, "PrimaryKey": KEY, "Rights": [right]}
        for name, right in ((LISTEN_ONLY, "Listen"), (SEND_ONLY, "Send"))
    ]
    namespace = {"Name": "sbemulatorns", "Queues": queues, "Topics": list(topics), "AuthorizationRules": rules}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}


class ProgramBus:
    """A broker process, and what programs have to know of it."""

    def __init__(self, folder: Path, pool: Pool, topics: Sequence[Mapping[str, Any]] = ()) -> None:
        self.process = ServerProcess(folder, config=configuration(pool, topics))
        self._pool = pool
        self._used = dict.fromkeys(pool, 0)

    @property
    def port(self) -> int:
        """The plain AMQP port."""
        return int(self.process.ready["amqp_port"])

    def queue(self, kind: str = "plain") -> str:
        """Name of a queue that no other test has touched."""
        index = self._used[kind]
        assert index < self._pool[kind][0], f"the pool has no more {kind} queues"
        self._used[kind] += 1
        return f"{kind}-{index}"

    def connection(self, rule: str, key: str = KEY) -> str:
        """Connection string of a rule, for plain TCP."""
        return (
            f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName={rule};SharedAccessKey={key};"
            "UseDevelopmentEmulator=true;"
        )

    def until_sent(self, number: int) -> None:
        """Wait until the broker has taken so many messages, or the program has had its time."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            address = f"http://localhost:{self.process.ready['http_port']}/metrics"
            with urllib.request.urlopen(address, timeout=LIMIT_S) as answer:
                lines = answer.read().decode().splitlines()
            taken = [
                line for line in lines if line.startswith("duobus_metered_messages_total") and 'kind="send"' in line
            ]
            if sum(float(line.rsplit(" ", 1)[1]) for line in taken) >= number:
                return
            time.sleep(0.05)

    def credentials(self) -> dict[str, str]:
        """Rule and key with all rights, as a plain client logs in with them."""
        parts = self.process.connection_string.rstrip(";").split(";")
        members = dict(part.split("=", 1) for part in parts)
        return {"username": members["SharedAccessKeyName"], "password": members["SharedAccessKey"]}


def run_program(
    program: str,
    command: Sequence[str | Path],
    given: Mapping[str, Any],
    added_environment: Mapping[str, str],
    limit_s: float = LIMIT_S,
) -> tuple[dict[str, Any], str]:
    """Run a program within ``limit_s``; returns the one line of JSON that it printed, and its standard error."""
    done = subprocess.run(
        [*command, json.dumps(given)],
        capture_output=True,
        text=True,
        timeout=limit_s,
        env={**os.environ, **added_environment},
        check=False,
    )
    assert done.returncode == 0, f"{program} ended with status {done.returncode}:\n{done.stderr[-4000:]}"
    lines = done.stdout.splitlines()
    assert len(lines) == 1, f"{program} did not print one line:\n{done.stdout}\n{done.stderr[-4000:]}"
    found: dict[str, Any] = json.loads(lines[0])
    return found, done.stderr


def built(name: str, made: str, build: Callable[[Path], None]) -> Path:
    """Return CACHE/``name``, which ``build`` makes where it is missing: once for all processes of a run.

    ``made``: a short name for what it is; its processes wait for each other.
    """
    place = CACHE / name
    place.parent.mkdir(parents=True, exist_ok=True)
    # Test processes start at the same time; the first builds, the others wait for it.
    with (CACHE / f"{made}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            build(place)
    return place


def version_of(files: Iterable[Path]) -> str:
    """Names and contents of files, as a few letters."""
    return hashlib.sha256(b"\0".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()[:12]


def do_without(reason: str, required: str) -> NoReturn:
    """Skip what cannot be had here; fail where the variable ``required`` is set."""
    if os.environ.get(required):
        pytest.fail(f"{reason}, and {required} is set")
    pytest.skip(reason)
