"""Links that live on bearer tokens: they end with the token, and not with the issuer (IN4, I54)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web
from hostile_kit import DETACH, DISPOSITION, FLOW, Bus, Wire, attacked, condition, message, token

from kits.issuer import NAME, THREE_HOURS_S, claims, document, rsa_key, signed

UNAUTHORIZED = "amqp:unauthorized-access"
LIMIT_S = 60.0


class TestIssuer:
    """Gives its keys away over HTTP, and tokens of three hours, until it is stopped."""

    __test__ = False

    def __init__(self) -> None:
        self.is_up = False

    async def start(self) -> str:
        app = web.Application()
        app.router.add_get("/keys", self._keys)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.is_up = True
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/keys"

    async def stop(self) -> None:
        self.is_up = False
        await self._runner.cleanup()

    def login(self, now_s: float, role: str = "Owner") -> str:
        if not self.is_up:
            raise ConnectionRefusedError
        return signed(claims(now_s, roles=[role]))

    async def _keys(self, request: web.Request) -> web.Response:
        return web.Response(body=document(), content_type="application/json")


def trusting(folder: Path, keys: str) -> Path:
    path = folder / "tokens.json"
    path.write_text(json.dumps({"Issuers": [{"Issuer": NAME, "Keys": keys}]}))
    return path


async def sends(wire: Wire, number: int) -> None:
    wire.transfer(5, number, message(b"x"))
    await wire.hear(DISPOSITION)


async def linked(bus: Bus, text: str) -> Wire:
    """A stranger that puts a token and has a link to send with."""
    wire = await Wire.stranger(bus)
    assert await wire.put_token("sb://localhost/q", text) == 202
    await wire.begin()
    await wire.link("q", 5, receives=False)
    await wire.hear(FLOW)
    return wire


def test_an_issuer_that_is_stopped_harms_no_token_in_hand_until_its_end_and_no_signature(tmp_path: Path) -> None:
    async def scenario() -> None:
        issuer = TestIssuer()
        keys = await issuer.start()
        async with asyncio.timeout(LIMIT_S), attacked(bearer_tokens=trusting(tmp_path, keys)) as bus:
            start_s = bus.clock.now_ms() / 1000
            text = issuer.login(start_s)
            holder = await linked(bus, text)
            signer = await linked(bus, token("q", life_s=4 * 3600))
            await issuer.stop()
            assert bus.server.tokens is not None
            assert not await bus.server.tokens.keys.refresh(0)
            with pytest.raises(ConnectionRefusedError):
                issuer.login(start_s)
            await sends(holder, 0)
            # Almost at its end: on the link that it has, and on one that is made now.
            await bus.push(THREE_HOURS_S - 30)
            await bus.push(0)
            for wire in bus.wires:
                wire.drop()
            holder = await linked(bus, text)
            signer = await linked(bus, token("q", life_s=4 * 3600))
            await sends(holder, 0)
            await bus.push(31)
            assert condition(await holder.hear(DETACH), 2) == UNAUTHORIZED
            stranger = await Wire.stranger(bus)
            assert await stranger.put_token("sb://localhost/q", text) == 401
            await sends(signer, 0)
            for wire in bus.wires:
                wire.drop()
            await asyncio.sleep(0.01)

    asyncio.run(scenario())


@pytest.mark.parametrize(("ahead_s", "is_cut"), [(-0.9, False), (0.1, True)])
def test_a_link_ends_within_a_second_of_its_token_and_not_before(tmp_path: Path, ahead_s: float, is_cut: bool) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(document())

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), attacked(bearer_tokens=trusting(tmp_path, str(keys))) as bus:
            now_s = bus.clock.now_ms() / 1000
            wire = await linked(bus, signed(claims(now_s, exp=int(now_s) + 60)))
            left_s = int(now_s) + 60 - bus.clock.now_ms() / 1000
            await bus.push(left_s + ahead_s)
            if is_cut:
                assert condition(await wire.hear(DETACH), 2) == UNAUTHORIZED
            else:
                await sends(wire, 0)
            wire.drop()
            await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_a_role_or_key_that_is_not_enough_gives_no_link(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(document())

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), attacked(bearer_tokens=trusting(tmp_path, str(keys))) as bus:
            now_s = bus.clock.now_ms() / 1000
            listener = await Wire.stranger(bus)
            assert await listener.put_token("sb://localhost/q", signed(claims(now_s, roles=["Receiver"]))) == 202
            listener.ask_for_link("q", 5, receives=False, channel=9)
            assert condition(await listener.hear(DETACH), 2) == UNAUTHORIZED
            foreign = await Wire.stranger(bus)
            assert await foreign.put_token("sb://localhost/q", signed(claims(now_s), key=rsa_key(1))) == 401
            foreign.ask_for_link("q", 5, receives=False, channel=9)
            assert condition(await foreign.hear(DETACH), 2) == UNAUTHORIZED
            for wire in bus.wires:
                wire.drop()
            await asyncio.sleep(0.01)

    asyncio.run(scenario())
