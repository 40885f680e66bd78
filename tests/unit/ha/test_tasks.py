"""What runs beside its caller: its errors are seen by somebody."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from contextlib import suppress

import pytest

from duobus.concurrency import aio as concurrency
from kits.pair import bounded


def test_an_error_of_what_runs_beside_its_caller_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("its own fault")

    @bounded
    async def run() -> None:
        await concurrency.spawn(fail, name="duobus worker").ended()
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR, logger="duobus.ha"):
        run()
    assert "duobus worker ended" in caplog.text
    assert "its own fault" in caplog.text


def test_of_what_was_cancelled_or_came_to_its_end_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def end() -> None:
        """There is nothing to do."""

    @bounded
    async def run() -> None:
        waiting = concurrency.spawn(asyncio.sleep, 3_600)
        await concurrency.spawn(end).ended()
        waiting.cancel()
        await waiting.ended()
        await asyncio.sleep(0)

    run()
    assert caplog.records == []


def test_what_runs_beside_its_caller_goes_on_though_only_it_refers_to_what_it_waits_for() -> None:
    there: list[weakref.ref[asyncio.Future[None]]] = []
    seen: list[str] = []

    async def work() -> None:
        future = asyncio.get_running_loop().create_future()
        there.append(weakref.ref(future))
        try:
            await future
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        seen.append("done")

    @bounded
    async def run() -> None:
        concurrency.spawn(work)
        await asyncio.sleep(0)
        gc.collect()
        future = there[0]()
        assert (seen, future is None) == ([], False)
        assert future is not None
        future.set_result(None)
        del future
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen == ["done"]
        gc.collect()
        # Nothing is held any more.
        assert there[0]() is None

    run()


def test_a_loop_that_asks_ends_although_what_it_waited_for_lost_the_cancellation() -> None:
    rounds = 0

    async def work() -> None:
        nonlocal rounds
        for lost in (asyncio.CancelledError, ()):
            concurrency.check()
            rounds += 1
            with suppress(lost):
                await asyncio.sleep(3_600)

    @bounded
    async def run() -> None:
        task = concurrency.spawn(work)
        await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(60):
            await task.ended()

    run()
    assert rounds == 1
