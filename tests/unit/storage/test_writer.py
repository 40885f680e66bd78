"""Writers run calls in order, off the loop's thread or in it, and announce every outcome in the loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from duobus.errors import StoreFailed
from duobus.storage.writer_pool import WriterPool
from duobus.storage.writers import InlineWriter, LoopWriter, StoppableWriter, StoreWriter


class Announced:
    """Collects outcomes and says when all have come."""

    def __init__(self, expected: int) -> None:
        self.outcomes: list[tuple[Any, BaseException | None]] = []
        self.threads: set[int] = set()
        self._expected = expected
        self._complete = asyncio.Event()

    def __call__(self, result: Any, error: BaseException | None) -> None:
        self.outcomes.append((result, error))
        self.threads.add(threading.get_ident())
        if len(self.outcomes) == self._expected:
            self._complete.set()

    async def all(self) -> list[tuple[Any, BaseException | None]]:
        await asyncio.wait_for(self._complete.wait(), 10)
        return self.outcomes


Make = Callable[[asyncio.AbstractEventLoop], StoppableWriter]


def of_pool(loop: asyncio.AbstractEventLoop) -> StoppableWriter:
    return WriterPool(loop).writer()


@pytest.fixture(params=[StoreWriter, InlineWriter, LoopWriter, of_pool])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def test_calls_run_in_order_and_results_come_in_order(make: Make) -> None:
    async def run() -> None:
        writer, done, ran = make(asyncio.get_running_loop()), Announced(50), []

        def call(i: int) -> int:
            ran.append(i)
            return i * i

        for i in range(50):
            writer.submit(lambda i=i: call(i), done)  # type: ignore[misc]
        assert done.outcomes == []
        assert await done.all() == [(i * i, None) for i in range(50)]
        assert ran == list(range(50))
        assert done.threads == {threading.get_ident()}
        assert writer.stop()

    asyncio.run(run())


def test_an_error_is_handed_over_and_the_next_call_runs(make: Make) -> None:
    async def run() -> None:
        writer, done = make(asyncio.get_running_loop()), Announced(2)
        failure = StoreFailed("no")

        def fail() -> None:
            raise failure

        writer.submit(fail, done)
        writer.submit(lambda: "next", done)
        assert await done.all() == [(None, failure), ("next", None)]
        assert writer.stop()

    asyncio.run(run())


def test_a_stopped_writer_runs_nothing_and_says_so(make: Make) -> None:
    async def run() -> None:
        writer, done, ran = make(asyncio.get_running_loop()), Announced(1), []
        assert writer.stop()
        assert writer.stop()
        writer.submit(lambda: ran.append(1), done)
        assert done.outcomes == []
        ((result, error),) = await done.all()
        assert (result, type(error), ran) == (None, StoreFailed, [])

    asyncio.run(run())


class Page:
    """Stands for what a call reads or writes."""


def test_between_two_calls_nothing_of_the_first_is_held(make: Make) -> None:
    """A commit or a page of large messages would stay in memory for as long as the store has nothing to do."""

    async def run() -> None:
        writer, done = make(asyncio.get_running_loop()), Announced(1)
        written, read = Page(), Page()
        held = [weakref.ref(written), weakref.ref(read)]
        pages = [read]
        writer.submit(lambda written=written: (written, pages.pop())[1], done)  # type: ignore[misc]
        del written, read
        await done.all()
        done.outcomes.clear()
        try:
            async with asyncio.timeout(2):
                while any(ref() is not None for ref in held):  # noqa: ASYNC110 - the thread lets go after announcing
                    await asyncio.sleep(0.001)
        finally:
            assert writer.stop()

    asyncio.run(run())


def test_the_thread_finishes_its_queue_before_it_stops() -> None:
    async def run() -> None:
        writer, done, ran = StoreWriter(asyncio.get_running_loop()), Announced(20), []
        for i in range(20):
            writer.submit(lambda i=i: ran.append((i, threading.get_ident())), done)  # type: ignore[misc]
        assert writer.stop()
        assert [i for i, _ in ran] == list(range(20))
        assert {thread for _, thread in ran}.isdisjoint({threading.get_ident()})
        assert len(await done.all()) == 20

    asyncio.run(run())


def test_a_thread_that_hangs_does_not_hold_up_the_stop_for_ever() -> None:
    async def run() -> None:
        writer, done, release = StoreWriter(asyncio.get_running_loop()), Announced(1), threading.Event()
        writer.submit(release.wait, done)
        assert not writer.stop(timeout_s=0.01)
        release.set()
        assert await done.all() == [(True, None)]
        assert writer.stop()

    asyncio.run(run())


def test_what_is_queued_is_written_although_the_loop_is_closed() -> None:
    loop, ran = asyncio.new_event_loop(), []
    writer, release = StoreWriter(loop), threading.Event()
    writer.submit(release.wait, lambda *_: None)
    writer.submit(lambda: ran.append("written"), lambda *_: None)
    loop.close()
    release.set()
    assert writer.stop()
    assert ran == ["written"]


class VirtualLoop:
    """Just the clock of a loop: runs what was planned, in order of time, without waiting."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Callable[[], None]]] = []

    def call_later(self, delay: float, call: Callable[[], None]) -> None:
        self._planned.append((self.now + delay, len(self._planned), call))

    def run(self) -> None:
        while self._planned:
            entry = min(self._planned, key=lambda planned: planned[:2])
            self._planned.remove(entry)
            self.now = entry[0]
            entry[2]()


def test_every_inline_call_takes_its_virtual_delay() -> None:
    loop, ends = VirtualLoop(), []
    writer = InlineWriter(loop, 0.25)  # type: ignore[arg-type]
    for name in ("a", "b"):
        writer.submit(lambda: loop.now, lambda result, _, name=name: ends.append((name, result, loop.now)))  # type: ignore[misc]
    assert not writer.stop()
    loop.run()
    assert ends == [("a", 0.25, 0.25), ("b", 0.5, 0.5)]
    assert writer.stop()
