"""One thread serves the stores of a disk while they are quick, and none waits for one that is not."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from typing import Any

import pytest

from duobus.errors import StoreFailed
from duobus.storage import writer_pool
from duobus.storage.writer_pool import WriterPool
from kits.turns import stopped, submitted

WAIT_S = 10


class Gate:
    """A call that hangs until it is opened."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self._opened = threading.Event()

    def __call__(self) -> int:
        self.is_reached.set()
        assert self._opened.wait(WAIT_S)
        return threading.get_ident()

    def open(self) -> None:
        self._opened.set()


def test_one_thread_serves_all_stores_while_they_are_quick() -> None:
    async def run() -> None:
        pool = WriterPool(asyncio.get_running_loop(), slow_s=WAIT_S)
        writers = [pool.writer() for _ in range(4)]
        threads = await asyncio.gather(*(submitted(one, threading.get_ident) for _ in range(20) for one in writers))
        assert len(set(threads)) == 1
        assert threading.get_ident() not in threads
        assert await stopped(*writers) == [True] * 4

    asyncio.run(run())


def test_stores_take_turns_and_each_keeps_its_order() -> None:
    async def run() -> None:
        pool = WriterPool(asyncio.get_running_loop(), slow_s=WAIT_S)
        writers = [pool.writer() for _ in range(3)]
        gate, ran = Gate(), []
        waiting = [submitted(writers[0], gate)]
        assert await asyncio.to_thread(gate.is_reached.wait, WAIT_S)
        for number in range(3):
            for index, writer in enumerate(writers):
                waiting.append(submitted(writer, lambda step=(index, number): ran.append(step)))
        gate.open()
        await asyncio.gather(*waiting)
        assert ran == [(1, 0), (2, 0), (0, 0), (1, 1), (2, 1), (0, 1), (1, 2), (2, 2), (0, 2)]
        await stopped(*writers)

    asyncio.run(run())


def test_no_store_waits_for_one_that_hangs_and_its_own_calls_stay_in_order() -> None:
    async def run() -> None:
        pool = WriterPool(asyncio.get_running_loop(), slow_s=0.01)
        sick, sound, other = (pool.writer() for _ in range(3))
        gate = Gate()
        hanging = submitted(sick, gate)
        behind = submitted(sick, lambda: "behind")
        assert await asyncio.wait_for(submitted(sound, lambda: "sound"), WAIT_S) == "sound"
        assert await asyncio.wait_for(submitted(other, lambda: "other"), WAIT_S) == "other"
        assert not hanging.done()
        assert not behind.done()
        gate.open()
        await hanging
        assert await behind == "behind"
        await stopped(sick, sound, other)

    asyncio.run(run())


def test_what_waits_behind_a_call_that_came_back_is_done_though_another_store_hangs() -> None:
    async def run() -> None:
        pool = WriterPool(asyncio.get_running_loop(), slow_s=0.01)
        back, sick = pool.writer(), pool.writer()
        first, second = Gate(), Gate()
        came_back = submitted(back, first)
        behind = submitted(back, lambda: "behind")
        assert await asyncio.to_thread(first.is_reached.wait, WAIT_S)
        hanging = submitted(sick, second)
        assert await asyncio.to_thread(second.is_reached.wait, WAIT_S)
        # Nothing is in line, so nobody in the loop looks.
        while pool.timer is not None:  # noqa: ASYNC110 - the writer pool has no event to wait for
            await asyncio.sleep(0.001)
        first.open()
        await came_back
        assert await asyncio.wait_for(behind, WAIT_S / 2) == "behind"
        second.open()
        await hanging
        await stopped(back, sick)

    asyncio.run(run())


def test_stores_that_all_hang_have_a_thread_each() -> None:
    async def run() -> None:
        pool = WriterPool(asyncio.get_running_loop(), slow_s=0.01)
        writers = [pool.writer() for _ in range(4)]
        gates = [Gate() for _ in writers]
        calls = [submitted(writer, gate) for writer, gate in zip(writers, gates, strict=True)]
        for gate in gates:
            assert await asyncio.to_thread(gate.is_reached.wait, WAIT_S)
        for gate in gates:
            gate.open()
        assert len(set(await asyncio.gather(*calls))) == 4
        await stopped(*writers)

    asyncio.run(run())


def test_a_store_that_was_slow_is_served_beside_the_others() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        pool = WriterPool(loop, slow_s=WAIT_S)
        sick, sound = pool.writer(), pool.writer()
        sick.apart_until_s = loop.time() + WAIT_S
        gate = Gate()
        hanging = submitted(sick, gate)
        assert await asyncio.to_thread(gate.is_reached.wait, WAIT_S)
        # Nobody has to find out first that it hangs: with this writer pool that would take longer than the test waits.
        assert await asyncio.wait_for(submitted(sound, lambda: "sound"), WAIT_S / 2) == "sound"
        gate.open()
        await hanging
        await stopped(sick, sound)

    asyncio.run(run())


def test_a_slow_call_sets_its_store_apart() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        pool = WriterPool(loop, slow_s=0.0)
        writer = pool.writer()
        await submitted(writer, lambda: None)
        await stopped(writer)
        assert writer.apart_until_s > loop.time()

    asyncio.run(run())


def test_a_fault_in_telling_one_outcome_keeps_no_other_back() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        faults: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: faults.append(context))
        pool = WriterPool(loop)
        one, other = pool.writer(), pool.writer()
        gate = Gate()
        first = submitted(one, gate)

        def refuse(_result: Any, _error: BaseException | None) -> None:
            raise ValueError("no")

        other.submit(lambda: None, refuse)
        last = submitted(other, lambda: "told")
        gate.open()
        await first
        assert await last == "told"
        assert [str(fault["exception"]) for fault in faults] == ["no"]
        await stopped(one, other)

    asyncio.run(run())


def test_a_store_that_is_stopped_finishes_and_takes_nothing_more() -> None:
    async def run() -> None:
        pool = WriterPool(asyncio.get_running_loop())
        writer, other = pool.writer(), pool.writer()
        gate = Gate()
        waiting = [submitted(writer, gate), submitted(writer, lambda: "last")]
        assert not await asyncio.to_thread(writer.stop, 0.01)
        with pytest.raises(StoreFailed, match="has been stopped"):
            await submitted(writer, lambda: "late")
        gate.open()
        assert (await asyncio.gather(*waiting))[1] == "last"
        assert await submitted(other, lambda: "still there") == "still there"
        assert await stopped(writer, other) == [True, True]

    asyncio.run(run())


def test_its_threads_end_with_the_last_store() -> None:
    async def run() -> None:
        pool = WriterPool(asyncio.get_running_loop(), "ending")
        writers = [pool.writer() for _ in range(2)]
        await asyncio.gather(*(submitted(writer, lambda: None) for writer in writers))
        await stopped(writers[0])
        (thread,) = (one for one in threading.enumerate() if one.name.startswith("ending"))
        await stopped(writers[1])
        await asyncio.to_thread(thread.join, WAIT_S)
        assert not thread.is_alive()

    asyncio.run(run())


def test_who_works_for_one_store_leads_until_its_call_is_slow() -> None:
    async def run() -> None:
        pool = WriterPool(asyncio.get_running_loop(), slow_s=WAIT_S)
        one, other = pool.writer(), pool.writer()
        first, second = Gate(), Gate()
        waiting = [submitted(one, first), submitted(one, second)]
        first.open()
        assert await asyncio.to_thread(second.is_reached.wait, WAIT_S)
        # The thread that has taken the next call leads no less than the one that was woken.
        waiting.append(submitted(other, threading.get_ident))
        assert pool._number == 1
        second.open()
        assert len(set(await asyncio.gather(*waiting))) == 1
        assert await stopped(one, other) == [True] * 2

    asyncio.run(run())


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="the system has no event counters")
def test_outcomes_come_by_an_event_counter_that_is_closed_with_the_last_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        pool = WriterPool(loop)
        one, other = pool.writer(), pool.writer()
        assert await submitted(one, lambda: "first") == "first"
        counter = pool.counter
        assert counter is not None
        woken: list[object] = []
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda call, *_: woken.append(call))
        assert await submitted(one, lambda: "rung for") == "rung for"
        assert woken == []
        monkeypatch.undo()
        await stopped(one)
        assert await submitted(other, lambda: "still there") == "still there"
        assert pool.counter is counter
        await stopped(other)
        await asyncio.sleep(0)
        assert pool.counter is None
        number = weakref.ref(counter), counter.number
        del counter
        gc.collect()
        assert number[0]() is None
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number[1])

    asyncio.run(run())


def test_what_was_done_before_the_last_store_was_stopped_is_told_after_the_event_counter_is_gone() -> None:
    async def run() -> None:
        pool = WriterPool(asyncio.get_running_loop())
        writer = pool.writer()
        future = submitted(writer, lambda: "told")
        # The loop hears nothing until the thread has ended.
        assert writer.stop()
        pool._stop_listening()
        assert future.done()
        assert await future == "told"

    asyncio.run(run())


def test_a_store_that_comes_after_the_last_one_went_is_served_and_heard() -> None:
    async def run() -> None:
        pool = WriterPool(asyncio.get_running_loop())
        for _ in range(2):
            writer = pool.writer()
            assert await submitted(writer, lambda: "told") == "told"
            await stopped(writer)
            await asyncio.sleep(0)
            assert pool.counter is None

    asyncio.run(run())


def test_where_the_loop_cannot_listen_to_an_event_counter_it_is_called_as_from_any_thread() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()

        def refuse(*_: object) -> None:
            raise NotImplementedError

        loop.add_reader = refuse  # type: ignore[method-assign, assignment]
        pool = WriterPool(loop)
        writer = pool.writer()
        assert await submitted(writer, lambda: "told") == "told"
        assert pool.counter is None
        await stopped(writer)

    asyncio.run(run())


def test_a_thread_that_is_let_begin_is_at_the_call_before_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_pool, "BEGIN_S", WAIT_S)

    async def run() -> None:
        writer = WriterPool(asyncio.get_running_loop()).writer()
        for _ in range(20):
            gate = Gate()
            outcome = submitted(writer, gate)
            writer.let_begin()
            # It has taken the call, which was the only one.
            assert not writer.jobs
            gate.open()
            await outcome
        assert await stopped(writer) == [True]

    asyncio.run(run())


def test_nothing_is_waited_for_behind_another_call_or_before_anything_was_submitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Longer than the test may take.
    monkeypatch.setattr(writer_pool, "BEGIN_S", 600)

    async def run() -> None:
        pool = WriterPool(asyncio.get_running_loop(), slow_s=WAIT_S)
        writer, other = pool.writer(), pool.writer()
        writer.let_begin()
        gate = Gate()
        outcomes = [submitted(writer, gate)]
        await asyncio.to_thread(gate.is_reached.wait, WAIT_S)
        for one in (writer, other):
            outcomes.append(submitted(one, threading.get_ident))
            one.let_begin()
        gate.open()
        await asyncio.gather(*outcomes)
        assert await stopped(writer, other) == [True, True]

    asyncio.run(run())


def test_the_loop_goes_on_although_a_thread_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        workers: list[Any] = []
        # The thread that is dispatched is there, and takes nothing.
        monkeypatch.setattr(WriterPool, "_run", lambda _pool, worker: workers.append(worker))
        writer = WriterPool(asyncio.get_running_loop()).writer()
        outcome = submitted(writer, threading.get_ident)
        writer.let_begin()
        assert [worker.bell.get(timeout=WAIT_S) for worker in workers] == [writer]
        assert len(writer.jobs) == 1
        assert not writer.is_awaited
        outcome.cancel()

    asyncio.run(run())
