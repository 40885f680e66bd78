"""What runs beside its caller: its errors are seen by somebody."""

from __future__ import annotations

import asyncio
import logging

import pytest

from duobus.ha.aio import concurrency
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
