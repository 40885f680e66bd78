"""Writes a folder with everything that a version of the package keeps on disk, by running that version.

Run by ``tools/make_formats.py``, with the package of some commit on the path. Arguments: the folder, and the address
of a PostgreSQL database for the stores and the catalog if they are to be there. The server is killed at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusConnectionError

from duobus.amqp import ACCEPTED, Coordinator, Declared, TransactionalState
from duobus.codec import Described, ULong, build_message
from duobus.ha.aio import OutboxSender
from duobus.ha.deduplication import SeenMessages
from duobus.ha.outbox.queue import Outbox
from kits.prompt_sdk import prompt_sdk
from kits.server_contents import AdminEndpoint, client_of, configuration, fill, survey
from kits.wire import WireClient

START_LIMIT_S = 60.0


def start(folder: Path, *options: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start a server on a data folder; the process and its ready file."""
    config, ready = folder / "Config.json", folder / "ready.json"
    config.write_text(json.dumps(configuration()))
    words = ["--data", folder / "data", "--config", config, "--ready-file", ready]
    ports = ["--port", "0", "--http-port", "0", "--emulator"]
    with (folder / "server.log").open("ab") as log:
        command = [sys.executable, "-m", "duobus", "serve", *map(str, words), *ports, *options]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    deadline = time.monotonic() + START_LIMIT_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise SystemExit((folder / "server.log").read_text())
        time.sleep(0.02)
    members: dict[str, Any] = json.loads(ready.read_text())
    return process, members


def buy(port: int) -> None:
    """Two transactions: one that was committed, one that the server's end cuts off."""
    client = WireClient(port)
    sender, receiver = client.sender("bought"), client.receiver("bought")
    client.send(sender, b"the price")
    coordinator = client.sender(target=Coordinator(capabilities=["amqp:local-transactions"]))
    for body, is_committed in ((b"committed", True), (b"never", False)):
        state = client.put(coordinator, build_message(None, None, body_value=Described(ULong(0x31), [None])))
        assert isinstance(state, Declared), state
        if is_committed:
            client.complete(client.receive(receiver), TransactionalState(state.txn_id, ACCEPTED))
        for number in range(2):
            payload = build_message([f"{body!r} {number}"], data=body)
            client.put(sender, payload, TransactionalState(state.txn_id))
        if is_committed:
            ended = Described(ULong(0x32), [state.txn_id, False])
            assert client.put(coordinator, build_message(None, None, body_value=ended)) == ACCEPTED
    client.close()


class AwaySender:
    """Stands in for the SDK's sender of a namespace that is away, and would refuse one message for good."""

    entity_name = "orders"

    async def send_messages(self, message: Any, **_: Any) -> None:
        messages = message if isinstance(message, list) else [message]
        texts = [
            b"".join(one.raw_amqp_message.body if hasattr(one, "raw_amqp_message") else one.body) for one in messages
        ]
        if b"too large" in texts:
            raise MessageSizeExceededError(message="too large")
        raise ServiceBusConnectionError(message="away")

    async def close(self) -> None:
        pass


async def keep(folder: Path) -> None:
    """An outbox with three messages that wait and one that is set aside, and ids of messages whose work is done."""
    with Outbox(folder / "outbox.db", retry_first_ms=60_000, retry_last_ms=60_000) as outbox:
        async with OutboxSender(AwaySender, outbox) as sender:
            await sender.send_messages(ServiceBusMessage("too large", message_id="large", session_id="z"))
            for number in range(3):
                about = {"number": number, "bytes": b"\0\xff"}
                message = ServiceBusMessage(
                    f"kept {number}", message_id=str(number), session_id="a", subject="s", application_properties=about
                )
                await sender.send_messages(message)
            while not outbox.set_aside():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)
        assert outbox.depth.messages == 3, outbox.depth
    with SeenMessages(folder / "seen.db") as seen:
        seen.record("done")
        seen.record_all([("with a result", b"\0result"), ("done too", None)])


def main(folder: Path, database: str | None) -> None:
    """Write everything."""
    options = [
        "--stores",
        "2",
        *(["--backup-to", str(folder / "backups")] if database is None else ["--join", database]),
    ]
    process, ready = start(folder, *options)
    try:
        admin = AdminEndpoint(ready["admin_url"])
        with prompt_sdk(), client_of(ready["connection_string"]) as client:
            buy(ready["amqp_port"])
            found = fill(client, admin)
            found |= survey(client, admin)
            if database is None:
                found["backup"] = back_up(ready)
            found["again"] = survey(client, admin)
    finally:
        process.kill()
        process.wait()
    found["at_ms"] = time.time_ns() // 1_000_000
    again = found.pop("again")
    for name, members in again.items():
        assert members == found[name], f"{name} changes by being looked at"
    (folder / "found.json").write_text(json.dumps(found, indent=1, sort_keys=True))
    if database is None:
        asyncio.run(keep(folder))


def back_up(ready: dict[str, Any]) -> str:
    """Have the server make a backup; its folder's name."""
    environment = os.environ | {"DUOBUS_CONNECTION_STRING": ready["connection_string"]}
    command = [sys.executable, "-m", "duobus", "backup", "--endpoint", ready["admin_url"], "--output", "json"]
    answer = subprocess.run(command, env=environment, capture_output=True, check=False, text=True)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
