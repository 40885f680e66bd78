"""Small commits that a server's loop makes itself: when, in which order, and who makes them when the disk is slow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from duobus.server.turn_selector import TurnLoop
from duobus.storage.loop_calls import LOOP_BYTES, PAUSE_MAX_S, PAUSE_S, QUICK_S, YIELDS_BYTES, LoopPace
from duobus.storage.writer_pool import PooledWriter, WriterPool
from kits.turns import stopped, submitted, turned_until

WAIT_S = 10


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run in a server's loop."""
    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        runner.run(main())


def committed(writer: PooledWriter, call: Callable[[], Any], size: int = 1000) -> asyncio.Future[Any]:
    """Submit a commit; the future gets what comes of it."""
    return submitted(writer, call, size)


def test_the_loop_makes_small_commits_and_a_thread_large_ones() -> None:
    async def main() -> None:
        writer = WriterPool(asyncio.get_running_loop(), slow_s=WAIT_S).writer()
        own = threading.get_ident()
        assert [await committed(writer, threading.get_ident) for _ in range(20)] == [own] * 20
        assert await committed(writer, threading.get_ident, YIELDS_BYTES) == own
        assert await committed(writer, threading.get_ident, LOOP_BYTES) != own
        # The thread announces what it did before it puts the store away.
        await turned_until(lambda: not writer.is_taken)
        assert await committed(writer, threading.get_ident) == own
        assert await stopped(writer) == [True]

    run(main)


def test_a_loop_that_cannot_go_on_elsewhere_makes_none() -> None:
    async def main() -> None:
        writer = WriterPool(asyncio.get_running_loop(), slow_s=WAIT_S).writer()
        assert await committed(writer, threading.get_ident) != threading.get_ident()
        assert await stopped(writer) == [True]

    asyncio.run(main())


def test_what_is_submitted_behind_a_commit_of_the_loop_is_run_behind_it() -> None:
    async def main() -> None:
        writer = WriterPool(asyncio.get_running_loop(), slow_s=WAIT_S).writer()
        for _ in range(50):
            order: list[int] = []
            await asyncio.gather(*(committed(writer, partial(order.append, number)) for number in range(1, 6)))
            assert order == [1, 2, 3, 4, 5]
        assert await stopped(writer) == [True]

    run(main)


def test_what_a_thread_did_before_a_commit_of_the_loop_is_announced_before_it() -> None:
    """A page that was read before a commit would otherwise be taken for one that lacks what the commit has put."""

    async def main() -> None:
        writer = WriterPool(asyncio.get_running_loop(), slow_s=WAIT_S).writer()
        order: list[str] = []
        writer.submit(lambda: None, lambda _result, _error: order.append("read"))
        # The loop does not turn until the thread has put the store away, so the call has not been announced.
        pause = threading.Event()
        for _ in range(WAIT_S * 1000):
            if not writer.is_taken:
                break
            pause.wait(0.001)
        assert order == []
        ran_in: list[int] = []
        writer.submit(
            lambda: ran_in.append(threading.get_ident()), lambda _result, _error: order.append("commit"), 1000
        )
        await turned_until(lambda: len(order) == 2)
        assert ran_in == [threading.get_ident()]
        assert order == ["read", "commit"]
        assert await stopped(writer) == [True]

    run(main)


def test_an_error_of_a_commit_goes_to_its_submitter() -> None:
    async def main() -> None:
        writer = WriterPool(asyncio.get_running_loop(), slow_s=WAIT_S).writer()

        def fail() -> None:
            raise OSError("the disk is gone")

        with pytest.raises(OSError, match="disk is gone"):
            await committed(writer, fail)
        assert await committed(writer, lambda: "well") == "well"
        assert await stopped(writer) == [True]

    run(main)


def test_while_one_store_hangs_others_commit_and_its_own_calls_keep_their_order() -> None:
    async def main() -> None:
        pool = WriterPool(asyncio.get_running_loop())
        sick, sound = pool.writer(), pool.writer()
        gate = threading.Event()
        order: list[str] = []

        def hang() -> int:
            assert gate.wait(WAIT_S)
            order.append("hung")
            return threading.get_ident()

        own = threading.get_ident()
        hung = committed(sick, hang)
        behind = [committed(sick, partial(order.append, which)) for which in ("second", "third")]
        # Submitted in the same turn: passed on when the loop has moved.
        beside = committed(sound, threading.get_ident)
        assert await beside != own
        assert threading.get_ident() != own
        # A later one is a thread's from the start.
        assert await committed(sound, threading.get_ident) not in (own, threading.get_ident())
        assert not hung.done()
        assert order == []
        gate.set()
        assert await hung == own
        await asyncio.gather(*behind)
        assert order == ["hung", "second", "third"]
        assert threading.get_ident() == own
        # It has shown how slow it can be.
        assert await committed(sick, threading.get_ident) != own
        assert await stopped(sick, sound) == [True, True]

    run(main)


def test_a_writer_that_is_stopped_waits_for_the_commit_of_the_loop() -> None:
    async def main() -> None:
        writer = WriterPool(asyncio.get_running_loop()).writer()
        gate = threading.Event()
        hung = committed(writer, lambda: gate.wait(WAIT_S))
        own = threading.get_ident()
        await turned_until(lambda: threading.get_ident() != own)
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, lambda: writer.stop(0.01)) is False
        gate.set()
        assert await hung
        assert await loop.run_in_executor(None, writer.stop) is True

    run(main)


def test_a_store_is_quick_until_its_commits_are_slow_in_the_mean() -> None:
    pace = LoopPace()
    for _ in range(100):
        pace.note(QUICK_S / 4, 0, 1.0, is_slow=False)
    # One that takes long by chance decides nothing.
    pace.note(100 * QUICK_S, 0, 1.0, is_slow=False)
    assert pace.paused_until_s == 0.0
    for _ in range(20):
        pace.note(2 * QUICK_S, 0, 1.0, is_slow=False)
    assert pace.paused_until_s > 1.0


def test_a_slow_store_is_tried_again_ever_more_rarely_and_a_quick_one_at_once() -> None:
    pace = LoopPace()

    def pause_s() -> float:
        """Commit slowly until there is a pause."""
        now_s = pace.paused_until_s
        for _ in range(20):
            if pace.paused_until_s == now_s:
                pace.note(4 * QUICK_S, 0, now_s, is_slow=False)
        return round(pace.paused_until_s - now_s, 6)

    assert [pause_s() for _ in range(9)] == [PAUSE_S * 2**n for n in range(7)] + [PAUSE_MAX_S] * 2
    for _ in range(50):
        pace.note(QUICK_S / 4, 0, pace.paused_until_s, is_slow=False)
    assert pause_s() == PAUSE_S


def test_one_commit_that_held_up_the_loop_is_enough_for_a_pause() -> None:
    pace = LoopPace()
    pace.note(0.5, 0, 5.0, is_slow=True)
    assert pace.paused_until_s >= 6.0


def test_a_larger_commit_may_take_longer() -> None:
    pace = LoopPace()
    for _ in range(100):
        pace.note(QUICK_S * 1.5, LOOP_BYTES, 1.0, is_slow=False)
    assert pace.paused_until_s == 0.0
