"""What makes a pair use the other endpoint, and what does not: one test for each rule (IN6)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from integration.relay.test_relay_clients import First, Pair, asynchronous

from duobus.relay import ConnectFailed, RelayRefused, StreamClosed
from duobus.relay.aio import RelayPair
from kits.stand_in_relay import cut

OUTAGES = [404, 410, 500, 502, 503, 504]


@pytest.mark.parametrize("status", OUTAGES)
@asynchronous
async def test_a_refusal_of_the_relay_itself_that_tells_of_an_outage_goes_to_the_second(status: int) -> None:
    async with Pair() as both:
        both.one.refuses = status
        assert (await both.pair.request("GET", "x")).text == "/x"
        assert not both.is_first_active
        async with await both.pair.connect() as connection:
            assert connection.endpoint == both.two.endpoint.name


@pytest.mark.parametrize("status", OUTAGES)
@asynchronous
async def test_a_connection_that_the_relay_itself_refuses_so_is_opened_at_the_second(status: int) -> None:
    async with Pair() as both:
        both.one.refuses = status
        async with await both.pair.connect() as connection:
            await connection.send("x")
            assert await connection.receive() == "x"
        assert not both.is_first_active


@pytest.mark.parametrize("status", OUTAGES)
@asynchronous
async def test_a_post_is_sent_again_only_after_a_refusal_that_precedes_delivery(status: int) -> None:
    async with Pair() as both:
        # As a relay refuses that has no listener, and as one that has lost its answer.
        for reason, is_before in (("There are no listeners.", status in (404, 502)), ("Refused.", status == 404)):
            both.one.refuses, both.one.reason = status, reason
            asked = len(both.two.requests)
            if is_before:
                assert (await both.pair.request("POST", "x")).status == 200
                both.pair._roles.swap(both.pair._roles.choice)
            else:
                with pytest.raises(RelayRefused, match=str(status)):
                    await both.pair.request("POST", "x")
            assert len(both.two.requests) == asked + is_before
            assert both.is_first_active


@pytest.mark.parametrize("status", [400, 401, 403, 429])
@asynchronous
async def test_a_connection_that_a_fault_of_the_configuration_prevents_is_not_opened_elsewhere(status: int) -> None:
    async with Pair() as both:
        both.one.refuses = status
        with pytest.raises(RelayRefused, match=str(status)):
            await both.pair.connect()
        assert both.is_first_active
        assert both.two.joined == []


@asynchronous
async def test_a_relay_with_which_tls_fails_is_an_outage() -> None:
    async with Pair() as both:
        secure = dataclasses.replace(both.one.endpoint, is_secure=True)
        async with RelayPair([secure, both.two.endpoint], entropy=First()) as pair:
            answer = await pair.request("POST", "x")
            assert (answer.text, answer.endpoint, pair.active) == ("/x", both.two.endpoint.name, answer.endpoint)
        async with RelayPair([secure, dataclasses.replace(both.two.endpoint, is_secure=True)]) as pair:
            with pytest.raises(ConnectFailed):
                await pair.connect()


@pytest.mark.parametrize("code", [1001, 1006, 1008, 1011])
@asynchronous
async def test_a_connection_that_breaks_with_a_code_of_the_relay_makes_the_next_begin_at_the_second(code: int) -> None:
    async with Pair() as both:
        connection = await both.pair.connect()
        joined = both.one.joined[-1]
        await (cut(joined) if code == 1006 else joined.close(code=code))
        with pytest.raises(StreamClosed) as caught:
            await connection.receive()
        assert caught.value.code == code
        async with await both.pair.connect() as again:
            assert again.endpoint == both.two.endpoint.name


@pytest.mark.parametrize("code", [1000, 3001])
@asynchronous
async def test_a_connection_that_the_service_closes_is_no_fault_of_its_relay(code: int) -> None:
    async with Pair() as both:
        connection = await both.pair.connect()
        await both.one.joined[-1].close(code=code)
        assert await connection.receive() is None
        async with await both.pair.connect() as again:
            assert again.endpoint == both.one.endpoint.name


@asynchronous
async def test_a_service_that_has_lost_one_relay_answers_over_the_other_and_comes_back() -> None:
    async with Pair() as both:
        await both.one.drop_listeners()
        answers = await asyncio.gather(*(both.pair.request("POST", "x") for _ in range(10)))
        assert {answer.text for answer in answers} == {"/x"}
        assert both.listener.is_up
        await both.listener.listeners[0].wait_online(30)
        both.two.refuses = 503
        assert (await both.pair.request("GET", "x")).endpoint == both.one.endpoint.name
