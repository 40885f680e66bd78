"""Keys and rights that are taken away while they are in use: what lives on them ends, and nothing else.

Everything here happens without time passing: what ends does so at the change, not at the next look.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hostile_kit import (
    ATTACH,
    CLOSE,
    DETACH,
    DISPOSITION,
    FLOW,
    RULE,
    TRANSFER,
    Bus,
    Wire,
    attacked,
    condition,
    message,
    token,
    until,
)

from duobus.amqp.performatives import Coordinator, Source
from duobus.codec import Described, Symbol, ULong, build_message
from duobus.errors import ServiceBusError
from duobus.gateway.amqp.links.session_link import PendingSession
from duobus.model.descriptions import AccessRule, QueueDescription, Right
from duobus.server.settings import EMULATOR_KEY
from kits.issuer import NAME, claims, document, public, rsa_key, signed

UNAUTHORIZED = "amqp:unauthorized-access"
LIMIT_S = 60.0
FIRST, SECOND, OTHER = ("K" + str(number) * 43 for number in range(3))
BOTH = int(Right.SEND | Right.LISTEN)


def rule(primary: str = FIRST, secondary: str = SECOND, rights: int = BOTH, name: str = "app") -> AccessRule:
    return AccessRule(name=name, primary_key=primary, secondary_key=secondary, rights=rights)


def guarded(**properties: Any) -> QueueDescription:
    return QueueDescription(name="guarded", authorization_rules=(rule(),), **properties)


async def change(bus: Bus, *rules: AccessRule) -> None:
    """Give the queue other access rules, as a request of HTTP does."""
    queue = bus.server.unit.namespace("ns").queues["guarded"]
    await bus.server.unit.update_queue("ns", msgspec.structs.replace(queue.description, authorization_rules=rules))


def revoking(test: Callable[[Bus], Coroutine[Any, Any, None]], **properties: Any) -> Callable[[], None]:
    """Run a test with a queue that has an access rule of its own, in bounded time."""

    @wraps(test)
    def run() -> None:
        async def limited() -> None:
            async with asyncio.timeout(LIMIT_S), attacked(guarded(**properties)) as bus:
                try:
                    await test(bus)
                finally:
                    for wire in bus.wires:
                        wire.drop()
                    await asyncio.sleep(0.01)

        asyncio.run(limited())

    del run.__wrapped__
    return run


async def holder(bus: Bus, key: str = FIRST, name: str = "app") -> Wire:
    """A stranger with a token of a rule of the queue, and a link of each kind: 5 sends, 6 receives."""
    wire = await Wire.stranger(bus)
    assert await wire.put_token("sb://localhost/guarded", token("guarded", rule=name, key=key)) == 202
    await wire.begin()
    await wire.link("guarded", 5, receives=False)
    await wire.hear(FLOW)
    await wire.link("guarded", 6, receives=True)
    return wire


async def detached(wire: Wire, number: int) -> dict[int, str | None]:
    """Handle to condition of the next links that end."""
    found = {}
    for _ in range(number):
        fields = await wire.hear(DETACH)
        found[fields[0]] = condition(fields, 2)
    return found


async def sends(wire: Wire, number: int, handle: int = 5) -> None:
    wire.transfer(handle, number, message(b"x"))
    await wire.hear(DISPOSITION)


@revoking
async def test_a_key_that_was_changed_ends_the_links_that_live_on_it_and_no_others(bus: Bus) -> None:
    first, second, manager = await holder(bus), await holder(bus, SECOND), await Wire.known(bus)
    await manager.link("guarded", 5, receives=False)
    await manager.hear(FLOW)
    await change(bus, rule(OTHER, SECOND))
    assert await detached(first, 2) == {5: UNAUTHORIZED, 6: UNAUTHORIZED}
    await sends(second, 0)
    await sends(manager, 0)
    # The connection is left; the old key is good for nothing more, and the new one opens the link again.
    again = await holder(bus, OTHER)
    await sends(again, 0)
    first.ask_for_link("guarded", 7, receives=False)
    assert condition(await first.hear(DETACH), 2) == UNAUTHORIZED


@revoking
async def test_keys_that_change_places_end_nothing(bus: Bus) -> None:
    wire = await holder(bus)
    await change(bus, rule(OTHER, FIRST))
    await sends(wire, 0)


@revoking
async def test_a_rule_that_was_removed_ends_them_too(bus: Bus) -> None:
    wire = await holder(bus)
    await change(bus)
    assert await detached(wire, 2) == {5: UNAUTHORIZED, 6: UNAUTHORIZED}
    wire.ask_for_link("guarded", 7, receives=False)
    assert condition(await wire.hear(DETACH), 2) == UNAUTHORIZED


@revoking
async def test_a_rule_that_lost_the_right_to_send_ends_links_that_send_only(bus: Bus) -> None:
    wire = await holder(bus)
    await change(bus, rule(rights=int(Right.LISTEN)))
    assert await detached(wire, 1) == {5: UNAUTHORIZED}
    sender = await Wire.known(bus)
    await sender.link("guarded", 5, receives=False)
    await sender.hear(FLOW)
    await sends(sender, 0)
    wire.credit(6, 1)
    await wire.hear(TRANSFER)


@revoking
async def test_a_management_link_ends_with_its_last_claim(bus: Bus) -> None:
    wire = await holder(bus)
    await wire.link("guarded/$management", 7, receives=True)
    await wire.link("guarded/$management", 8, receives=False)
    await change(bus, rule(rights=int(Right.LISTEN)))
    assert await detached(wire, 1) == {5: UNAUTHORIZED}
    await change(bus)
    assert set(await detached(wire, 3)) == {6, 7, 8}


@revoking
async def test_a_queue_that_is_deleted_and_made_again_knows_nothing_of_former_keys(bus: Bus) -> None:
    wire = await holder(bus)
    await bus.server.unit.delete_queue("ns", "guarded")
    await detached(wire, 2)
    await bus.server.unit.create_queue(
        "ns", QueueDescription(name="guarded", authorization_rules=(rule(OTHER, OTHER),))
    )
    wire.ask_for_link("guarded", 7, receives=False)
    assert condition(await wire.hear(DETACH), 2) == UNAUTHORIZED


def test_a_session_and_the_wait_for_one_end_with_their_key() -> None:
    async def scenario(bus: Bus) -> None:
        wire = await Wire.stranger(bus)
        assert await wire.put_token("sb://localhost/guarded", token("guarded", rule="app", key=FIRST)) == 202
        await wire.begin()

        def wanted(session: str | None) -> Any:
            return Source(address="guarded", filter={Symbol("com.microsoft:session-filter"): session})

        await wire.link("guarded", 5, receives=True, source=wanted("s"))
        wire.ask_for_link("guarded", 6, receives=True, source=wanted(None))
        (peer,) = bus.server.amqp.peers
        await until(lambda: any(isinstance(endpoint, PendingSession) for _, endpoint in peer.endpoints()))
        await change(bus)
        ended = await detached(wire, 2)
        assert ended == {5: UNAUTHORIZED, 6: UNAUTHORIZED}

    revoking(scenario, requires_session=True)()


@revoking
async def test_an_open_transaction_is_rolled_back_with_its_key(bus: Bus) -> None:
    wire = await holder(bus)
    wire.ask_for_link(None, 7, receives=False, target=Coordinator())
    await wire.hear(ATTACH)
    await wire.hear(FLOW)
    peer = next(peer for peer in bus.server.amqp.peers if not peer.grants.is_empty)
    wire.transfer(7, 0, build_message(None, None, body_value=Described(ULong(0x31), [None])))
    declared = (await wire.hear(DISPOSITION))[4].value[0]
    assert peer.transactions.find(declared).transaction
    await change(bus)
    assert set(await detached(wire, 3)) == {5, 6, 7}
    with pytest.raises(ServiceBusError):
        peer.transactions.find(declared)


@revoking
async def test_a_login_ends_with_its_key_and_takes_the_connection_along(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("guarded", 5, receives=False)
    await wire.hear(FLOW)
    namespace = bus.server.amqp.authorizer.namespace_of("localhost")
    namespace.rules = {RULE: rule(OTHER, OTHER, name=RULE)}
    bus.server.amqp.rules_changed("ns")
    assert await detached(wire, 1) == {5: UNAUTHORIZED}
    assert condition(await wire.hear(CLOSE), 0) == UNAUTHORIZED


@revoking
async def test_a_key_of_the_namespace_ends_what_was_put_for_any_entity(bus: Bus) -> None:
    wire, own = await holder(bus, EMULATOR_KEY, RULE), await holder(bus)
    namespace = bus.server.amqp.authorizer.namespace_of("localhost")
    namespace.rules = {RULE: rule(OTHER, OTHER, int(Right.MANAGE) | BOTH, RULE)}
    bus.server.amqp.rules_changed("ns")
    assert set(await detached(wire, 2)) == {5, 6}
    await sends(own, 0)


@revoking
async def test_hundreds_of_links_end_in_slices_and_others_are_served_meanwhile(bus: Bus) -> None:
    wire = await holder(bus)
    for handle in range(10, 210):
        wire.ask_for_link("guarded", handle, receives=True)
    for _ in range(200):
        await wire.hear(ATTACH)
    neighbour = await Wire.known(bus)
    await neighbour.round_trip()
    await change(bus)
    left = [peer.links for peer in bus.server.amqp.peers if peer.links > 100]
    # The first slice is a small part.
    assert left > [180]
    await neighbour.round_trip()
    assert len(await detached(wire, 202)) == 202


@asynccontextmanager
async def trusting(keys: Path) -> AsyncIterator[Bus]:
    path = keys.with_name("tokens.json")
    path.write_text(json.dumps({"Issuers": [{"Issuer": NAME, "Keys": str(keys)}]}))
    async with asyncio.timeout(LIMIT_S), attacked(guarded(), bearer_tokens=path) as bus:
        yield bus
        for wire in bus.wires:
            wire.drop()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_key_that_its_issuer_gave_up_ends_links_when_the_keys_are_read(tmp_path: Path, is_removed: bool) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(document())

    async def scenario() -> None:
        async with trusting(keys) as bus:
            wire = await Wire.stranger(bus)
            text = signed(claims(bus.clock.now_ms() / 1000))
            assert await wire.put_token("sb://localhost/guarded", text) == 202
            await wire.begin()
            await wire.link("guarded", 5, receives=False)
            await wire.hear(FLOW)
            if is_removed:
                keys.write_bytes(document(public(rsa_key(1), "rsa")))
            assert bus.server.tokens is not None
            assert await bus.server.tokens.keys.refresh(0)
            if is_removed:
                assert await detached(wire, 1) == {5: UNAUTHORIZED}
            else:
                await sends(wire, 0)

    asyncio.run(scenario())
