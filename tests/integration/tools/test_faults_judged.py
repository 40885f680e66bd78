"""The campaign of faults says what senders without a key may complain of, and only that."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def _load() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / "tools" / "faults.py"
    # It imports its neighbour, the loop of kills, as a program in that folder does.
    sys.path.insert(0, str(path.parent))
    try:
        spec = importlib.util.spec_from_file_location("faults_campaign", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


faults = _load()


def result(fault: str = "full", **seen: Any) -> dict[str, Any]:
    clean = {"lost": 0, "altered": 0, "revived": 0, "left": 0}
    return {"fault": fault, **clean, "seen": {"failed_keyless": {}, "slowest_keyless_ms": 900, **seen}}


def test_messages_with_a_key_may_wait_for_their_store_over_several_faults() -> None:
    assert faults.is_good(result(slowest_ms=18_500, failed={"ServiceBusServerBusyError": 79}))


@pytest.mark.parametrize(
    "seen", [{"slowest_keyless_ms": 5_001}, {"failed_keyless": {"OperationTimeoutError": 1}}], ids=["late", "failed"]
)
def test_a_message_without_a_key_that_is_late_or_fails_makes_a_run_bad(seen: dict[str, Any]) -> None:
    assert not faults.is_good(result(**seen))
    assert len(faults.complaints(result(**seen))) == 1


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_a_fault_of_the_whole_process_spares_nobody(fault: str) -> None:
    assert faults.is_good(result(fault, slowest_keyless_ms=9_000, failed_keyless={"OperationTimeoutError": 1}))


def test_what_is_lost_is_bad_whoever_sent_it() -> None:
    assert not faults.is_good({**result(), "lost": 1})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_disk_that_became_read_only_can_be_written_again_when_the_fault_ends(tmp_path: Path) -> None:
    """Its files were made immutable as well, which cannot be undone while nothing can be written."""
    begin, end = faults.FAULTS["read-only"]
    try:
        with faults._disk(tmp_path / "disk") as disk:
            file = disk / "store-1.db"
            file.write_bytes(b"before")
            stage = SimpleNamespace(store=file, disk=disk)
            begin(stage)
            with pytest.raises(OSError, match=r"Read-only|not permitted"):
                file.write_bytes(b"meanwhile")
            end(stage)
            file.write_bytes(b"after")
            assert file.read_bytes() == b"after"
    except faults.Skipped as error:
        pytest.skip(str(error))
