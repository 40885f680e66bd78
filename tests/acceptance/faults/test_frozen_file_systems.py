"""A file system that is frozen: a commit hangs where no signal reaches it, and everything else goes on (PE4, I9)."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus.exceptions import ServiceBusError
from kit_faults import FAULTY, SOUND, Outcomes, Rig, command, need_root, until

pytestmark = pytest.mark.timeout(90)


class FrozenDisk:
    """A file system of its own that can be frozen: who writes to it waits, and cannot be interrupted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_frozen = False

    def freeze(self) -> None:
        command("fsfreeze", "--freeze", self.folder)
        self._is_frozen = True

    def thaw(self) -> None:
        if self._is_frozen:
            command("fsfreeze", "--unfreeze", self.folder)
            self._is_frozen = False


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FrozenDisk]:
    need_root()
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    made = subprocess.run(
        f"mkfs.ext4 -q -F {image} && mount -o loop {image} {folder} && fsfreeze --version",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted and frozen here: {made.stderr.strip()}")
    frozen_disk = FrozenDisk(folder)
    try:
        yield frozen_disk
    finally:
        frozen_disk.thaw()
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_while_a_file_system_is_frozen_others_are_served_and_the_server_can_be_told_to_stop(
    tmp_path: Path, disk: FrozenDisk
) -> None:
    rig, outcomes = Rig(tmp_path / "broker", disk.folder), Outcomes()
    with rig.process:
        with rig.client() as client, rig.client() as other:
            sound, faulty = client.get_queue_sender(SOUND), other.get_queue_sender(FAULTY)
            for _ in range(5):
                assert outcomes.send(sound)
                assert outcomes.send(faulty)
            disk.freeze()
            hung = threading.Thread(target=_send_in_vain, args=(outcomes, faulty))
            hung.start()
            took = []
            end_s = time.monotonic() + 2
            while time.monotonic() < end_s:
                began_s = time.monotonic()
                assert outcomes.send(sound)
                took.append(time.monotonic() - began_s)
            assert max(took) < 1.5
            assert rig.metric("duobus_store_available", "2") == 1
            os.kill(rig.process.pid, signal.SIGTERM)
            until(lambda: any(line["event"] == "stopping" for line in rig.events()), 10)
            assert rig.process.is_running
            disk.thaw()
            hung.join()
        # It ends as soon as the file system lets it.
        until(lambda: not rig.process.is_running)
        rig.process.start()
        with rig.client() as client:
            outcomes.drain(client, FAULTY, SOUND)
    outcomes.verify()


def _send_in_vain(outcomes: Outcomes, sender: object) -> None:
    """Send to a store that does not answer: what became of the message is not known."""
    try:
        outcomes.send(sender)
    except ServiceBusError:
        return
