"""The client of a namespace: how calls of the SDK end."""

from __future__ import annotations

import asyncio

import pytest

from duobus.clock import Clock
from duobus.console.namespace.address import NamespaceAddress
from duobus.console.namespace.client import NamespaceClient
from kits.gateway import in_loop

TEXT = "Endpoint=sb://localhost:1;SharedAccessKeyName=all;SharedAccessKey=key;UseDevelopmentEmulator=true;"


@in_loop
async def test_a_cancellation_that_the_sdk_loses_ends_the_work_all_the_same() -> None:
    client = NamespaceClient(NamespaceAddress(TEXT), None, Clock())
    answer = asyncio.get_running_loop().create_future()
    looks = 0

    async def look() -> None:
        nonlocal looks
        while looks < 3:
            async with client.telling("queue orders"):
                # As the SDK waits for a frame.
                await asyncio.wait_for(answer, 60)
            looks += 1
            await asyncio.sleep(0)

    try:
        task = asyncio.ensure_future(look())
        await asyncio.sleep(0)
        # Both in the same moment: ``wait_for`` of Python 3.11 returns the answer, and forgets the cancellation.
        answer.set_result("a frame")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert looks == 0
    finally:
        await client.close()
