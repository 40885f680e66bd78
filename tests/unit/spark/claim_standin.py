"""A stand-in queue with locks, deferral and browsing in SQLite, in virtual time, and a stand-in for Spark's engine.

Every step that changes the queue asks first whether the process is to end there, so that a test can end it at any step.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from duobus.spark.claims.engine import ClaimEngine, Seen, ids_of
from duobus.spark.claims.runner import ClaimRunner
from duobus.spark.offsets import Claim, ClaimOffset, Key, mark_of

QUEUE = Key("orders")
LOCK_MS = 30_000


class Killed(BaseException):
    """The process ended here; nothing may catch it."""


class StandIn:
    """A queue: peek-lock with expiry, deferral, browsing; ``counts`` says whether a deferral counts as a delivery.

    ``claims``: it claims by itself, under an id that it keeps with each deferral.
    """

    def __init__(self, messages: int, *, counts: bool = False, claims: bool = False) -> None:
        self.now = 0
        self.life = 1
        self.counts = counts
        self.claims = claims
        self.rows = sqlite3.connect(":memory:", isolation_level=None)
        self.rows.execute(
            "create table m(seq integer primary key, deferred int default 0, lock int default -1, owner text,"
            " deliveries int default 0, deferred_in int, claim text)"
        )
        self.rows.executemany("insert into m(seq) values(?)", ((number,) for number in range(1, messages + 1)))

    def receive(self, limit: int, owner: str) -> dict[int, int]:
        self.lapse()
        found = dict(
            self.rows.execute(
                "select seq, deliveries from m where deferred=0 and lock<0 order by seq limit ?", (limit,)
            ).fetchall()
        )
        for number in found:
            self.rows.execute("update m set lock=?, owner=? where seq=?", (self.now + LOCK_MS, owner, number))
        return {number: mark_of(deliveries, self.life) for number, deliveries in found.items()}

    def killed(self) -> None:
        """The broker is killed before it has written down what it delivered, and is there again."""
        self.life += 1
        self.rows.execute("update m set lock=-1, owner=null")

    def lapse(self) -> None:
        self.rows.execute(
            "update m set lock=-1, owner=null, deliveries=deliveries+1 where lock>=0 and lock<?", (self.now,)
        )

    def connection_lost(self, owner: str) -> None:
        self.rows.execute("update m set lock=-1, owner=null, deliveries=deliveries+1 where owner=?", (owner,))

    def defer(self, number: int, owner: str) -> bool:
        self.lapse()
        done = self.rows.execute(
            "update m set deferred=1, lock=-1, owner=null, deliveries=deliveries+?, deferred_in=?"
            " where seq=? and owner=?",
            (int(self.counts), self.life if self.life > 1 else None, number, owner),
        )
        return done.rowcount == 1

    def complete(self, owner: str) -> list[int]:
        gone = [number for (number,) in self.rows.execute("select seq from m where owner=?", (owner,))]
        self.rows.execute("delete from m where owner=?", (owner,))
        return gone

    def seen(self) -> dict[int, Seen]:
        return {
            number: Seen(bool(deferred), deliveries, life)
            for number, deferred, deliveries, life in self.rows.execute(
                "select seq, deferred, deliveries, deferred_in from m"
            )
        }

    def remove(self, number: int) -> None:
        self.rows.execute("delete from m where seq=? and deferred=1", (number,))

    def claim(self, claim_id: str, limit: int) -> dict[int, int]:
        self.lapse()
        if not self.claimed(claim_id):
            self.rows.execute(
                "update m set deferred=1, claim=?, deferred_in=? where seq in"
                " (select seq from m where deferred=0 and lock<0 order by seq limit ?)",
                (claim_id, self.life if self.life > 1 else None, limit),
            )
        return self.claimed(claim_id)

    def claimed(self, claim_id: str) -> dict[int, int]:
        return dict(
            self.rows.execute(
                "select seq, deliveries from m where deferred=1 and claim=? order by seq", (claim_id,)
            ).fetchall()
        )

    def settle(self, claim_id: str) -> None:
        self.rows.execute("delete from m where deferred=1 and claim=?", (claim_id,))

    def release(self, claim_id: str) -> None:
        self.rows.execute("update m set deferred=0, claim=null where deferred=1 and claim=?", (claim_id,))

    def left(self) -> int:
        return int(self.rows.execute("select count(*) from m").fetchone()[0])


class Steps:
    """Counts the steps of all processes, and ends the one that comes to a step of ``ends``."""

    def __init__(self, ends: tuple[int, ...] = ()) -> None:
        self.done = 0
        self.ends = ends

    def step(self) -> None:
        self.done += 1
        if self.done in self.ends:
            raise Killed


class StandInAccess:
    """The access of one process to a stand-in."""

    def __init__(self, queue: StandIn, owner: str, steps: Steps) -> None:
        self.queue = queue
        self.owner = owner
        self.steps = steps
        #: Another one in each process.
        self.settles_last = bool(steps.done % 2)

    def receive(self, limit: int, wait_ms: int) -> Claim:
        self.steps.step()
        found = self.queue.receive(limit, self.owner)
        self.steps.step()
        return {QUEUE: found} if found else {}

    def defer(self, claim: Claim) -> tuple[Claim, int | None]:
        done: dict[int, int] = {}
        for number, count in claim[QUEUE].items():
            self.steps.step()
            if self.queue.defer(number, self.owner):
                done[number] = count
        self.steps.step()
        return ({QUEUE: done} if done else {}), int(self.queue.counts)

    def may_still_defer(self) -> bool:
        return False

    def seen(self, claim: Claim) -> Mapping[Key, Mapping[int, Seen]]:
        self.steps.step()
        return {QUEUE: self.queue.seen()}

    def remove(self, claim: Claim) -> None:
        for number in claim[QUEUE]:
            self.steps.step()
            self.queue.remove(number)
        self.steps.step()

    def held_until_ms(self) -> int | None:
        return self.queue.now + LOCK_MS

    def is_past(self, instant_ms: int) -> bool:
        return self.queue.now > instant_ms

    def pause(self) -> None:
        self.steps.step()
        self.queue.now += LOCK_MS // 10
        self.queue.lapse()

    def let_go(self) -> None:
        pass

    def claims(self) -> bool:
        return self.queue.claims

    def claim(self, offset: ClaimOffset, batch: int, limit: int, wait_ms: int) -> tuple[Claim, int]:
        self.steps.step()
        found = self.queue.claim(offset.claim_id(batch, 0), limit)
        # The broker has done it, and nobody may hear of it.
        self.steps.step()
        return ({QUEUE: found}, 1) if found else ({}, 0)

    def claimed(self, offset: ClaimOffset) -> Claim | None:
        self.steps.step()
        found: dict[int, int] = {}
        for claim_id in ids_of(offset):
            found |= self.queue.claimed(claim_id)
        return {QUEUE: found}

    def settle(self, claim: Claim, ids: tuple[str, ...]) -> bool:
        for claim_id in ids:
            self.steps.step()
            self.queue.settle(claim_id)
        self.steps.step()
        return True

    @contextmanager
    def beside(self, work: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
        """The work is done first, or last: whatever a thread does in between is one of both to the broker."""
        if self.settles_last:
            yield work
        else:
            done = work()
            yield lambda: done

    def planned(self) -> None:
        pass


class Logs:
    """What outlives a process: Spark's two logs, and a sink that takes each batch whole."""

    def __init__(self) -> None:
        self.offsets: list[str] = []
        self.commits = 0
        self.sink: dict[int, list[int]] = {}

    def rows(self) -> list[int]:
        return [number for batch in self.sink.values() for number in batch]


def run(
    logs: Logs,
    queue: StandIn,
    steps: Steps,
    owner: str,
    *,
    limit: int = 4,
    engine: Callable[[], ClaimEngine] = lambda: ClaimEngine("here", ("orders",)),
    between: Callable[[], None] = lambda: None,
) -> None:
    """One run of a query with availableNow, in the order in which Spark calls; Killed leaves it anywhere."""
    claim_runner = ClaimRunner(engine(), StandInAccess(queue, owner, steps))
    start: Any = json.loads(logs.offsets[-1]) if logs.offsets else claim_runner.initial()
    if len(logs.offsets) > logs.commits:
        before = json.loads(logs.offsets[-2]) if len(logs.offsets) > 1 else claim_runner.initial()
        _batch(logs, queue, steps, claim_runner, before, start)
    while True:
        between()
        end, _ = claim_runner.latest(start, limit, 0)
        if json.dumps(end) == json.dumps(start):
            return
        steps.step()
        logs.offsets.append(json.dumps(end))
        steps.step()
        if logs.commits:
            claim_runner.commit(start)
        _batch(logs, queue, steps, claim_runner, start, json.loads(logs.offsets[-1]))
        start = json.loads(logs.offsets[-1])


def _batch(logs: Logs, queue: StandIn, steps: Steps, claim_runner: ClaimRunner, start: Any, end: Any) -> None:
    plan = claim_runner.plan(start, end)
    wanted = list(plan.claim.get(QUEUE, {}))
    steps.step()
    states = queue.seen()
    broken = [number for number in wanted if number not in states or not states[number].is_deferred]
    assert not broken, f"the claim is broken: {broken}"
    steps.step()
    logs.sink[len(logs.offsets)] = wanted
    steps.step()
    logs.commits = len(logs.offsets)
    steps.step()
