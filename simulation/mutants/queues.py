"""Planted bugs: real classes of mistakes, put in by the test that wants to see them caught.

Each replaces a piece of the product while its context lasts; the product itself has no switch for any of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from duobus.broker.commit_loop import CommitLoop
from duobus.broker.delivery import session_groups
from duobus.broker.entities import placement
from duobus.broker.scale_unit import ScaleUnit
from duobus.fragment import duplicate_detection as duplicates
from duobus.fragment.commands import Command
from duobus.fragment.fragment import Fragment
from duobus.fragment.message import ACTIVE, MAIN, QueuedMessage, kind_of
from duobus.fragment.receive import TakeAndRemove
from duobus.fragment.send import Run
from duobus.fragment.sessions import delivery_batches as session_turns
from duobus.fragment.sessions import sessions
from duobus.fragment.sessions import states as session_states
from duobus.fragment.settlement import DEFER, SettleBatch
from duobus.fragment.source import Source
from duobus.gateway.amqp import mapping
from duobus.gateway.amqp.mapping import Incoming
from duobus.model.assigned_ids import MessageIds
from duobus.model.batches import DeliveryBatch
from duobus.storage.interface import CommitBatch, SourceRow
from simulation.mutants.forwarding import FORWARDING_BUGS
from simulation.mutants.message_states import STATE_BUGS
from simulation.mutants.outages import OUTAGE_BUGS
from simulation.mutants.transactions import TRANSACTION_BUGS
from simulation.mutants.waiting import WAIT_BUGS
from simulation.world.disk import Disk
from simulation.world.stores import CrashingStore


@contextmanager
def acknowledge_before_commit() -> Iterator[None]:
    """Answers go out when a commit starts instead of when it is durable."""
    original = CommitLoop._decide_all

    def decide_all(self: CommitLoop, now_ms: int, commit: CommitBatch) -> list[Command]:
        work = original(self, now_ms, commit)
        for command in work:
            if isinstance(command, (Run, SettleBatch)) and command.reply is not None:
                command.reply.ready.append(command)
                command.reply.wake()
                command.reply = None
        return work

    with mock.patch.object(CommitLoop, "_decide_all", decide_all):
        yield


@contextmanager
def token_valid_after_restart() -> Iterator[None]:
    """Lock tokens of an earlier life are honoured when their counter fits: same prefix and counter in every life."""
    original = Fragment.__init__

    def init(self: Fragment, handle: object, key: int, number: int, epoch: int, salt: bytes) -> None:
        original(self, handle, key, number, 1, bytes(10))
        self.epoch = epoch

    with mock.patch.object(Fragment, "__init__", init):
        yield


@contextmanager
def expired_token_completes() -> Iterator[None]:
    """A lock's end makes the message available again and leaves the lock valid."""
    original = Fragment._end_locks

    def end_locks(self: Fragment, source: Source, now_ms: int, keeping: Any) -> None:
        held = dict(source.locks)
        original(self, source, now_ms, keeping)
        for lock, message in held.items():
            source.locks.setdefault(lock, message)

    def apply(command: SettleBatch, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        apply_original(command, fragment, source, now_ms, commit)
        for message in command.messages:
            for sub_queue in source.sub_queues:
                sub_queue.returned[:] = [entry for entry in sub_queue.returned if entry[1] is not message]
            for lock in [lock for lock, other in source.locks.items() if other is message]:
                del source.locks[lock]

    apply_original = SettleBatch.apply
    with mock.patch.object(Fragment, "_end_locks", end_locks), mock.patch.object(SettleBatch, "apply", apply):
        yield


@contextmanager
def key_placed_by_hash() -> Iterator[None]:
    """Keys are placed by something that differs from process to process, as ``hash()`` does."""
    lives = {"number": 0}

    def slot_of(key: bytes, slots: int) -> int:
        return (sum(key) + lives["number"]) % slots

    original = ScaleUnit.start

    async def start(self: ScaleUnit, contents: Any) -> None:
        lives["number"] += 1
        await original(self, contents)

    with mock.patch.object(placement, "slot_of", slot_of), mock.patch.object(ScaleUnit, "start", start):
        yield


@contextmanager
def ping_delivered() -> Iterator[None]:
    """A ping is a message like any other."""
    original = mapping.take_apart

    def take_apart(payload: bytes, ids: MessageIds | None = None) -> Incoming:
        return original(payload, ids)._replace(is_ping=False)

    with mock.patch("duobus.gateway.amqp.links.incoming_link.take_apart", take_apart):
        yield


@contextmanager
def removed_after_transfer() -> Iterator[None]:
    """Receive-and-delete shows messages when the commit that removes them starts."""
    original = CommitLoop._decide_all

    def decide_all(self: CommitLoop, now_ms: int, commit: CommitBatch) -> list[Command]:
        work = original(self, now_ms, commit)
        for command in work:
            if isinstance(command, TakeAndRemove) and command.messages:
                batch = DeliveryBatch(command.handle, bytes(8), 0, command.messages, 0)
                command.receiver.mailbox.ready.append(batch)
                command.receiver.mailbox.wake()
                command.receiver = _Nobody()
        return work

    with mock.patch.object(CommitLoop, "_decide_all", decide_all):
        yield


class _Nobody:
    def deliver(self, batch: DeliveryBatch, granted: int) -> None:
        """The messages have been shown already."""


@contextmanager
def highest_count_not_persisted() -> Iterator[None]:
    """The next count is made from the highest message that is there, as if it were not kept."""
    original = Fragment.add_source

    def add_source(self: Fragment, row: SourceRow, settings: Any) -> Source:
        row.next_count = min(row.next_count, row.highest_delivered + 1)
        return original(self, row, settings)

    # The store refuses a count that goes back, for ever: the broker never comes to rest.
    with mock.patch.object(Fragment, "add_source", add_source):
        yield


@contextmanager
def delivery_count_reset() -> Iterator[None]:
    """A recovery forgets delivery counts."""
    original = Fragment.recover

    def recover(self: Fragment, source_no: int, rows: Any) -> None:
        rows = list(rows)
        for row in rows:
            row.deliveries = 0
        source = self.sources[source_no]
        highest, source.highest_delivered = source.highest_delivered, 0
        original(self, source_no, rows)
        source.highest_delivered = highest

    with mock.patch.object(Fragment, "recover", recover):
        yield


@contextmanager
def no_sync() -> Iterator[None]:
    """A commit returns before it is durable, as with ``synchronous=NORMAL``; a power cut shows it."""
    original = Disk.__init__

    def init(self: Disk, *arguments: Any, **named: Any) -> None:
        named["lies_about_sync"] = True
        original(self, *arguments, **named)

    with mock.patch.object(Disk, "__init__", init):
        yield


@contextmanager
def abandoned_to_the_tail() -> Iterator[None]:
    """What comes back goes behind what was never delivered."""
    original = Fragment.place

    def place(self: Fragment, source: Source, message: QueuedMessage, *, in_order: bool) -> None:
        if not in_order and kind_of(message.state) == ACTIVE and message.state == MAIN:
            source.sub_queues[MAIN].ready.append(message)
            self.fresh.add((source.source_no, MAIN))
            return
        original(self, source, message, in_order=in_order)

    with mock.patch.object(Fragment, "place", place):
        yield


@contextmanager
def deferred_comes_again() -> Iterator[None]:
    """A deferred message goes back to those that anybody receives."""
    original = SettleBatch.release

    def release(command: SettleBatch, fragment: Fragment, source: Source, now_ms: int) -> None:
        if command.outcome == DEFER:
            for message in command.messages:
                message.state = MAIN
        original(command, fragment, source, now_ms)

    with mock.patch.object(SettleBatch, "release", release):
        yield


@contextmanager
def tombstones_forgotten() -> Iterator[None]:
    """A run whose commit was ambiguous is sent elsewhere without a tombstone."""
    with mock.patch.object(ScaleUnit, "tombstones_of", return_value=[]):
        yield


@contextmanager
def batch_half_stored() -> Iterator[None]:
    """Of a run of several messages the last is answered and not written."""
    original = Run.apply

    def apply(run: Run, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        original(run, fragment, source, now_ms, commit)
        if fragment.topic is None and len(run.messages) > 1 and run.batch.atomic:
            put = commit.puts[-1]
            put.payloads = list(put.payloads)[:-1]
            if put.all_metadata:
                put.all_metadata = {
                    index: with_metadata
                    for index, with_metadata in put.all_metadata.items()
                    if index < len(put.payloads)
                }

    with mock.patch.object(Run, "apply", apply):
        yield


@contextmanager
def store_kept_open() -> Iterator[None]:
    """A failed commit is taken for one that never happened: memory goes on as if nothing was."""
    original = CommitLoop._committed

    def committed(self: CommitLoop, life: int, commit: CommitBatch, result: None, error: BaseException | None) -> None:
        original(self, life, commit, None, None)

    def kept(self: CrashingStore, batch: CommitBatch) -> None:
        try:
            commit(self, batch)
        except Exception:  # noqa: BLE001 - the planted bug: whatever it was, go on
            self._usable = True

    commit = CrashingStore.commit
    with mock.patch.object(CommitLoop, "_committed", committed), mock.patch.object(CrashingStore, "commit", kept):
        yield


@contextmanager
def lock_not_exclusive() -> Iterator[None]:
    """A locked message is handed out a second time."""
    original = Fragment.lock

    def lock(
        self: Fragment, source_no: int, sub_queue: int, limit: int, now_ms: int
    ) -> tuple[int, list[QueuedMessage], int]:
        found = original(self, source_no, sub_queue, limit, now_ms)
        if sub_queue == MAIN and found[1] and self.next_lock % 7 == 0:
            self.sources[source_no].sub_queues[sub_queue].give_back(found[1][0])
            self.fresh.add((source_no, sub_queue))
        return found

    with mock.patch.object(Fragment, "lock", lock):
        yield


@contextmanager
def history_lost_at_restart() -> Iterator[None]:
    """A recovery begins with an empty duplicate history."""
    with mock.patch.object(CrashingStore, "load_ids", return_value=[]):
        yield


@contextmanager
def session_handed_out_twice() -> Iterator[None]:
    """A session that somebody holds is given to whoever names it."""
    original = sessions.accept

    def accept(fragment: Fragment, source: Source, session_id: str, owner: Any, now_ms: int) -> Any:
        assert source.sessions is not None
        held = source.sessions.by_id.get(session_id)
        if held is not None:
            held.lock = None
        return original(fragment, source, session_id, owner, now_ms)

    with mock.patch.object(sessions, "accept", accept):
        yield


@contextmanager
def history_outlives_its_run() -> Iterator[None]:
    """A run that is deleted because its sender was refused leaves its ids behind: the next attempt is dropped."""
    with mock.patch("simulation.world.stores.forget_ids"):
        yield


@contextmanager
def session_state_lost_at_restart() -> Iterator[None]:
    """A recovery does not look for the states of sessions."""
    with mock.patch.object(session_states, "recover_state", return_value=None):
        yield


@contextmanager
def window_begun_anew() -> Iterator[None]:
    """A duplicate makes its id known for another whole window."""
    original = duplicates.admit

    def admit(source: Source, run: Run, now_ms: int, commit: CommitBatch) -> list[int] | None:
        kept = original(source, run, now_ms, commit)
        history, ids = source.history, run.batch.ids
        if history is not None and ids is not None:
            again = [one for index in run.dropped or () if (one := ids[index]) is not None]
            for at, (at_ms, count, block) in enumerate(history.blocks):
                history.blocks[at] = (at_ms, count, [one for one in block if one not in again])
            history.blocks.append((now_ms, source.next_count, again))
        return kept

    with mock.patch.object(duplicates, "admit", admit):
        yield


@contextmanager
def session_newest_first() -> Iterator[None]:
    """Messages of a session are handed out from the other end."""

    def take(self: sessions.Sessions, source: Source, session: sessions.Session, limit: int) -> list[QueuedMessage]:
        messages = original(self, source, session, session.available)
        for message in messages[:-limit]:
            self.add(message)
        return messages[-limit:]

    def turn(
        fragment: Fragment, source: Source, asked: Sequence[tuple[sessions.SessionLock, int, int]]
    ) -> tuple[int, list[QueuedMessage]]:
        older: list[list[QueuedMessage]] = []
        for lock, left, _ in asked:
            messages = original(source.sessions, source, lock.session, lock.session.available)  # type: ignore[arg-type]
            older.append(messages[:-left])
            for message in messages[-left:]:
                sessions.sessions_of(source).add(message)
        found = of_turn(fragment, source, asked)
        for message in itertools.chain(*older):
            sessions.sessions_of(source).add(message)
        return found

    original, of_turn = sessions.Sessions.take, session_turns.take_for_sessions
    with (
        mock.patch.object(sessions.Sessions, "take", take),
        mock.patch.object(session_groups, "take_for_sessions", turn),
    ):
        yield


MUTANTS: dict[str, Callable[[], Any]] = {
    "acknowledge-before-commit": acknowledge_before_commit,
    "token-valid-after-restart": token_valid_after_restart,
    "expired-token-completes": expired_token_completes,
    "key-placed-by-hash": key_placed_by_hash,
    "ping-delivered": ping_delivered,
    "removed-after-transfer": removed_after_transfer,
    "highest-count-not-persisted": highest_count_not_persisted,
    "delivery-count-reset": delivery_count_reset,
    "no-sync": no_sync,
    "abandoned-to-the-tail": abandoned_to_the_tail,
    "deferred-comes-again": deferred_comes_again,
    "tombstones-forgotten": tombstones_forgotten,
    "batch-half-stored": batch_half_stored,
    "store-kept-open": store_kept_open,
    "lock-not-exclusive": lock_not_exclusive,
    "history-lost-at-restart": history_lost_at_restart,
    "history-outlives-its-run": history_outlives_its_run,
    "window-begun-anew": window_begun_anew,
    **TRANSACTION_BUGS,
    **FORWARDING_BUGS,
    "session-handed-out-twice": session_handed_out_twice,
    "session-state-lost-at-restart": session_state_lost_at_restart,
    "session-newest-first": session_newest_first,
    **STATE_BUGS,
    **WAIT_BUGS,
    **OUTAGE_BUGS,
}
