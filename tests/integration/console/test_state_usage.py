"""Usage in the console: what was metered, and what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage

from duobus.clock import Clock
from duobus.model.descriptions import QueueDescription
from duobus.model.options import HttpOptions
from duobus.model.relay.description import HybridConnectionDescription
from duobus.telemetry.metering_log import MeteringLog
from kits.console import broker, console, console_of
from kits.gateway import in_loop


@in_loop
async def test_what_was_metered_before_a_restart_is_told_by_entity_and_hour_with_its_cost(tmp_path: Path) -> None:
    options: dict[str, Any] = {"ephemeral": False, "data": tmp_path / "data"}
    queue = QueueDescription(name="orders")
    async with broker(queue, **options) as server, console_of(server) as client:
        assert "Nothing was metered" in (await client.get("/usage")).words
        (session,) = client.console.sessions.all()
        async with session.namespace.messaging.get_queue_sender("orders") as sender:
            await sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
        # The process of a server writes this down every minute, and when it stops.
        MeteringLog(tmp_path / "data" / "metering").write(server.metering.take(Clock().now_ms()))
    async with broker(queue, **options) as server, console_of(server) as client:
        data = await client.data("/usage?price=500000&days=7")
        assert (data["total"]["operations"], data["cost"], data["number_of_entities"]) == (2, 1.0, 1)
        assert data["entities"][0]["kinds"] == {"send": 2}
        assert sum(data["chart"]["series"][0]["values"]) == 2
        page = await client.get("/usage?price=500000")
        assert "orders" in page.text
        assert "Cost 1.00" in page.words
        assert (await client.data("/usage?entity=other&days=31"))["entities"] == []
        assert "Nothing was metered of other" in (await client.get("/usage?entity=other")).words


@in_loop
async def test_servers_without_metering_say_so_and_other_keys_see_none() -> None:
    async with console() as client:
        assert "keeps everything in memory" in (await client.get("/usage")).words
    for right in ("send", "listen"):
        async with console(right=right) as client:
            assert (await client.get("/usage")).status == 403
    async with console(options={"http": HttpOptions(operations=False)}) as client:
        assert (await client.get("/usage")).status == 404


@in_loop
async def test_the_use_of_relays_is_told_apart_and_has_no_price(tmp_path: Path) -> None:
    options: dict[str, Any] = {"ephemeral": False, "data": tmp_path / "data"}
    async with broker(**options) as server, console_of(server) as client:
        relay = server.unit.relays.create("ns", HybridConnectionDescription(name="shop/web"))
        for kind, number, size in (("relay-request", 3, 2_048), ("relay-listener", 7_200, 0)):
            server.relays.hub.counter_of(relay, kind, "").add(number, size)
        MeteringLog(tmp_path / "data" / "metering").write(server.metering.take(Clock().now_ms()))
        page = await client.get("/usage?price=500000")
        assert "shop/web 3 0 2.0 KiB 2 h" in page.words
        assert "has no price here" in page.words
        data = await client.data("/usage?price=500000")
        assert (data["cost"], data["total"]["operations"], data["free"]) == (0.0, 0, 0)
