"""Messages stay in memory while there is room for them, over all stores of a server (decision 0062)."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_clearing import payloads, receiver, sent
from test_message_broker import simulated, turns
from test_read_ahead import source_of

from duobus.broker import commit_loop, pager
from duobus.broker.pager import MESSAGE_BYTES, MemoryRoom
from duobus.fragment import fragment as fragment_module
from duobus.fragment import source as source_module
from duobus.fragment.fragment import Fragment
from duobus.fragment.source import SourceSettings
from duobus.server.machine_memory import LEAST, MOST, allowed_bytes, suggested_bytes
from duobus.storage.interface import SourceRow
from kits.broker import Hall, sets_constants

pytestmark = sets_constants


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fragment_module, source_module, pager):
        monkeypatch.setattr(module, "WINDOW_COUNT", 5)
    monkeypatch.setattr(pager, "WINDOW_BYTES_SHORT", 10)
    monkeypatch.setattr(pager, "WINDOW_COUNT_SHORT", 4)
    monkeypatch.setattr(commit_loop, "LOOK_EVERY", 1)


def fragment_with(payload_bytes: int) -> Fragment:
    fragment = Fragment(None, 1, 0, 1, bytes(10))
    source = fragment.add_source(SourceRow(1, 1, 0, 1), SourceSettings())
    source.memory_bytes = payload_bytes
    return fragment


@simulated
async def test_a_source_keeps_more_than_its_first_window_while_there_is_room(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    # The first commit is the first look.
    await sent(queue, 1)
    await sent(queue, 40)
    source = source_of(queue)
    assert (len(source.by_count), source.tail_count) == (41, 0)
    _, box = receiver(queue, 100)
    await turns(20)
    assert len(payloads(box)) == 41


@simulated
async def test_without_room_new_messages_are_left_to_the_store_and_still_arrive(hall: Hall) -> None:
    await hall.start()
    hall.unit.memory_room.limit = 4 * MESSAGE_BYTES
    queue = await hall.create()
    await sent(queue, 1)
    await sent(queue, 40)
    source = source_of(queue)
    assert source.tail_count > 30
    _, box = receiver(queue, 100)
    await turns(100)
    assert len(payloads(box)) == 41


@simulated
async def test_a_store_that_fails_gives_its_room_back(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    await sent(queue, 10)
    await sent(queue, 1)
    assert hall.unit.memory_room.held >= 10 * MESSAGE_BYTES
    queue.fragments[0].broker.lifecycle.fail(OSError("the disk is gone"))
    assert hall.unit.memory_room.held == 0


@simulated
async def test_much_that_comes_in_few_commits_is_looked_at_before_the_next_regular_look(hall: Hall) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_loop, "LOOK_EVERY", 1000)
        await hall.start()
        queue = await hall.create()
        room = hall.unit.memory_room
        room.look_at = 50
        await sent(queue, 3)
        await sent(queue, 1)
        assert room.held == 0
        await sent(queue, 60)
        await sent(queue, 1)
        assert room.held > 0


def test_what_one_store_holds_narrows_the_windows_of_the_others() -> None:
    room = MemoryRoom(1000)
    one, other = fragment_with(0), fragment_with(600)
    room.share(1, [one])
    assert one.window_bytes == 250
    room.share(2, [other])
    assert (other.window_bytes, room.held, room.look_at) == (700, 600, 100)
    room.share(1, [one])
    assert one.window_bytes == 100
    other.sources[0].memory_bytes = 990
    room.share(2, [other])
    assert (other.window_bytes, other.window_count) == (10, 4)


def test_sources_that_all_grow_to_their_windows_between_looks_do_not_pass_the_limit() -> None:
    """Each takes what a look allows, one after the other: the sum comes near the limit and does not pass it."""
    room = MemoryRoom(1_000_000)
    fragments = [fragment_with(0) for _ in range(3)]
    worst = 0
    for _ in range(50):
        for fragment in fragments:
            source = fragment.sources[0]
            # One of them at a time, up to what a look comes behind.
            source.memory_bytes = max(
                source.memory_bytes, min(fragment.window_bytes, source.memory_bytes + room.look_at)
            )
            room.share(1, fragments)
            worst = max(worst, room.held)
    assert 900_000 < worst <= 1_000_000


@pytest.mark.parametrize(
    ("available", "expected"),
    [(None, LEAST), (256 << 20, LEAST), (1 << 30, 256 << 20), (256 << 30, MOST)],
)
def test_the_suggestion_is_a_fourth_of_what_there_is_within_bounds(available: int | None, expected: int) -> None:
    assert suggested_bytes(available) == expected


def _machine(tmp_path: Path, cgroup: str) -> tuple[Path, Path]:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    groups.mkdir()
    (proc / "meminfo").write_text("MemTotal:       16000000 kB\nMemFree: 1 kB\n")
    (proc / "self" / "cgroup").write_text(cgroup)
    return proc, groups


def test_the_least_limit_of_a_control_group_and_those_above_counts(tmp_path: Path) -> None:
    proc, groups = _machine(tmp_path, "0::/system.slice/duobus.service\n")
    assert allowed_bytes(proc, groups) == 16_000_000 << 10
    own = groups / "system.slice" / "duobus.service"
    own.mkdir(parents=True)
    (own / "memory.max").write_text("max\n")
    (own.parent / "memory.max").write_text("2147483648\n")
    assert allowed_bytes(proc, groups) == 2 << 30


def test_a_container_finds_its_limit_where_its_own_group_is_mounted(tmp_path: Path) -> None:
    proc, groups = _machine(tmp_path, "0::/docker/0123456789ab\n")
    (groups / "memory.max").write_text("1073741824\n")
    assert allowed_bytes(proc, groups) == 1 << 30


def test_the_first_version_of_control_groups_counts_too(tmp_path: Path) -> None:
    proc, groups = _machine(tmp_path, "5:cpu,cpuacct:/x\n4:memory:/x\n")
    (groups / "memory" / "x").mkdir(parents=True)
    (groups / "memory" / "x" / "memory.limit_in_bytes").write_text("3221225472\n")
    assert allowed_bytes(proc, groups) == 3 << 30
