"""Tests in the loop of the browser: what a test tells that does not end."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator

import pytest

from kits.browser import LoopThread


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.stop()


async def never() -> None:
    try:
        raise LookupError("the button is missing")
    finally:
        await asyncio.Event().wait()


def test_work_that_reaches_its_limit_tells_where_it_stood_and_what_had_failed_before(loop: LoopThread) -> None:
    with pytest.raises(AssertionError, match=r"not done within 0\.01 s") as found:
        loop.run(never(), limit_s=0.01)
    told = "".join(traceback.format_exception(found.value))
    assert "await asyncio.Event().wait()" in told
    assert "the button is missing" in told


def test_a_time_out_of_the_work_itself_keeps_its_words_and_its_traceback(loop: LoopThread) -> None:
    async def impatient() -> None:
        raise TimeoutError("no answer of the broker")

    with pytest.raises(AssertionError, match="no answer of the broker") as found:
        loop.run(impatient())
    assert "in impatient" in "".join(traceback.format_exception(found.value))
