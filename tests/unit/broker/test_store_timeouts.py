"""A store that does not answer counts as failed in bounded time, and comes back by itself (PE4, PE13, I27, I56)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from duobus.broker.entities.placement import slot_of, string_key
from duobus.errors import StoreFailed, StoreUnavailable
from duobus.fragment.message import MAIN
from duobus.model.quotas import STORE_TIMEOUT_S
from duobus.storage.writer_pool import COMMIT_TIMEOUTS, ENDLESS_S, LATE_S, LONG_S, StoreWatchdog
from kits.broker import Hall, answers, batch, payloads, receiver, simulated, simulated_over, turns
from simulation.world.loop import SimulationLoop


class Slow:
    """Runs each call when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(self, call: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.jobs.append((call, done))

    def step(self) -> None:
        call, done = self.jobs.pop(0)
        try:
            result = call()
        except StoreFailed as error:
            done(None, error)
        else:
            done(result, None)


Heard = list[tuple[str, Any]]


def ask(writer: StoreWatchdog, name: str, heard: Heard, ran: list[str], timeout_s: float | None = None) -> None:
    def done(result: str | None, error: BaseException | None) -> None:
        heard.append((name, result if error is None else type(error)))

    def call() -> str:
        ran.append(name)
        return name

    if name == "commit":
        writer.submit(call, done, size=0)
    else:
        writer.submit(call, done, timeout_s)


def in_virtual_time(test: Callable[[SimulationLoop], Any]) -> None:
    loop = SimulationLoop()
    try:
        loop.run(test(loop), time_limit_s=600)
    finally:
        loop.close()


def test_calls_that_come_back_in_time_are_answered_in_order_and_their_timer_comes_to_its_end() -> None:
    async def story(loop: SimulationLoop) -> None:
        slow, heard, ran = Slow(), [], []  # type: Slow, Heard, list[str]
        writer = StoreWatchdog(loop, slow)
        ask(writer, "a", heard, ran)
        ask(writer, "b", heard, ran)
        # Each of them takes nearly all the time that it has: what is waited for before is not held against it.
        await asyncio.sleep(STORE_TIMEOUT_S - 0.1)
        slow.step()
        await asyncio.sleep(STORE_TIMEOUT_S - 0.1)
        slow.step()
        assert heard == [("a", "a"), ("b", "b")]
        await asyncio.sleep(STORE_TIMEOUT_S)
        assert writer._timer is None

    in_virtual_time(story)


def test_a_call_that_does_not_come_back_is_given_up_with_all_behind_it_and_those_never_run() -> None:
    async def story(loop: SimulationLoop) -> None:
        slow, heard, ran = Slow(), [], []  # type: Slow, Heard, list[str]
        writer = StoreWatchdog(loop, slow)
        ask(writer, "stalled", heard, ran)
        ask(writer, "behind", heard, ran)
        await asyncio.sleep(STORE_TIMEOUT_S + 0.1)
        assert heard == [("stalled", StoreFailed), ("behind", StoreFailed)]
        ask(writer, "close", heard, ran, ENDLESS_S)
        await asyncio.sleep(300)
        while slow.jobs:
            slow.step()
        # What was under way may have been done after all; what only waited must not be, its caller went elsewhere.
        assert ran == ["stalled", "close"]
        assert heard == [("stalled", StoreFailed), ("behind", StoreFailed), ("close", "close")]

    in_virtual_time(story)


def test_a_commit_behind_a_slow_call_is_given_up_in_time_for_what_it_holds_to_go_elsewhere() -> None:
    async def story(loop: SimulationLoop) -> None:
        slow, heard, ran = Slow(), [], []  # type: Slow, Heard, list[str]
        writer = StoreWatchdog(loop, slow)
        ask(writer, "read", heard, ran)
        await asyncio.sleep(0.1)
        began_s = loop.time()
        ask(writer, "commit", heard, ran)
        await asyncio.sleep(STORE_TIMEOUT_S - 0.2)
        slow.step()
        await asyncio.sleep(began_s + COMMIT_TIMEOUTS * STORE_TIMEOUT_S - loop.time() - 0.1)
        assert heard == [("read", "read")]
        await asyncio.sleep(0.2)
        assert heard == [("read", "read"), ("commit", StoreFailed)]
        await asyncio.sleep(STORE_TIMEOUT_S)
        assert writer._timer is None

    in_virtual_time(story)


def test_a_commit_is_given_up_in_time_though_each_of_many_calls_before_it_is_quick_enough() -> None:
    async def story(loop: SimulationLoop) -> None:
        slow, heard, ran, late = Slow(), [], [], []  # type: Slow, Heard, list[str], list[float]
        writer = StoreWatchdog(loop, slow, late=lambda: late.append(loop.time()))
        for name in "abcdef":
            ask(writer, name, heard, ran)
        ask(writer, "commit", heard, ran)
        ask(writer, "behind", heard, ran)
        for _ in "abcd":
            await asyncio.sleep(1)
            slow.step()
        await asyncio.sleep(0.6)
        assert heard[4:] == [(name, StoreFailed) for name in ("e", "f", "commit", "behind")]
        assert len(late) == 4
        while slow.jobs:
            slow.step()
        # Only what was under way may have been done.
        assert ran == list("abcde")
        # The next commit has its own time.
        ask(writer, "commit", heard, ran)
        await asyncio.sleep(STORE_TIMEOUT_S - 0.1)
        slow.step()
        assert heard[-1] == ("commit", "commit")
        await asyncio.sleep(STORE_TIMEOUT_S)
        assert writer._timer is None

    in_virtual_time(story)


def test_a_commit_behind_a_long_call_gets_its_own_timeout_when_its_turn_comes() -> None:
    async def story(loop: SimulationLoop) -> None:
        slow, heard, ran = Slow(), [], []  # type: Slow, Heard, list[str]
        writer = StoreWatchdog(loop, slow)
        ask(writer, "drop", heard, ran, LONG_S)
        ask(writer, "commit", heard, ran)
        await asyncio.sleep(LONG_S - 1)
        slow.step()
        await asyncio.sleep(STORE_TIMEOUT_S - 0.1)
        assert heard == [("drop", "drop")]
        await asyncio.sleep(0.2)
        assert heard == [("drop", "drop"), ("commit", StoreFailed)]

    in_virtual_time(story)


@simulated_over(2)
async def test_a_keyless_send_to_a_store_that_stalls_succeeds_elsewhere_within_five_seconds(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    hall.writers[1].is_held = True
    sent = [batch(b"%d" % number) for number in range(32)]
    for made in sent:
        queue.send(made)
        await turns()
    await asyncio.sleep(4.9)
    assert [answers(made) for made in sent] == [[None]] * 32
    # The others go on at once, and are not asked to wait for the sick one.
    began_s = hall.loop.time()
    again = [batch(b"again %d" % number) for number in range(32)]
    for made in again:
        queue.send(made)
        await turns()
    assert [answers(made) for made in again] == [[None]] * 32
    assert hall.loop.time() - began_s < 0.5
    # It comes back with the commit that stalled on disk: nothing is there twice (I27).
    hall.writers[1].release()
    await asyncio.sleep(10)
    assert {broker.state for broker in hall.unit.brokers.values()} == {"open"}
    _, box = receiver(queue, 200, removing=True)
    await asyncio.sleep(1)
    assert sorted(payloads(box)) == sorted(b for made in sent + again for b in made.payloads)


def test_a_call_is_late_long_before_it_is_given_up_and_that_is_told_once() -> None:
    async def story(loop: SimulationLoop) -> None:
        slow, heard, ran, told = Slow(), [], [], []  # type: Slow, Heard, list[str], list[float]
        writer = StoreWatchdog(loop, slow, late=lambda: told.append(loop.time()))
        began_s = loop.time()
        ask(writer, "drop", heard, ran, LONG_S)
        await asyncio.sleep(LATE_S / 2)
        assert (writer.is_late, told) == (False, [])
        await asyncio.sleep(LONG_S / 2)
        assert (writer.is_late, told) == (True, [began_s + LATE_S])
        slow.step()
        assert not writer.is_late
        # The next one has its own time, and is given up as before.
        ask(writer, "commit", heard, ran)
        await asyncio.sleep(LATE_S + 0.1)
        assert writer.is_late
        await asyncio.sleep(STORE_TIMEOUT_S - LATE_S)
        assert (writer.is_late, len(told)) == (False, 2)
        assert heard == [("drop", "drop"), ("commit", StoreFailed)]
        ask(writer, "open", heard, ran, ENDLESS_S)
        await asyncio.sleep(300)
        assert (writer.is_late, len(told)) == (False, 2)

    in_virtual_time(story)


def test_a_call_is_late_by_its_own_time_and_not_by_that_of_the_one_before() -> None:
    async def story(loop: SimulationLoop) -> None:
        slow, heard, ran, told = Slow(), [], [], []  # type: Slow, Heard, list[str], list[float]
        writer = StoreWatchdog(loop, slow, late=lambda: told.append(loop.time()))
        began_s = loop.time()
        ask(writer, "first", heard, ran)
        ask(writer, "second", heard, ran)
        await asyncio.sleep(LATE_S / 2)
        slow.step()
        await asyncio.sleep(LATE_S * 3 / 4)
        assert (writer.is_late, told) == (False, [])
        await asyncio.sleep(LATE_S / 2)
        assert (writer.is_late, told) == (True, [began_s + LATE_S * 3 / 2])

    in_virtual_time(story)


@simulated_over(2)
async def test_a_keyless_send_does_not_wait_for_a_slow_store_that_is_not_slow_enough_to_be_given_up(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    sick = queue.fragments[0].store.store_id
    key = next(f"k{n}" for n in range(99) if slot_of(string_key(f"k{n}"), 16) == 0)
    began_s = hall.loop.time()
    hall.writers[sick].is_held = True
    # Its thread is busy for nearly as long as it may, and then again: what waits behind that would take 2 x 2.9 s.
    busy = batch(b"keyed", key=string_key(key))
    queue.send(busy)
    await turns()
    sent = [batch(b"%d" % number) for number in range(8)]
    for made in sent:
        queue.send(made)
    await asyncio.sleep(STORE_TIMEOUT_S - 0.1)
    assert [answers(made) for made in sent] == [[None]] * 8
    assert answers(busy) == []
    hall.writers[sick].step()
    await turns()
    # It was slow, and it is there: nothing was given up, and its fragments take messages again.
    assert answers(busy) == [None]
    assert not [event for event in hall.events if event[1] == "failed"]
    hall.writers[sick].release()
    again = [batch(b"again %d" % number) for number in range(32)]
    for made in again:
        queue.send(made)
        await turns()
    assert [answers(made) for made in again] == [[None]] * 32
    assert {made.reply.ready[0].handle.store.store_id for made in again} == set(hall.writers)
    assert hall.loop.time() - began_s < 5


@simulated_over(2)
async def test_who_takes_for_good_gets_what_another_store_has_within_a_second_while_one_is_slow(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    keys = {slot_of(string_key(f"k{n}"), 16): f"k{n}" for n in range(200)}
    sick, well = (next(slot for slot in keys if queue.fragments[slot].store.store_id == store) for store in (1, 2))
    for slot in (sick, sick):
        queue.send(batch(b"slow", key=string_key(keys[slot])))
    await turns()
    hall.writers[1].is_held = True
    under_way = batch(b"under way", key=string_key(keys[sick]))
    queue.send(under_way)
    await turns()
    # Both are asked of the sick store; nothing of them has been decided.
    standing, box = receiver(queue, 2, removing=True)
    await turns()
    queue.send(batch(b"quick", key=string_key(keys[well])))
    await asyncio.sleep(1.0)
    assert payloads(box) == [b"quick"]
    assert (standing.wanted, standing.granted) == (1, 0)
    # It answers before it is given up: what is there comes, although nothing new has come to it.
    hall.writers[1].release()
    await asyncio.sleep(1.0)
    assert payloads(box) == [b"quick", b"slow"]


@simulated_over(1)
async def test_a_message_waits_for_a_late_store_when_there_is_no_other(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    hall.writers[1].is_held = True
    sent = [batch(b"first"), batch(b"second")]
    for made in sent:
        queue.send(made)
        await turns()
    await asyncio.sleep(STORE_TIMEOUT_S - 0.1)
    assert [answers(made) for made in sent] == [[], []]
    hall.writers[1].release()
    await turns()
    assert [answers(made) for made in sent] == [[None], [None]]


@simulated_over(4)
async def test_a_keyless_send_finds_the_sound_store_when_three_stall_at_once_on_one_disk(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    for store in (1, 2, 3):
        hall.writers[store].is_held = True
    made = batch(b"alone")
    queue.send(made)
    # Nobody else uses the others, so nothing but a look shows that they are as sick as the first.
    await asyncio.sleep(4.9)
    assert answers(made) == [None]
    assert made.reply.ready[0].handle.store.store_id == 4


@simulated_over(2)
async def test_a_plain_queue_on_a_store_that_stalls_fails_in_every_operation_and_nothing_refused_shows_later(
    hall: Hall,
) -> None:
    await hall.start()
    queue = await hall.create()
    kept = batch(b"kept")
    queue.send(kept)
    await turns()
    home = queue.fragments[0].store.store_id
    hall.writers[home].is_held = True
    stalled, later = batch(b"stalled"), batch(b"later")
    queue.send(stalled)
    await asyncio.sleep(STORE_TIMEOUT_S + 0.1)
    queue.send(later)
    await turns()
    # Both have their definite answer while the store still stalls: another one remembers the first (I38).
    assert [type(answer) for made in (stalled, later) for answer in answers(made)] == [StoreUnavailable] * 2
    with pytest.raises(StoreUnavailable, match="stalls"):
        await queue.peek(MAIN, 1, 10)
    hall.writers[home].release()
    await asyncio.sleep(10)
    assert [message.payload for _, message in await queue.peek(MAIN, 1, 10)] == [b"kept"]


@simulated
async def test_a_server_that_is_told_to_stop_does_not_wait_for_ever_for_a_store_that_stalls(hall: Hall) -> None:
    await hall.start()
    hall.writers[1].is_held = True
    await asyncio.wait_for(hall.unit.stop(), 15)
