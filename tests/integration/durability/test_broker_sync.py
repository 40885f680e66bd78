"""The real broker under strace: a finished fdatasync stands in front of every acceptance and settlement (I1)."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from duobus.testing.server import ServerProcess, queues_config

SYNCTRACE = Path(__file__).parents[3] / "tools" / "synctrace.py"
MESSAGES = 15


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed (apt-get install strace)")
@pytest.mark.parametrize("has_journal", [False, True], ids=["plain", "journal"])
def test_every_answer_of_the_broker_follows_a_finished_fdatasync(tmp_path: Path, *, has_journal: bool) -> None:
    """TL1."""
    arguments = ("--emulator", "--stores", "1", "--journal" if has_journal else "--no-journal")
    # The first segment: the next one is laid out meanwhile, ahead of need.
    data = r"store-1\.db-journal\.0$" if has_journal else r"store-1\.db-wal$"
    server = ServerProcess(tmp_path, config=queues_config({"traced": {}}), arguments=arguments)
    with server, ServiceBusClient.from_connection_string(server.ready["connection_string"]) as client:
        sender, receiver = client.get_queue_sender("traced"), client.get_queue_receiver("traced", prefetch_count=0)
        with sender, receiver:
            command = [sys.executable, str(SYNCTRACE), "--pid", str(server.ready["pid"]), "--seconds", "60"]
            # A disposition: the only frames that tell of messages, since the tokens were put before.
            command += ["--ack-fd", "TCP|socket", "--ack", r"\x00S\x15", "--data", data]
            tracer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            _wait_until_traced(server.ready["pid"])
            for number in range(MESSAGES):
                sender.send_messages(ServiceBusMessage(f"message {number}"))
            for _ in range(MESSAGES):
                (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
                receiver.complete_message(message)
            tracer.send_signal(2)
            output, errors = tracer.communicate(timeout=60)
    if tracer.returncode == 3:
        pytest.skip(f"tracing is not permitted here: {errors.strip()[-200:]}")
    result = json.loads(output)
    assert tracer.returncode == 0, output + errors
    assert result["acks"] == 2 * MESSAGES
    if has_journal:
        # One write and one sync for each commit, and so for each of these answers: none is in flight beside another.
        assert (result["writes"], result["syncs"]) == (2 * MESSAGES, 2 * MESSAGES)


def _wait_until_traced(pid: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if "TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text():
            time.sleep(0.3)  # the other threads are attached one by one after the first
            return
        time.sleep(0.05)
    raise AssertionError("strace did not attach")
