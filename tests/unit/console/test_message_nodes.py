"""What becomes of the connection behind a management node when the page that looks goes away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from duobus.console.screens.messages import node as nodes
from duobus.console.screens.messages.node import Node
from kits.gateway import in_loop


class Handler:
    """A handler of the SDK whose close takes some turns of the loop."""

    _handler = None

    def __init__(self) -> None:
        self.is_closed = False

    async def close(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        self.is_closed = True


@in_loop
async def test_a_connection_is_closed_though_whoever_closes_it_is_cancelled_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes, "release_thread", lambda _: None)
    session: Any = SimpleNamespace(namespace=None)
    handler, node = Handler(), Node(session, "orders")
    node._handler = handler
    closing = asyncio.ensure_future(node.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert handler.is_closed
