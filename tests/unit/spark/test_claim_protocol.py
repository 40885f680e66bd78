"""The claim protocol loses, doubles and forgets nothing, wherever processes end."""

from __future__ import annotations

import json
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from claim_standin import LOCK_MS, QUEUE, Killed, Logs, StandIn, StandInAccess, Steps, run

from duobus.spark.claims.engine import REMEMBERED, ClaimEngine, Due, Seen
from duobus.spark.claims.lock_handles import LockHandle, is_active, seen_of
from duobus.spark.claims.runner import ClaimPlan, ClaimRunner
from duobus.spark.errors import CheckpointError
from duobus.spark.offsets import ClaimOffset, Key, mark_of
from duobus.spark.peek_decoder import DEFERRED_IN, Peeked
from duobus.spark.retry import BackgroundWork


def knowing() -> ClaimEngine:
    """An engine that knows from the start that a deferral counts as no delivery."""
    return ClaimEngine("here", ("orders",), counted=0)


def claiming() -> ClaimEngine:
    """An engine whose broker claims; the name of its stream is another one in each process that has to give one."""
    names = iter(f"stream {number}" for number in range(9))
    return ClaimEngine("here", ("orders",), counted=0, new_name=lambda: next(names))


def until_done(queue: StandIn, steps: Steps, *, lapses: bool, between: object = None, limit: int = 4) -> Logs:
    """Start the query again until a run comes to its end; each process loses its connection or lets its locks lapse."""
    logs = Logs()
    more: dict[str, Any] = {"between": between} if between else {}
    if queue.claims:
        more["engine"] = claiming
    for attempt in range(50):
        owner = f"process {attempt}"
        try:
            run(logs, queue, steps, owner, limit=limit, **more)
        except Killed:
            if lapses:
                queue.now += LOCK_MS + 1
            else:
                queue.connection_lost(owner)
            continue
        # The last batch is settled by whatever comes next.
        run(logs, queue, Steps(), "last", **({"engine": more["engine"]} if "engine" in more else {}))
        return logs
    raise AssertionError("the query never came to its end")


def total_steps(messages: int) -> int:
    steps = Steps()
    until_done(StandIn(messages), steps, lapses=False)
    return steps.done


def assert_exact(logs: Logs, queue: StandIn, messages: int, others: list[int] | None = None) -> None:
    found = Counter(logs.rows() + (others or []))
    assert found == Counter(range(1, messages + 1))
    assert queue.left() == 0


@pytest.mark.parametrize("lapses", [False, True])
@pytest.mark.parametrize("counts", [False, True])
def test_a_process_may_end_at_any_step(lapses: bool, counts: bool) -> None:
    """SP2."""
    for end in range(1, total_steps(10) + 1):
        queue = StandIn(10, counts=counts)
        assert_exact(until_done(queue, Steps((end,)), lapses=lapses), queue, 10)


@pytest.mark.parametrize("lapses", [False, True])
def test_processes_may_end_at_any_two_steps(lapses: bool) -> None:
    last = total_steps(9)
    for first in range(1, last + 1):
        for second in range(first + 1, last + 20):
            queue = StandIn(9)
            assert_exact(until_done(queue, Steps((first, second)), lapses=lapses), queue, 9)


def test_a_batch_that_replays_keeps_what_the_batch_before_it_lists_too() -> None:
    """Rule 4: without the exception, settling batch 1 deletes what batch 2 has yet to read (40 of 100 were lost)."""
    queue = StandIn(4)
    # Ends in the middle of the deferrals of batch 1, and again when batch 2, which claims the rest of it, has deferred.
    logs = Logs()
    with pytest.raises(Killed):
        run(logs, queue, Steps((7,)), "one")
    queue.connection_lost("one")
    dropped = [number for number, seen in queue.seen().items() if not seen.is_deferred]
    assert dropped
    steps = Steps()
    original = steps.step

    def step() -> None:
        original()
        if len(logs.offsets) == 2 and all(seen.is_deferred for seen in queue.seen().values()):
            raise Killed

    steps.step = step  # type: ignore[method-assign]
    with pytest.raises(Killed):
        run(logs, queue, steps, "two")
    queue.connection_lost("two")
    first, second = (ClaimOffset.from_json(json.loads(text)) for text in logs.offsets)
    assert set(first.claim[QUEUE]) & set(second.claim[QUEUE]) == set(dropped)
    run(logs, queue, Steps(), "three")
    run(logs, queue, Steps(), "four")
    assert_exact(logs, queue, 4)


def test_what_both_batches_list_is_not_due_with_the_first() -> None:
    engine = ClaimEngine("here", ("orders",))
    first = ClaimOffset("here", 1, {QUEUE: {1: 0, 2: 0, 3: 0}})
    second = ClaimOffset("here", 2, {QUEUE: {2: 1, 4: 0}})
    assert engine.due(first, second) == Due(1, {QUEUE: {1: 0, 3: 0}}, is_certain=False)


@pytest.mark.parametrize("seed", range(60))
def test_with_a_rival_and_kills_at_random_each_message_is_somewhere_once(seed: int) -> None:
    chance = random.Random(seed)
    messages = 40
    queue = StandIn(messages, counts=bool(seed % 2))
    rival: list[int] = []

    def between() -> None:
        queue.receive(chance.randrange(4), "rival")
        rival.extend(queue.complete("rival"))

    ends = tuple(sorted(chance.sample(range(1, 150), 6)))
    logs = until_done(queue, Steps(ends), lapses=chance.random() < 0.5, between=between)
    assert_exact(logs, queue, messages, rival)


def test_two_streams_may_claim_from_one_queue_while_both_are_killed() -> None:
    """What one stream lists but did not come to defer, and the other defers, belongs to the other."""
    for seed in range(300):
        chance = random.Random(seed)
        queue = StandIn(24)
        both = (Logs(), Logs())
        steps = (
            Steps(tuple(sorted(chance.sample(range(1, 60), 4)))),
            Steps(tuple(sorted(chance.sample(range(1, 60), 4)))),
        )
        for attempt in range(40):
            which = chance.randrange(2)
            owner = f"stream {which}, process {attempt}"
            try:
                run(both[which], queue, steps[which], owner, limit=chance.randrange(1, 6), engine=knowing)
            except Killed:
                queue.connection_lost(owner)
        for which in (0, 1):
            run(both[which], queue, Steps(), f"last of {which}", engine=knowing)
            run(both[which], queue, Steps(), f"very last of {which}", engine=knowing)
        assert Counter(both[0].rows() + both[1].rows()) == Counter(range(1, 25)), seed
        assert queue.left() == 0


@pytest.mark.parametrize("is_over", [False, True])
def test_what_a_killed_broker_forgot_to_have_delivered_belongs_to_who_defers_it(is_over: bool) -> None:
    """Both streams have received it for the first time, as far as its count tells."""
    queue = StandIn(4)
    first = ClaimRunner(knowing(), StandInAccess(queue, "first", Steps()))
    start = first.initial()
    end, _ = first.latest(start, 4, 0)
    queue.killed()
    second = ClaimRunner(knowing(), StandInAccess(queue, "second", Steps()))
    theirs, _ = second.latest(start, 2, 0)
    assert set(second.plan(start, theirs).claim[QUEUE]) == {1, 2}
    if is_over:
        # The first stream's process has ended, too.
        first = ClaimRunner(knowing(), StandInAccess(queue, "first again", Steps()))
    queue.now += LOCK_MS + 1
    assert first.plan(start, end).claim == {}
    # The second one's own claim is still its own after a restart of it.
    again = ClaimRunner(knowing(), StandInAccess(queue, "second again", Steps()))
    assert set(again.plan(start, theirs).claim[QUEUE]) == {1, 2}


def test_two_streams_and_their_broker_may_be_killed_at_any_time() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        queue = StandIn(24)
        both = (Logs(), Logs())
        steps = tuple(Steps(tuple(sorted(chance.sample(range(1, 60), 5)))) for _ in both)
        for attempt in range(40):
            which = chance.randrange(2)
            owner = f"stream {which}, process {attempt}"
            try:
                run(both[which], queue, steps[which], owner, limit=chance.randrange(1, 6), engine=knowing)
            except Killed:
                if chance.random() < 0.5:
                    queue.killed()
                else:
                    queue.connection_lost(owner)
        for which in (0, 1):
            run(both[which], queue, Steps(), f"last of {which}", engine=knowing)
            run(both[which], queue, Steps(), f"very last of {which}", engine=knowing)
        assert Counter(both[0].rows() + both[1].rows()) == Counter(range(1, 25)), seed
        assert queue.left() == 0


def test_deferring_before_the_offset_is_written_would_leave_messages_behind() -> None:
    """The counter-example, so that nobody turns the order around: nothing is deferred when ``latest`` returns."""
    queue = StandIn(4)
    claim_runner = ClaimRunner(ClaimEngine("here", ("orders",)), StandInAccess(queue, "one", Steps()))
    claim_runner.latest(claim_runner.initial(), 4, 0)
    assert not any(seen.is_deferred for seen in queue.seen().values())


def test_the_same_batch_is_planned_once() -> None:
    queue = StandIn(4)
    claim_runner = ClaimRunner(ClaimEngine("here", ("orders",)), StandInAccess(queue, "one", Steps()))
    start = claim_runner.initial()
    end, count = claim_runner.latest(start, 4, 0)
    assert count == 4
    assert claim_runner.plan(start, end) is claim_runner.plan(start, end)


def test_a_message_whose_lock_ended_before_it_was_deferred_is_left_to_a_later_batch() -> None:
    queue = StandIn(4)
    claim_runner = ClaimRunner(ClaimEngine("here", ("orders",)), StandInAccess(queue, "one", Steps()))
    start = claim_runner.initial()
    end, _ = claim_runner.latest(start, 2, 0)
    queue.now += LOCK_MS + 1
    assert claim_runner.plan(start, end).dropped == 2
    later, count = claim_runner.latest(end, 4, 0)
    assert count == 4
    assert set(claim_runner.plan(end, later).claim[QUEUE]) == {1, 2, 3, 4}


def test_an_idle_poll_settles_nothing_again() -> None:
    engine = ClaimEngine("here", ("orders",))
    start = ClaimOffset("here", 1, {QUEUE: {1: 0}})
    assert engine.due(start) is not None
    engine.settled(1)
    assert engine.due(start) is None


def test_a_poll_that_brings_nothing_ends_where_it_began_and_counts_nothing() -> None:
    claim_runner = ClaimRunner(ClaimEngine("here", ("orders",)), StandInAccess(StandIn(0), "one", Steps()))
    start = claim_runner.initial()
    assert claim_runner.latest(start, 4, 0) == (start, 0)


def test_what_a_process_deferred_itself_is_settled_without_a_look_at_it() -> None:
    queue = StandIn(2)
    access = StandInAccess(queue, "one", Steps())
    claim_runner = ClaimRunner(ClaimEngine("here", ("orders",)), access)
    start = claim_runner.initial()
    end, _ = claim_runner.latest(start, 2, 0)
    claim_runner.plan(start, end)
    access.seen = None  # type: ignore[assignment, method-assign]
    claim_runner.latest(end, 2, 0)
    assert queue.left() == 0


def test_with_settle_on_commit_progress_alone_settles_nothing_that_this_process_planned() -> None:
    engine = ClaimEngine("here", ("orders",), settles_early=False)
    end = ClaimOffset("here", 1, {QUEUE: {1: 0}})
    engine.planned(end, end.claim, None)
    assert engine.due(end) is None
    assert engine.due(end, at_commit=True) == Due(1, end.claim, is_certain=True)


def test_with_settle_on_commit_a_commit_that_was_lost_is_made_up_for_by_the_next_process() -> None:
    engine = ClaimEngine("here", ("orders",), settles_early=False)
    assert engine.due(ClaimOffset("here", 1, {QUEUE: {1: 0}})) == Due(1, {QUEUE: {1: 0}}, is_certain=False)


def test_a_batch_whose_commit_was_lost_is_settled_when_the_next_one_replays() -> None:
    queue = StandIn(4)
    access = StandInAccess(queue, "one", Steps())
    first = ClaimRunner(ClaimEngine("here", ("orders",), settles_early=False), access)
    start = first.initial()
    end, _ = first.latest(start, 2, 0)
    first.plan(start, end)
    later, _ = first.latest(end, 2, 0)
    access.remove = None  # type: ignore[assignment, method-assign]
    first.commit(end)
    first.plan(end, later)
    assert queue.left() == 4

    # The process ends before the second batch is committed; another one reads that again.
    engine = ClaimEngine("here", ("orders",), settles_early=False)
    second = ClaimRunner(engine, StandInAccess(queue, "two", Steps()))
    assert set(second.plan(end, later).claim[QUEUE]) == {3, 4}
    assert set(queue.seen()) == {3, 4}


def test_a_batch_that_ends_where_it_begins_has_nothing_and_drops_nothing() -> None:
    claim_runner = ClaimRunner(knowing(), StandInAccess(StandIn(1), "one", Steps()))
    start = claim_runner.initial()
    assert claim_runner.plan(start, start) == ClaimPlan({}, 0)


def test_a_checkpoint_of_another_namespace_is_refused() -> None:
    with pytest.raises(CheckpointError, match="belongs to the namespace 'there', the stream reads 'here'"):
        ClaimEngine("here", ("orders",)).read(ClaimOffset("there", 1).to_json())


def test_a_checkpoint_of_another_entity_is_refused() -> None:
    form = ClaimOffset("here", 1, {Key("bills"): {1: 0}}).to_json()
    with pytest.raises(CheckpointError, match="claimed messages of 'bills', which the stream does not read"):
        ClaimEngine("here", ("orders",)).read(form)


def test_an_error_while_committing_does_not_fail_the_query() -> None:
    queue = StandIn(2)
    access = StandInAccess(queue, "one", Steps())
    claim_runner = ClaimRunner(ClaimEngine("here", ("orders",)), access)
    start = claim_runner.initial()
    end, _ = claim_runner.latest(start, 2, 0)
    claim_runner.plan(start, end)
    good, access.remove = access.remove, None  # type: ignore[assignment, method-assign]
    claim_runner.commit(end)
    access.remove = good  # type: ignore[method-assign]
    claim_runner.latest(end, 2, 0)
    assert queue.left() == 0


def test_with_settle_on_commit_a_commit_settles() -> None:
    queue = StandIn(4)
    engine = ClaimEngine("here", ("orders",), settles_early=False)
    claim_runner = ClaimRunner(engine, StandInAccess(queue, "one", Steps()))
    start = claim_runner.initial()
    end, _ = claim_runner.latest(start, 2, 0)
    claim_runner.plan(start, end)
    later, _ = claim_runner.latest(end, 2, 0)
    claim_runner.plan(end, later)
    assert queue.left() == 4
    claim_runner.commit(end)
    assert queue.left() == 2


@pytest.mark.parametrize("counts", [False, True])
def test_an_offset_says_by_how_much_a_deferral_counts_as_soon_as_that_is_known(counts: bool) -> None:
    queue = StandIn(6, counts=counts)
    claim_runner = ClaimRunner(ClaimEngine("here", ("orders",)), StandInAccess(queue, "one", Steps()))
    start = claim_runner.initial()
    first, _ = claim_runner.latest(start, 2, 0)
    assert ClaimOffset.from_json(first).counted is None
    claim_runner.plan(start, first)
    second, _ = claim_runner.latest(first, 2, 0)
    assert ClaimOffset.from_json(second).counted == int(counts)
    # A new process knows it from the offset before its own.
    claim_runner = ClaimRunner(ClaimEngine("here", ("orders",)), StandInAccess(queue, "two", Steps()))
    third, _ = claim_runner.latest(second, 2, 0)
    assert ClaimOffset.from_json(third).counted == int(counts)
    assert ClaimOffset.from_json(third).batch == 3


@pytest.mark.parametrize("settles_last", [False, True])
def test_a_batch_is_settled_while_the_next_one_is_claimed(settles_last: bool) -> None:
    queue = StandIn(12, claims=True)
    access = StandInAccess(queue, "one", Steps())
    access.settles_last = settles_last
    claim_runner = ClaimRunner(claiming(), access)
    offsets = [claim_runner.initial()]
    for _ in range(3):
        end, count = claim_runner.latest(offsets[-1], 4, 0)
        assert count == 4
        claim_runner.plan(offsets[-1], end)
        offsets.append(end)
    assert claim_runner.latest(offsets[-1], 4, 0) == (offsets[-1], 0)
    assert queue.left() == 0


def test_a_batch_that_could_not_be_settled_is_settled_at_the_next_call_and_the_new_claim_told_again() -> None:
    queue = StandIn(12, claims=True)
    access = StandInAccess(queue, "one", Steps())
    claim_runner = ClaimRunner(claiming(), access)
    first, _ = claim_runner.latest(claim_runner.initial(), 4, 0)
    claim_runner.plan(claim_runner.initial(), first)
    second, _ = claim_runner.latest(first, 4, 0)
    claim_runner.plan(first, second)
    settled, access.settle = access.settle, failing  # type: ignore[method-assign, assignment]
    with pytest.raises(OSError, match="away"):
        claim_runner.latest(second, 4, 0)
    access.settle = settled  # type: ignore[method-assign]
    third, count = claim_runner.latest(second, 4, 0)
    assert (count, queue.left()) == (4, 4)
    assert list(ClaimOffset.from_json(third).claim[QUEUE]) == [9, 10, 11, 12]


def failing(*_: Any) -> bool:
    """The broker does not answer."""
    raise OSError("away")


def test_work_aside_gives_its_result_or_its_error_to_who_waits_for_it() -> None:
    assert BackgroundWork(lambda: 5).result() == 5
    with pytest.raises(OSError, match="away"):
        BackgroundWork(failing).result()


def test_a_process_remembers_its_last_plans_and_forgets_older_ones() -> None:
    engine = knowing()
    ends = [ClaimOffset("here", number, {QUEUE: {number: 0}}) for number in range(1, REMEMBERED + 2)]
    for end in ends:
        engine.planned(end, end.claim, f"plan {end.batch}")
    assert [engine.plan_of(end) for end in ends] == [None, *(f"plan {end.batch}" for end in ends[1:])]
    assert engine.plan_of(ClaimOffset("here", 2, {QUEUE: {9: 0}})) is None


def test_a_stream_of_a_pattern_takes_what_it_claimed_of_any_entity() -> None:
    form = ClaimOffset("here", 1, {Key("bills"): {1: 0}}).to_json()
    assert ClaimEngine("here", None).read(form).claim == {Key("bills"): {1: 0}}


def test_what_is_deferred_belongs_to_who_received_it_with_that_count_and_in_that_life() -> None:
    claim = {QUEUE: {1: mark_of(2, 7)}}
    for counted, engine_counted, ours in ((0, None, {2}), (1, 0, {3}), (None, 1, {3}), (None, None, {2, 3})):
        engine = ClaimEngine("here", None, counted=engine_counted)
        offset = ClaimOffset("here", 1, claim, counted)
        found = {n for n in range(6) if engine.ours(offset, {QUEUE: {1: Seen(True, n)}})}
        assert found == ours
        count = min(ours)
        assert not engine.ours(offset, {QUEUE: {1: Seen(False, count)}})
        assert engine.ours(offset, {QUEUE: {1: Seen(True, count, 7)}}) == claim
        assert engine.ours(offset, {}) == {}
        assert not engine.ours(offset, {QUEUE: {1: Seen(True, count, 8)}})
        assert engine.ours(ClaimOffset("here", 1, {QUEUE: {1: 2}}, counted), {QUEUE: {1: Seen(True, count, 8)}})


def test_messages_are_taken_for_locked_while_they_are_as_they_were_received() -> None:
    claim = {QUEUE: {1: mark_of(2, 7), 2: 0}, Key("gone"): {3: 0}}
    assert ClaimEngine.locked(claim, {QUEUE: {1: Seen(False, 2), 2: Seen(False, 0)}}) == 2
    assert ClaimEngine.locked(claim, {QUEUE: {1: Seen(True, 2), 2: Seen(False, 1)}}) == 0
    assert ClaimEngine.locked(claim, {QUEUE: {1: Seen(False, 3)}}) == 0


# --- what is kept of a message ----------------------------------------------------------------------------------------


def test_a_third_of_the_shortest_lock_has_to_be_left() -> None:
    handle = LockHandle(1, 0, None, 20_000, 0, 0)
    assert handle.is_safe(15_000)
    assert not handle.is_safe(15_001)


def test_the_life_of_a_fragment_is_read_from_a_lock_token() -> None:
    prefix = (3).to_bytes(2, "big") + (0x01020304).to_bytes(4, "big") + b"sa"
    handle = LockHandle(1, 0, UUID(bytes_le=prefix + bytes(8)), 0, 0, 0)
    assert handle.life == 0x01020304


def test_a_message_that_was_looked_at_tells_whether_it_is_deferred_in_either_form() -> None:
    def peeked(state: str, deliveries: int | None) -> Peeked:
        values: dict[str, Any] = dict.fromkeys(Peeked._fields)
        return Peeked(**values | {"state": state, "delivery_count": deliveries})

    assert seen_of(peeked("deferred", 3)) == Seen(True, 3, None)
    assert seen_of(peeked("active", None)) == Seen(False, 0, None)
    raw = SimpleNamespace(annotations={DEFERRED_IN: 5})
    for state in (SimpleNamespace(value=1), 1):
        message = SimpleNamespace(state=state, delivery_count=2, raw_amqp_message=raw)
        assert seen_of(message) == Seen(True, 2, 5)
        assert not is_active(message)
    for state in (SimpleNamespace(value=0), 0):
        message = SimpleNamespace(state=state, delivery_count=None, raw_amqp_message=None)
        assert seen_of(message) == Seen(False, 0, None)
        assert is_active(message)


# -- a broker that claims ----------------------------------------------------------------------------------------


def steps_of(queue: StandIn) -> int:
    steps = Steps()
    until_done(queue, steps, lapses=False)
    return steps.done


def test_the_first_batch_is_received_and_the_next_ones_are_claimed_by_the_broker() -> None:
    """The offset of the first one has the name that the ids of the others are made of."""
    queue = StandIn(10, claims=True)
    logs = until_done(queue, Steps(), lapses=False)
    offsets = [ClaimOffset.from_json(json.loads(text)) for text in logs.offsets]
    assert [(offset.stream, offset.parts) for offset in offsets] == [("stream 0", 0), ("stream 0", 1), ("stream 0", 1)]
    assert_exact(logs, queue, 10)


def test_with_a_broker_that_claims_processes_may_end_at_any_two_steps() -> None:
    last = steps_of(StandIn(5, claims=True))
    for first in range(1, last + 1):
        for second in range(first, last + 12):
            queue = StandIn(5, claims=True)
            assert_exact(until_done(queue, Steps((first, second)), lapses=False, limit=2), queue, 5)


def test_claims_that_were_given_back_before_a_task_read_them_come_with_a_later_batch() -> None:
    """A process that ends in order gives back what it has claimed, whether Spark has written that down or not."""
    last = steps_of(StandIn(9, claims=True))
    for end in range(1, last + 1):
        queue, logs = StandIn(9, claims=True), Logs()
        steps = Steps((end,))
        planned = StandInAccess.planned

        def note(access: StandInAccess, planned: Any = planned) -> None:
            planned(access)
            access.queue.rows.execute("update m set owner='tasks' where deferred=1")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StandInAccess, "planned", note)
            try:
                run(logs, queue, steps, "first", engine=claiming)
            except Killed:
                queue.rows.execute(
                    "update m set deferred=0, claim=null where deferred=1 and claim is not null and owner is null"
                )
                queue.rows.execute("update m set lock=-1, deliveries=deliveries+1 where lock>=0")
                for attempt in range(3):
                    run(logs, queue, Steps(), f"again {attempt}", engine=claiming)
            else:
                run(logs, queue, Steps(), "last", engine=claiming)
        assert_exact(logs, queue, 9)


@pytest.mark.parametrize("seed", range(60))
def test_two_streams_claim_at_a_broker_and_receive_while_both_are_killed(seed: int) -> None:
    """One of them is of an earlier version, which receives and defers."""
    chance = random.Random(seed)
    queue = StandIn(24, claims=True)
    both = (Logs(), Logs())
    engines = (claiming, knowing)
    steps = tuple(Steps(tuple(sorted(chance.sample(range(1, 60), 4)))) for _ in both)
    for attempt in range(40):
        which = chance.randrange(2)
        owner = f"{which} {attempt}"
        try:
            run(both[which], queue, steps[which], owner, engine=engines[which])
        except Killed:
            queue.connection_lost(owner)
        if chance.random() < 0.2:
            queue.killed()
    for attempt in range(3):
        for which in range(2):
            run(both[which], queue, Steps(), f"end {which} {attempt}", engine=engines[which])
    assert Counter(both[0].rows() + both[1].rows()) == Counter(range(1, 25))
    assert queue.left() == 0


def test_a_checkpoint_of_an_earlier_version_goes_on_and_is_claimed_from_the_second_batch_on() -> None:
    queue, logs = StandIn(20), Logs()
    with pytest.raises(Killed):
        run(logs, queue, Steps((25,)), "earlier", engine=knowing)
    queue.connection_lost("earlier")
    before = len(logs.offsets)
    queue.claims = True
    run(logs, queue, Steps(), "later", engine=claiming)
    run(logs, queue, Steps(), "last", engine=claiming)
    offsets = [ClaimOffset.from_json(json.loads(text)) for text in logs.offsets]
    assert [bool(offset.parts) for offset in offsets[before:]] == [False] + [True] * (len(offsets) - before - 1)
    assert any(offset.parts for offset in offsets)
    assert_exact(logs, queue, 20)


def test_a_broker_that_claims_no_more_is_received_from_again() -> None:
    """The broker was replaced by an earlier version, which keeps the deferrals and knows no claims."""
    for end in range(1, steps_of(StandIn(20, claims=True))):
        queue, logs = StandIn(20, claims=True), Logs()
        try:
            run(logs, queue, Steps((end,)), "first", engine=claiming)
        except Killed:
            queue.connection_lost("first")
        offsets = [ClaimOffset.from_json(json.loads(text)) for text in logs.offsets]
        unwritten = {number for number, seen in queue.seen().items() if seen.is_deferred} - {
            number for offset in offsets for number in offset.claim[QUEUE]
        }
        queue.claims = False
        for attempt in range(3):
            run(logs, queue, Steps(), f"again {attempt}", engine=claiming)
        # What was claimed and not written down is left to the sweep.
        assert Counter(logs.rows()) == Counter(set(range(1, 21)) - unwritten)
        assert queue.left() == len(unwritten)
