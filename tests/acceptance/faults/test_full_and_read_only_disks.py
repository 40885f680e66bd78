"""Disks that are full or read-only: a definite answer, the others go on, no restart is needed."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit_faults import BIG, FAULTY, SOUND, SPREAD, Outcomes, Rig, choke, command, fill, need_root, small_disk, until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """4 MiB for store 1."""
    with small_disk(tmp_path / "disk", "4m") as folder:
        yield folder


def test_a_full_disk_refuses_what_belongs_there_and_loses_nothing(tmp_path: Path, disk: Path) -> None:
    rig, outcomes = Rig(tmp_path / "broker", disk), Outcomes()
    with rig.process, rig.client() as client:
        senders = {name: client.get_queue_sender(name) for name in (FAULTY, SOUND, SPREAD)}
        for _ in range(5):
            assert all(outcomes.send(sender) for sender in senders.values())
        filler = choke(disk, outcomes, senders[FAULTY])
        assert not outcomes.send(senders[SPREAD], BIG, key=rig.key_of_store(1))
        assert outcomes.send(senders[SPREAD], BIG, key=rig.key_of_store(2))
        for _ in range(10):
            assert outcomes.send(senders[SPREAD], BIG)
            assert outcomes.send(senders[SOUND], BIG)
        assert rig.metric("duobus_store_failures", "1") >= 1
        assert rig.metric("duobus_store_failures", "2") == 0
        failures = [line for line in rig.events() if line["event"] == "store failed"]
        assert any("disk is full" in line["reason"] for line in failures)
        filler.unlink()
        # The store may have been opened a moment before, and a commit of that moment may still meet the full disk.
        until(lambda: outcomes.send(senders[FAULTY], BIG))
        assert rig.is_available()
        assert outcomes.send(senders[SPREAD], BIG, key=rig.key_of_store(1))
        outcomes.drain(client, FAULTY, SOUND, SPREAD)
    outcomes.verify()


def test_a_keyless_message_whose_commit_meets_the_full_disk_goes_elsewhere(tmp_path: Path, disk: Path) -> None:
    rig, outcomes = Rig(tmp_path / "broker", disk), Outcomes()
    with rig.process, rig.client() as client, client.get_queue_sender(SPREAD) as sender:
        # While both stores are open every other message is decided in the full one; what fails there is rerouted.
        while not rig.metric("duobus_store_failures", "1"):
            filler = fill(disk)
            assert outcomes.send(sender, BIG)
        filler.unlink()
        until(rig.is_available)
        outcomes.drain(client, SPREAD)
    outcomes.verify()


def test_a_broker_that_is_killed_while_its_disk_is_full_has_everything(tmp_path: Path, disk: Path) -> None:
    rig, outcomes = Rig(tmp_path / "broker", disk), Outcomes()
    with rig.process:
        with rig.client() as client, client.get_queue_sender(FAULTY) as sender:
            for _ in range(10):
                assert outcomes.send(sender, 10_000)
            filler = choke(disk, outcomes, sender)
        rig.process.restart()
        with rig.client() as client, client.get_queue_sender(SOUND) as sender:
            assert outcomes.send(sender)
        filler.unlink()
        until(rig.is_available)
        with rig.client() as client:
            outcomes.drain(client, FAULTY, SOUND)
    outcomes.verify()


def test_a_store_on_a_read_only_disk_comes_back_by_itself(tmp_path: Path, disk: Path) -> None:
    rig, outcomes = Rig(tmp_path / "broker", disk), Outcomes()
    with rig.process:
        with rig.client() as client, client.get_queue_sender(FAULTY) as sender:
            assert outcomes.send(sender)
        rig.process.terminate()
        command("mount", "-o", "remount,ro", disk)
        rig.process.start()
        with rig.client() as client:
            sound, faulty = client.get_queue_sender(SOUND), client.get_queue_sender(FAULTY)
            assert not rig.is_available()
            assert not outcomes.send(faulty)
            assert outcomes.send(sound)
            command("mount", "-o", "remount,rw", disk)
            until(rig.is_available)
            assert outcomes.send(faulty)
            outcomes.drain(client, FAULTY, SOUND)
    outcomes.verify()


@pytest.fixture
def immutable(tmp_path: Path) -> Iterator[Rig]:
    """A broker in whose folder files can be made immutable."""
    need_root()
    rig = Rig(tmp_path)
    try:
        yield rig
    finally:
        for path in tmp_path.glob("data/stores/store-1.db*"):
            if stat.S_ISREG(path.stat().st_mode):
                command("chattr", "-i", path)


def test_files_that_become_immutable_under_a_running_broker_stop_one_store(immutable: Rig) -> None:
    rig, outcomes = immutable, Outcomes()
    with rig.process, rig.client() as client:
        faulty, sound = client.get_queue_sender(FAULTY), client.get_queue_sender(SOUND)
        assert outcomes.send(faulty)
        # A commit is written to the journal, if there is one (DUOBUS_JOURNAL=1), and else to the log.
        journal = sorted(rig.store_path.parent.glob("store-1.db-journal.*"))
        paths = [rig.store_path, rig.store_path.with_name("store-1.db-wal"), *journal]
        try:
            for path in paths:
                command("chattr", "+i", path)
        except Exception as error:  # noqa: BLE001 - whatever it is, this file system cannot do it
            pytest.skip(f"files cannot be made immutable here: {error}")
        assert not outcomes.send(faulty)
        assert outcomes.send(sound)
        for path in paths:
            command("chattr", "-i", path)
        until(rig.is_available)
        assert outcomes.send(faulty)
        outcomes.drain(client, FAULTY, SOUND)
    outcomes.verify()
