"""What the doctor says of what was measured, and what was measured in folders of a test."""

from __future__ import annotations

import datetime
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from duobus.cli.watch import data_folder, machine, server_side
from duobus.cli.watch.data_folder import SyncTimes, folder_findings
from duobus.cli.watch.findings import FAILURE, OK, WARNING, Finding, exit_status, worst_first
from duobus.clock import Clock, Entropy, Witness
from duobus.gateway.tls import SelfSigned
from duobus.storage.folder_lock import FolderLock

MIB = 1 << 20
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def test_failures_stand_first_and_decide_on_the_status() -> None:
    found = [Finding("a", OK, ""), Finding("b", WARNING, ""), Finding("c", FAILURE, ""), Finding("d", WARNING, "")]
    assert [finding.subject for finding in worst_first(found)] == ["c", "b", "d", "a"]
    assert exit_status(found, is_strict=False) == 1
    assert exit_status(found[:2], is_strict=False) == 0
    assert exit_status(found[:2], is_strict=True) == 1
    assert exit_status([], is_strict=True) == 0


NOBODY = resource.RLIM_INFINITY
JUDGED: list[tuple[Finding, str, str]] = [
    (machine.of_versions("1.0", (3, 12), "3.46", ("codec",)), OK, "compiled: codec"),
    (machine.of_versions("", (3, 10), "3.46", ()), FAILURE, "Python 3.10"),
    (machine.of_open_files(1_024, 20_000, "this shell's"), OK, "20,000"),
    (machine.of_open_files(1_024, 20_000, "the server's (process 7)"), WARNING, "1,024"),
    (machine.of_open_files(1_024, 1_024, "this shell's"), WARNING, "1,024"),
    (machine.of_open_files(NOBODY, NOBODY, "this shell's"), OK, "no limit"),
    (machine.of_memory(None), OK, "does not tell"),
    (machine.of_memory(100 * MIB), WARNING, "100 MiB"),
    (machine.of_memory(4_096 * MIB), OK, "4,096 MiB"),
    (machine.of_clock_service(None), OK, "does not tell"),
    (machine.of_clock_service(True), OK, "is synchronized"),
    (machine.of_clock_service(False), WARNING, "nobody"),
    (machine.of_port("::1", 5672, machine.FREE), OK, "nobody listens"),
    (machine.of_port("::1", 5672, machine.DUOBUS), OK, "a duobus server"),
    (machine.of_port("::1", 5672, machine.OTHER), FAILURE, "another program"),
    (machine.of_port("::1", 80, machine.FORBIDDEN), FAILURE, "may not listen"),
    (data_folder.of_folder(0o700, 5, 5, True), OK, "0700"),
    (data_folder.of_folder(0o750, 5, 5, True), WARNING, "others can look"),
    (data_folder.of_folder(0o700, 5, 6, True), OK, "another user"),
    (data_folder.of_folder(0o700, 5, 6, False), FAILURE, "not writable"),
    (data_folder.of_room(10 * MIB, 100 * MIB, None), FAILURE, "10 of 100 MiB"),
    (data_folder.of_room(900 * MIB, 9_000 * MIB, 5_000), WARNING, "900"),
    (data_folder.of_room(9_000 * MIB, 9_000 * MIB, 5), WARNING, "only 5 more files"),
    (data_folder.of_room(9_000 * MIB, 9_000 * MIB, None), OK, "9,000"),
    (data_folder.of_file_system("ext4"), OK, "ext4"),
    (data_folder.of_file_system(""), OK, "unknown"),
    (data_folder.of_file_system("nfs4"), FAILURE, "network"),
    (data_folder.of_file_system("tmpfs"), WARNING, "gone when the machine stops"),
    (data_folder.of_file_system("overlay"), WARNING, "container"),
    (data_folder.of_sync(SyncTimes(0.8, 3)), OK, "0.8 ms"),
    (data_folder.of_sync(SyncTimes(25.0, 60)), WARNING, "25.0 ms"),
    (data_folder.of_sync(SyncTimes(5.0, 1_500)), FAILURE, "1500 ms at worst"),
    (data_folder.of_clock(DAY_MS, ("b", 50), None), OK, "no server"),
    (data_folder.of_clock(DAY_MS, ("b", 50), Witness("b", 40, DAY_MS - 10)), OK, "0 s after"),
    (data_folder.of_clock(DAY_MS, ("b", 50), Witness("b", 40, DAY_MS + 2 * HOUR_MS)), FAILURE, "2.0 hours behind"),
    (data_folder.of_clock(9 * DAY_MS, ("b", 50), Witness("b", 40, DAY_MS)), FAILURE, "192.0 hours ahead"),
    # Another start of the machine: nobody knows how long it was off.
    (data_folder.of_clock(9 * DAY_MS, ("c", 50), Witness("b", 40, DAY_MS)), OK, "after the time"),
    (data_folder.of_certificate("c", None, 0, renews_itself=False), FAILURE, "cannot be read"),
    (data_folder.of_certificate("c", 5 * DAY_MS, 0, renews_itself=False), WARNING, "in 5 days"),
    (data_folder.of_certificate("c", 0, 3 * DAY_MS, renews_itself=True), FAILURE, "ended 3 days ago"),
    (data_folder.of_certificate("c", 90 * DAY_MS, 0, renews_itself=True), OK, "in 90 days"),
    (server_side.of_health("healthy", "fine"), OK, "fine"),
    (server_side.of_health("degraded", "store 2"), WARNING, "store 2"),
    (server_side.of_health("unhealthy", "none"), FAILURE, "none"),
]


@pytest.mark.parametrize(("finding", "status", "part"), JUDGED, ids=lambda value: getattr(value, "subject", None))
def test_what_was_measured_is_judged_and_what_is_wrong_has_a_remedy(finding: Finding, status: str, part: str) -> None:
    assert finding.status == status, finding
    assert part in finding.found
    assert bool(finding.remedy) == (status != OK)


def about(**numbers: Any) -> dict[str, Any]:
    return {
        "version": "1",
        "nowMs": 1_000_000,
        "clockAheadMs": 0,
        "incomingBytes": 0,
        "incomingLimitBytes": 100,
        **numbers,
    }


@pytest.mark.parametrize(
    ("told", "subject"),
    [
        (about(version="2"), "server's version"),
        (about(nowMs=1_040_000), "server's clock"),
        (about(clockAheadMs=-2 * HOUR_MS), "broker time"),
        (about(incomingBytes=90), "incoming messages"),
    ],
)
def test_what_a_server_says_of_itself_is_judged(told: dict[str, Any], subject: str) -> None:
    assert {finding.status for finding in server_side.of_server(about(), 1_000_000, "1")} == {OK}
    bad = [finding for finding in server_side.of_server(told, 1_000_000, "1") if finding.status != OK]
    assert [finding.subject for finding in bad] == [subject]
    assert bad[0].remedy


def test_stores_that_are_away_damaged_or_shaky_are_told() -> None:
    sound = {"store": 1, "state": "open", "reason": None, "quarantined": 0, "failures": 0}
    assert list(server_side.of_store(sound)) == []
    (away,) = server_side.of_store({**sound, "state": "failed", "reason": "disk full"})
    assert (away.status, away.found) == (FAILURE, "is failed: disk full")
    (damaged,) = server_side.of_store({**sound, "quarantined": 2})
    assert damaged.status == FAILURE
    (shaky,) = server_side.of_store({**sound, "failures": 3})
    assert shaky.status == WARNING


class FixedClock(Clock):
    """A wall clock that stands."""

    def now_ms(self) -> int:
        return 1_800_000_000_000


def found_in(data: Path) -> dict[str, Finding]:
    return {finding.subject: finding for finding in folder_findings(data, FixedClock())}


def test_a_folder_that_is_not_there_yet_is_looked_at_where_it_will_be(tmp_path: Path) -> None:
    found = found_in(tmp_path / "new" / "bus")
    assert "not there yet" in found["data folder"].found
    assert {"room", "file system", "disk"} <= found.keys()
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "bus").write_text("x")
    found = found_in(tmp_path / "bus")
    assert found["data folder"].status == FAILURE
    assert "disk" not in found


def test_a_new_folder_is_healthy_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    found = found_in(tmp_path)
    assert {finding.status for finding in found.values()} <= {OK, WARNING}
    assert found["contents"].found.startswith("no catalog")
    assert found["use"].found == "no server runs on it"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_its_catalog_or_with_a_spoilt_store_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "stores").mkdir()
    (tmp_path / "stores" / "store-1.db").write_bytes(b"SQLite format 3\x00 and more")
    (tmp_path / "stores" / "store-2.db").write_bytes(b"nothing of the kind")
    found = list(folder_findings(tmp_path, FixedClock()))
    contents = [finding for finding in found if finding.subject == "contents"]
    assert contents[0].status == FAILURE
    assert "2 stores and no catalog" in contents[0].found
    (spoilt,) = [finding for finding in found if finding.subject == "store-2.db"]
    assert spoilt.status == FAILURE
    assert not [finding for finding in found if finding.subject == "store-1.db"]


def test_a_folder_that_is_in_use_says_by_whom_and_after_that_no_more(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.take("a server", FixedClock())
    lock.tell_address("127.0.0.1:5672")
    try:
        assert found_in(tmp_path)["use"].found.startswith(f"in use by a server with process id {os.getpid()}")
        assert data_folder.server_pid(tmp_path) == os.getpid()
        assert data_folder.server_address(tmp_path) == "127.0.0.1:5672"
    finally:
        lock.release()
    # The file stays, and tells of nobody any more.
    assert found_in(tmp_path)["use"].found == "no server runs on it"
    assert data_folder.server_pid(tmp_path) is None
    assert data_folder.server_address(tmp_path) is None


def test_certificates_are_looked_at_and_keys_are_not(tmp_path: Path) -> None:
    SelfSigned(tmp_path / "tls", FixedClock(), Entropy()).ensure(["here"])
    found = found_in(tmp_path)
    assert found["certificate server.pem"].status == OK
    assert found["certificate ca.pem"].status == OK
    assert not [subject for subject in found if "key" in subject]
    (tmp_path / "tls" / "server.pem").write_text("spoilt")
    assert found_in(tmp_path)["certificate server.pem"].status == FAILURE


def test_the_measurement_of_the_disk_counts_each_durable_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ticking(Clock):
        at = 0

        def monotonic_ms(self) -> int:
            return self.at

    clock, calls = Ticking(), []

    def slow(fd: int) -> None:
        calls.append(fd)
        clock.at += 400 if len(calls) == 10 else 2

    monkeypatch.setattr(data_folder, "sync_data", slow)
    times = data_folder.sync_times(tmp_path, clock)
    assert times.worst_ms == 400
    assert times.mean_ms == pytest.approx((29 * 2 + 400) / 30)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(data_folder, "sync_data", refuse)
    assert found_in(tmp_path)["disk"] == Finding(
        "disk", FAILURE, "refuses a durable write: No space left on device", "Look at the disk, and its log."
    )


def test_the_limits_of_another_process_are_read() -> None:
    found = machine.limits_of(os.getpid())
    assert found == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert machine.limits_of(2**22 + 1) is None


def test_the_file_system_of_a_folder_is_known_where_the_system_tells(tmp_path: Path) -> None:
    kind = data_folder.file_system_of(tmp_path)
    assert bool(kind) == Path("/proc/self/mountinfo").exists()


def test_certificates_end_is_the_day_that_stands_in_them(tmp_path: Path) -> None:
    from duobus.gateway.tls import certificate_end_ms

    files = SelfSigned(tmp_path, FixedClock(), Entropy()).ensure([])
    end_ms = certificate_end_ms(files.certificate)
    assert end_ms is not None
    days = (end_ms - FixedClock().now_ms()) / DAY_MS
    assert 396 <= days <= 397
    assert datetime.datetime.fromtimestamp(end_ms / 1000, tz=datetime.UTC).year == 2028
    assert certificate_end_ms(files.key) is None


def test_a_relay_that_nobody_serves_is_a_warning_and_a_disabled_one_is_none() -> None:
    def found(*relays: tuple[str, str, int], is_shared: bool = False) -> list[tuple[str, str]]:
        rows = [{"name": name, "status": status, "listeners": listeners} for name, status, listeners in relays]
        return [(one.status, one.found) for one in server_side.of_relays(rows, is_shared=is_shared)]

    assert found() == []
    served, off = ("web", "Active", 2), ("old", "Disabled", 0)
    assert found(served, off) == [("ok", "2, with 2 listeners")]
    assert found(served, ("a", "Active", 0)) == [("warning", "2, with 2 listeners; nobody listens on a")]
    many = [(f"r{number}", "Active", 0) for number in range(7)]
    assert found(*many)[0][1].endswith("nobody listens on r0, r1, r2, r3, r4 and 2 more")
    # The listeners may be at another server.
    assert found(*many, is_shared=True) == [("ok", "7, with 0 listeners at this server")]
