"""Sessions of a fragment against a model of a few lines: long walks of sends, holds, settlements, ends and restarts."""

from __future__ import annotations

import random

import pytest
from test_fragment_sessions import LOCK_MS, Sessions

from duobus.fragment.sessions import sessions
from duobus.fragment.sessions.sessions import SessionLock
from duobus.fragment.settlement import ABANDON, COMPLETE, DEFER, SettleBatch

NAMES = ["a", "b", ""]
STEPS = 150


class Walk:
    """The fragment, and what it should hold: per session the counts that are available, and those that are held."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.real = Sessions(max_delivery_count=1000)
        self.available: dict[str, list[int]] = {}
        self.held: dict[str, tuple[SessionLock, dict[int, int]]] = {}
        # Locks that ran out while they protected nothing, with the end of their grace.
        self.lingering: dict[str, tuple[SessionLock, int]] = {}
        self.under_way: list[tuple[SettleBatch, str, int]] = []

    def step(self) -> None:
        """Do something that is possible now, and look."""
        steps = [self.send, self.accept, self.commit, self.pass_time]
        if self.held:
            steps += [self.take, self.take, self.take, self.settle, self.settle, self.settle, self.release, self.renew]
        if self.lingering:
            steps += [self.renew_late, self.leave_late]
        if self.rng.random() < 0.02:
            steps = [self.restart]
        self.rng.choice(steps)()
        self.look()

    def _returning(self, name: str) -> bool:
        return any(found == name and command.outcome == ABANDON for command, found, _ in self.under_way)

    def _free(self, name: str) -> None:
        _, counts = self.held.pop(name)
        self.available[name] = sorted([*self.available.get(name, []), *counts])

    def _some_held(self) -> str:
        return self.rng.choice(sorted(self.held))

    def send(self) -> None:
        name = self.rng.choice(NAMES)
        self.available.setdefault(name, []).extend(self.real.send(name, *[b"x"] * self.rng.randint(1, 3)))

    def accept(self) -> None:
        name = self.rng.choice(NAMES)
        lock = self.real.accept(name)
        assert (lock is None) == (name in self.held)
        if lock is not None:
            self.held[name] = (lock, {})
            former, _ = self.lingering.pop(name, (None, 0))
            self._told([] if former is None else [former])

    def take(self) -> None:
        name = self._some_held()
        lock, held = self.held[name]
        limit = self.rng.randint(1, 3)
        due = [] if self._returning(name) else self.available.get(name, [])[:limit]
        found = self.real.take(lock, limit)
        assert [message.count for message in found] == due
        self.available[name] = self.available.get(name, [])[len(due) :]
        held.update((message.count, message.lock) for message in found)

    def settle(self) -> None:
        name = self._some_held()
        held = self.held[name][1]
        if held:
            count = self.rng.choice(sorted(held))
            outcome = self.rng.choice((COMPLETE, ABANDON, ABANDON, DEFER))
            self.under_way.append((self.real.claimed(outcome, held.pop(count)), name, count))

    def commit(self) -> None:
        self.real.driver.commit(*(command for command, _, _ in self.under_way))
        for command, name, count in self.under_way:
            assert command.lost == []
            if command.outcome == ABANDON:
                self.available[name] = sorted([*self.available.get(name, []), count])
        self.under_way = []

    def release(self) -> None:
        name = self._some_held()
        driver = self.real.driver
        counted = self.rng.random() < 0.5
        assert sessions.release(driver.fragment, self.held[name][0], driver.now_ms, counted=counted) == []
        self._free(name)

    def renew(self) -> None:
        lock = self.held[self._some_held()][0]
        assert sessions.renew(self.real.driver.fragment, self.real.source, lock, self.real.driver.now_ms) is not None

    def renew_late(self) -> None:
        name = self.rng.choice(sorted(self.lingering))
        lock, _ = self.lingering.pop(name)
        now_ms = self.real.driver.now_ms
        assert sessions.renew(self.real.driver.fragment, self.real.source, lock, now_ms) == now_ms + LOCK_MS
        assert not lock.is_over
        self.held[name] = (lock, {})

    def leave_late(self) -> None:
        name = self.rng.choice(sorted(self.lingering))
        lock, _ = self.lingering.pop(name)
        assert self.real.source.sessions.let_go(name, lock) is lock

    def _told(self, due: list[SessionLock]) -> None:
        fragment = self.real.driver.fragment
        assert sorted(map(id, fragment.ended)) == sorted(map(id, due))
        fragment.ended.clear()

    def pass_time(self) -> None:
        self.commit()
        self.real.driver.pass_time(int(LOCK_MS * self.rng.choice((0.1, 0.3, 1.0))))
        now_ms = self.real.driver.now_ms
        due = [lock for lock, end_ms in self.lingering.values() if end_ms <= now_ms]
        self.lingering = {name: found for name, found in self.lingering.items() if found[1] > now_ms}
        for name in [name for name, (lock, _) in self.held.items() if lock.until_ms <= now_ms]:
            lock, held = self.held[name]
            assert lock.is_over
            if held:
                due.append(lock)
            else:
                self.lingering[name] = (lock, now_ms + sessions.GRACE_MS)
            self._free(name)
        self._told(due)

    def restart(self) -> None:
        self.commit()
        self.lingering.clear()
        for name in list(self.held):
            self._free(name)
        self.real = self.real.recovered()

    def look(self) -> None:
        """The next is the free session with the oldest message, and nothing is kept of those that have nothing."""
        free = {
            counts[0]: name
            for name, counts in self.available.items()
            if counts and name not in self.held and not self._returning(name)
        }
        assert self.real.next() == (free[min(free)] if free else None)
        known = {name for name, counts in self.available.items() if counts} | set(self.held)
        known |= {name for _, name, _ in self.under_way if self._returning(name)}
        assert set(self.real.source.sessions.by_id) == known


@pytest.mark.parametrize("seed", range(40))
def test_a_walk_never_leaves_the_model(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
