"""Sockets that the SDK leaves unclosed: what their warnings say."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from typing import Any

import pytest

from kits.sockets import sockets_forgiven


async def left_stream() -> asyncio.StreamWriter:
    ours, theirs = socket.socketpair()
    theirs.close()
    return (await asyncio.open_connection(sock=ours))[1]


@pytest.mark.parametrize("is_forgiven", [True, False])
def test_a_stream_that_is_collected_after_its_loop_is_forgiven_where_sockets_are(
    is_forgiven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def note(one: Any) -> None:
        found.append(str(one.exc_value))

    monkeypatch.setattr(sys, "unraisablehook", note)
    with sockets_forgiven(lambda: is_forgiven):
        loop = asyncio.new_event_loop()
        left = [loop.run_until_complete(left_stream())]
        loop.close()
        left.clear()
        gc.collect()
    # Since 3.11.5 the stream tells of the loop; in Python before it tells of nothing, and its socket does.
    told = "loop is closed" if hasattr(asyncio.StreamWriter, "__del__") else "unclosed"
    assert any(told in text for text in found) is not is_forgiven, found
