"""Tokens and logins that are wrong in every way: 401 or a closed connection, never a right."""

from __future__ import annotations

import asyncio

import pytest
from hostile_kit import DETACH, DISPOSITION, FLOW, MIB, Bus, Wire, condition, holds_at_most, in_loop, message, token

from duobus.amqp.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame
from duobus.amqp.performatives import Open, SaslInit

GOOD = token("q")
UNAUTHORIZED = "amqp:unauthorized-access"

WRONG = {
    "garbage": "\x00\x01 nothing at all \u2603",
    "empty": "",
    "unsigned": GOOD.replace("sig=", "sig=&old="),
    "cut": GOOD[:60],
    "other-key": token("q", key="another key"),
    "other-rule": token("q", rule="nobody"),
    "expired": token("q", life_s=-1),
    "other-resource": GOOD.replace("%2Fq&", "%2Fcalm&"),
    "longer-life": GOOD.replace("se=", "se=9"),
    "field-twice": GOOD + "&sr=sb%3A%2F%2Flocalhost%2F",
    "endless-expiry": GOOD.replace("se=", "se=" + "9" * 400),
    "negative-expiry": GOOD.replace("se=", "se=-"),
    "jwt-without-algorithm": "eyJhbGciOiJub25lIn0.eyJhdWQiOiJodHRwczovL3NlcnZpY2VidXMuYXp1cmUubmV0In0.",
    "long": "SharedAccessSignature sr=" + "a" * 30_000,
    "number": 5,
    "map": {"a": 1},
    "nothing": None,
}


@pytest.mark.parametrize("name", list(WRONG))
@in_loop
async def test_a_token_that_is_wrong_gives_nothing(bus: Bus, name: str) -> None:
    wire = await Wire.stranger(bus)
    assert await wire.put_token("sb://localhost/q", WRONG[name]) == 401
    wire.ask_for_link("q", 5, receives=True, channel=9)
    assert condition(await wire.hear(DETACH), 2) == UNAUTHORIZED


@in_loop
async def test_a_token_of_one_mebibyte_is_refused_and_not_kept(bus: Bus) -> None:
    wire = await Wire.stranger(bus)
    await wire.begin()
    await wire.link("$cbs", 0, receives=False)
    with holds_at_most(MIB // 2):
        for _ in range(18):
            wire.transfer(0, 0, b"t" * 60_000, more=True)
            await wire.flush()
        wire.transfer(0, 0, b"", more=False)
        state = (await wire.hear(DISPOSITION))[4]
    assert condition(state.value, 0) == "amqp:link:message-size-exceeded"


@pytest.mark.parametrize(
    "audience", ["sb://localhost/calm", "sb://localhost/", "sb://localhost/qq", "sb://localhost/%2e"]
)
@in_loop
async def test_a_token_of_one_entity_opens_no_other(bus: Bus, audience: str) -> None:
    wire = await Wire.stranger(bus)
    await wire.put_token(audience, GOOD)
    wire.ask_for_link("calm", 5, receives=True, channel=9)
    assert condition(await wire.hear(DETACH), 2) == UNAUTHORIZED


@in_loop
async def test_a_token_that_expires_takes_its_links_along_and_leaves_the_connection(bus: Bus) -> None:
    wire = await Wire.stranger(bus)
    assert await wire.put_token("sb://localhost/q", token("q", life_s=30)) == 202
    await wire.link("q", 5, receives=False, channel=9)
    await wire.hear(FLOW)
    await bus.push(31)
    assert condition(await wire.hear(DETACH), 2) == UNAUTHORIZED
    await wire.begin(3)


@pytest.mark.parametrize(
    "response", [b"", b"\0", b"\0\0", b"\0a\0b\0c", b"\0\xff\0\xff", b"\0RootManageSharedAccessKey\0x"]
)
@in_loop
async def test_a_wrong_login_is_told_so_and_disconnected(bus: Bus, response: bytes) -> None:
    wire = await Wire.dial(bus)
    init = SaslInit(mechanism="PLAIN", initial_response=response, hostname="localhost")
    wire.write(SASL_HEADER + frame(0, init.to_bytes(), TYPE_SASL) + AMQP_HEADER)
    wire.say(0, Open(container_id="c", hostname="localhost"))
    await wire.ended()
    # The outcome's code is 1, and no open came.
    assert [fields for _, code, fields, _ in wire.frames if code == 0x44] == [[1]] or wire.frames[-1][2][0] == 1
    assert not [code for _, code, _, _ in wire.frames if code == 0x10]


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "SCRAM-SHA-256", "", "PLAIN\0", "M" * 200])
@in_loop
async def test_a_mechanism_that_is_not_offered_is_refused(bus: Bus, mechanism: str) -> None:
    wire = await Wire.dial(bus)
    init = SaslInit(mechanism=mechanism, initial_response=b"", hostname="localhost")
    wire.write(SASL_HEADER + frame(0, init.to_bytes(), TYPE_SASL) + AMQP_HEADER)
    await wire.ended()
    assert not [code for _, code, _, _ in wire.frames if code == 0x10]


@in_loop
async def test_a_second_login_on_a_connection_ends_it(bus: Bus) -> None:
    wire = await Wire.known(bus)
    init = SaslInit(mechanism="PLAIN", initial_response=b"\0a\0b", hostname="localhost")
    wire.write(frame(0, init.to_bytes(), TYPE_SASL))
    assert await wire.ended() == "amqp:connection:framing-error"


@in_loop
async def test_many_wrong_tokens_in_a_row_are_all_answered(bus: Bus) -> None:
    wire = await Wire.stranger(bus)
    assert await wire.put_token("sb://localhost/q", WRONG["garbage"]) == 401
    from duobus.codec import build_message

    wire.credit(0, 1000, channel=9)
    request = build_message(["m"], {"operation": "put-token", "name": "sb://localhost/q"}, body_value=GOOD[:-1])
    for number in range(1, 300):
        wire.transfer(1, number, request, channel=9)
        await wire.hear(0x14)
    await asyncio.sleep(0)
    assert message(b"")
