"""One store's fsync fails or takes long: no answer without a sync, the other store is unaffected."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit_faults import FAULTY, SOUND, SPREAD, Outcomes, Rig, until

pytestmark = pytest.mark.timeout(60)

#: How long each sync takes.
SLOW_S = 0.25
#: How long a sync hangs that is not given up yet, as it is after three seconds.
HANGS_S = 2.0


class Syncs:
    """Orders for the syncs of store 1."""

    def __init__(self, control: Path) -> None:
        self._control = control

    def order(self, text: str) -> None:
        """``fail``, ``slow <ms>`` or ``well``; put in place at once, since the broker may be reading."""
        fresh = self._control.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._control)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim, compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the shim with")
    made = tmp_path_factory.mktemp("shim") / "sync_faults.so"
    source = Path(__file__).with_name("sync_faults.c")
    words = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", str(source), "-o", str(made), "-ldl"]
    subprocess.run(words, check=True, capture_output=True)
    return made


@pytest.fixture
def syncs(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Syncs]:
    """Processes started from now on have the shim."""
    control = tmp_path / "order"
    monkeypatch.setenv("FAULTY_SYNC", str(control))
    monkeypatch.setenv("FAULTY_PATH", "store-1.db")
    monkeypatch.setenv("LD_PRELOAD", str(library))
    made = Syncs(control)
    made.order("well")
    return made


def test_nothing_is_acknowledged_while_syncs_fail(tmp_path: Path, syncs: Syncs) -> None:
    rig, outcomes = Rig(tmp_path / "broker"), Outcomes()
    with rig.process, rig.client() as client:
        senders = {name: client.get_queue_sender(name) for name in (FAULTY, SOUND, SPREAD)}
        receiver = client.get_queue_receiver(FAULTY)
        for _ in range(3):
            assert all(outcomes.send(sender) for sender in senders.values())
        (message,) = receiver.receive_messages(max_wait_time=20)
        syncs.order("fail")
        with pytest.raises(Exception, match=r"(?i)not available|lock"):
            receiver.complete_message(message)
        for _ in range(5):
            assert not outcomes.send(senders[FAULTY])
            assert not outcomes.send(senders[SPREAD], key=rig.key_of_store(1))
            assert outcomes.send(senders[SPREAD], key=rig.key_of_store(2))
            assert outcomes.send(senders[SPREAD])
            assert outcomes.send(senders[SOUND])
        assert rig.metric("duobus_store_failures", "1") >= 1
        assert rig.metric("duobus_store_failures", "2") == 0
        syncs.order("well")
        until(rig.is_available)
        assert all(outcomes.send(sender) for sender in senders.values())
        receiver.close()
        # The refused completion may be stored or not, as with any failed commit: at most that one is missing.
        found = outcomes.drain(client, FAULTY, SOUND, SPREAD)
        if outcomes.name_of(message) not in found:
            outcomes.completed.append(outcomes.name_of(message))
    outcomes.verify()


def test_a_keyless_message_whose_sync_fails_is_stored_once_elsewhere(tmp_path: Path, syncs: Syncs) -> None:
    rig, outcomes = Rig(tmp_path / "broker"), Outcomes()
    with rig.process:
        with rig.client() as client, client.get_queue_sender(SPREAD) as sender:
            for round_ in range(3):
                until(rig.is_available)
                syncs.order("fail")
                failures = rig.metric("duobus_store_failures", "1")
                while rig.metric("duobus_store_failures", "1") == failures:
                    assert outcomes.send(sender), f"round {round_}"
                syncs.order("well")
            sent = set(outcomes.acknowledged)
        # What the failed commits left in the file must not come back, not even over a kill.
        rig.process.restart()
        with rig.client() as client:
            found = outcomes.drain(client, SPREAD)
    assert set(found) == sent
    outcomes.verify()


def test_slow_syncs_make_one_store_slow_and_leave_the_other_fast(tmp_path: Path, syncs: Syncs) -> None:
    rig, outcomes = Rig(tmp_path / "broker"), Outcomes()
    with rig.process, rig.client() as client:
        senders = {name: client.get_queue_sender(name) for name in (FAULTY, SOUND)}
        assert all(outcomes.send(sender) for sender in senders.values())
        syncs.order(f"slow {int(SLOW_S * 1000)}")
        slow = sorted(seconds_of(outcomes, senders[FAULTY]) for _ in range(4))
        fast = sorted(seconds_of(outcomes, senders[SOUND]) for _ in range(20))
        # No answer came before the sync that it stands for had ended.
        assert slow[0] >= SLOW_S
        assert slow[-1] < 4 * SLOW_S + 1
        assert fast[len(fast) // 2] < SLOW_S / 2
        assert rig.metric("duobus_store_failures", "1") == 0
        syncs.order("well")
        outcomes.drain(client, FAULTY, SOUND)
    outcomes.verify()


def test_while_one_sync_hangs_for_seconds_everything_else_is_served(tmp_path: Path, syncs: Syncs) -> None:
    """The loop makes such a commit itself: another thread goes on with the loop (PE4, I9)."""
    rig, outcomes = Rig(tmp_path / "broker"), Outcomes()
    with rig.process, rig.client() as client, rig.client() as other:
        senders = {name: client.get_queue_sender(name) for name in (SOUND, SPREAD)}
        hung = other.get_queue_sender(FAULTY)
        assert all(outcomes.send(sender) for sender in (*senders.values(), hung))
        for _ in range(3):
            syncs.order(f"slow {int(HANGS_S * 1000)}")
            began = time.monotonic()
            thread = threading.Thread(target=outcomes.send, args=(hung,))
            thread.start()
            until(lambda: rig.metric("duobus_store_available", "2") == 1)
            took = []
            while thread.is_alive():
                took.append(seconds_of(outcomes, senders[SOUND]))
            assert time.monotonic() - began >= HANGS_S
            assert len(took) > 20
            # The loop was held up for 40 ms at the most; the rest is what a busy machine may take.
            assert max(took) < 1.5
            syncs.order("well")
            thread.join()
            assert outcomes.send(senders[SPREAD])
        assert rig.metric("duobus_store_failures", "1") == 0
        outcomes.drain(client, FAULTY, SOUND, SPREAD)
    outcomes.verify()


def seconds_of(outcomes: Outcomes, sender: object) -> float:
    """How long one send takes."""
    started = time.monotonic()
    assert outcomes.send(sender)
    return time.monotonic() - started
