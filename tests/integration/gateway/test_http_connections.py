"""How many HTTP connections there may be at a time."""

from __future__ import annotations

import asyncio

import pytest

from duobus.gateway.rest import connection_limit as crowd
from duobus.gateway.rest import server as app
from kits.gateway import in_loop, serving
from kits.http_client import Http


@in_loop
async def test_one_connection_too_many_is_told_to_come_again_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "bounded", lambda server: crowd.bounded(server, 3))
    async with serving() as server:
        port = server.port("http") or 0
        inside = [await Http.connect(port) for _ in range(3)]
        for http in inside:
            assert (await http.ask("GET", "/q")).status == 200
        outside = await Http.connect(port)
        refused = await outside.ask("GET", "/q")
        assert (refused.status, refused.header("Retry-After"), refused.header("Connection")) == (503, "2", "close")
        assert refused.text.startswith("<Error><Code>503</Code><Detail>SubCode=50004. ")
        assert await outside.stream.read() == b""
        # Those that are there go on, and a place that gets free is taken again.
        assert (await inside[0].ask("GET", "/q")).status == 200
        inside[1].stream.drop()
        for _ in range(100):
            if (await (await Http.connect(port)).ask("GET", "/q")).status == 200:
                return
            await asyncio.sleep(0)
        pytest.fail("the place is not taken")
