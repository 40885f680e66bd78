"""Listeners, senders and pairs against small relays in this process."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import wraps
from typing import Any

import pytest

from duobus.clock import Entropy
from duobus.relay import (
    ConnectFailed,
    ListenerRejected,
    RelayEndpoint,
    RelayRefused,
    RelayRequest,
    RelayResponse,
    StreamClosed,
    sync,
)
from duobus.relay.aio import (
    DuplicateFilter,
    PairListener,
    PendingConnection,
    RelayListener,
    RelayPair,
    RelaySender,
    connect,
    connections,
    request,
)
from duobus.relay.errors import ConnectionTaken
from duobus.relay.events import DuplicateAnswered, Event, RelayRolesSwapped
from kits.stand_in_relay import StandInRelay


def asynchronous(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(60):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return run


class First(Entropy):
    """Draws the endpoint that a test wants to be active."""

    def __init__(self, active: int = 0) -> None:
        self.active = active

    def number(self, bits: int) -> int:
        return self.active


async def echo(asked: RelayRequest) -> RelayResponse:
    return RelayResponse(200, {"X-Path": asked.path, "X-Query": asked.query}, asked.body)


async def echo_connection(pending: PendingConnection) -> None:
    async with await pending.accept() as connection:
        async for message in connection:
            await connection.send(message)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - of the program under test, which sets no event
        await asyncio.sleep(0.005)


@asynchronous
async def test_a_request_reaches_the_listener_and_its_answer_the_sender() -> None:
    async with StandInRelay("svc") as relay, RelayListener(relay.connection_string, echo) as listener:
        await listener.wait_online()
        answer = await request(relay.connection_string, "POST", "a%20b", query="x=1", body=b"hello")
        assert (answer.status, answer.body) == (200, b"hello")
        assert (answer.header("x-path"), answer.header("x-query")) == ("/a%20b", "x=1")


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 3_000_000])
@asynchronous
async def test_bodies_of_all_sizes_come_back_unaltered(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    async with StandInRelay("svc") as relay, RelayListener(relay.endpoint, echo) as listener:
        await listener.wait_online()
        answer = await request(relay.endpoint, "PUT", body=body[:size])
        assert hashlib.sha256(answer.body).digest() == hashlib.sha256(body[:size]).digest()
        assert all(number == 1 for number in relay.opened.values())
        assert bool(relay.opened) == (size > 65_536)


@asynchronous
async def test_an_error_of_the_service_is_an_answer_and_an_error_of_the_relay_is_raised() -> None:
    async def fail(asked: RelayRequest) -> RelayResponse:
        if asked.path == "/raise":
            raise RuntimeError("no")
        return RelayResponse(503)

    async with StandInRelay("svc") as relay, RelaySender(relay.endpoint) as sender:
        with pytest.raises(RelayRefused, match="no listeners") as caught:
            await sender.request("GET")
        assert caught.value.status == 502
        assert caught.value.precedes_delivery
        async with RelayListener(relay.endpoint, fail) as listener:
            await listener.wait_online()
            assert (await sender.request("GET")).status == 503
            assert (await sender.request("GET", "raise")).status == 500


@asynchronous
async def test_a_websocket_carries_text_and_bytes_both_ways_and_its_close_code() -> None:
    async with StandInRelay("svc") as relay, RelayListener(relay.endpoint) as listener:
        await listener.wait_online()
        opening = asyncio.create_task(connect(relay.endpoint, "chat", query="room=1", protocols=["p1", "p2"]))
        pending = await listener.accept()
        assert (pending.path, pending.query, pending.protocols) == ("/chat", "room=1", ["p1", "p2"])
        accepted = await pending.accept()
        connection = await opening
        assert accepted.protocol == connection.protocol == "p1"
        await connection.send("grüße")
        await connection.send(b"\x00" * 1_000_000)
        assert await accepted.receive() == "grüße"
        assert await accepted.receive() == b"\x00" * 1_000_000
        await accepted.send("bye")
        assert await connection.receive() == "bye"
        await connection.close(3001, "done")
        assert await accepted.receive() is None
        assert accepted.close_code == 3001
        await accepted.close()


@asynchronous
async def test_a_listener_turns_a_sender_away_with_its_own_status_and_text() -> None:
    async def reject(pending: PendingConnection) -> None:
        await pending.reject(403, "Not you.")

    async with StandInRelay("svc") as relay, RelayListener(relay.endpoint, on_connection=reject) as listener:
        await listener.wait_online()
        with pytest.raises(ListenerRejected, match="Not you") as caught:
            await connect(relay.endpoint)
        assert caught.value.status == 403


@asynchronous
async def test_an_address_of_a_rendezvous_is_opened_once_however_often_it_is_accepted() -> None:
    async with StandInRelay("svc") as relay, RelayListener(relay.endpoint) as listener:
        await listener.wait_online()
        opening = asyncio.create_task(connect(relay.endpoint))
        pending = await listener.accept()
        accepted = await pending.accept()
        with pytest.raises(ConnectionTaken):
            await pending.accept()
        with pytest.raises(ConnectionTaken):
            await pending.reject(403)
        await (await opening).close()
        await accepted.close()
        assert list(relay.opened.values()) == [1]


@asynchronous
async def test_a_listener_that_was_dropped_registers_again() -> None:
    async with StandInRelay("svc") as relay, RelayListener(relay.endpoint, echo) as listener:
        await listener.wait_online()
        await relay.drop_listeners()
        await until(lambda: listener.reporter.counts["ListenerOnline"] == 2)
        assert (await request(relay.endpoint, "GET")).status == 200


@asynchronous
async def test_a_connection_that_the_relay_closes_raises_and_one_that_the_other_side_closes_does_not() -> None:
    async with StandInRelay("svc") as relay, RelayListener(relay.endpoint, on_connection=echo_connection) as listener:
        await listener.wait_online()
        connection = await connect(relay.endpoint)
        await connection.send("x")
        assert await connection.receive() == "x"
        await relay.joined[-1].close(code=1011, message=b"broken")
        with pytest.raises(StreamClosed, match="broken") as caught:
            await connection.receive()
        assert caught.value.code == 1011
        await connection.close()


@asynchronous
async def test_a_relay_that_is_not_there_is_told_in_clear_words() -> None:
    relay = StandInRelay("svc")
    async with relay:
        endpoint = relay.endpoint
    with pytest.raises(ConnectFailed, match="cannot be reached") as caught:
        await request(endpoint, "GET")
    assert caught.value.precedes_delivery


# -- the pair: two relays, one service -------------------------------------------------------------------------------


class Pair:
    """Two relays, a service behind both, and a pair whose active endpoint is the first."""

    def __init__(self, **given: Any) -> None:
        self.one, self.two = StandInRelay("primary"), StandInRelay("secondary")
        self.given = given
        self.events: list[Event] = []
        self.executed: list[str | None] = []
        self.stack = AsyncExitStack()

    async def __aenter__(self) -> Pair:
        await self.stack.enter_async_context(self.one)
        await self.stack.enter_async_context(self.two)
        self.listener = await self.stack.enter_async_context(
            PairListener([self.one.endpoint, self.two.endpoint], self.serve, echo_connection)
        )
        for one in self.listener.listeners:
            await one.wait_online()
        self.pair = await self.stack.enter_async_context(
            RelayPair(
                [self.one.endpoint, self.two.endpoint], on_event=self.events.append, entropy=First(), **self.given
            )
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stack.aclose()

    async def serve(self, asked: RelayRequest) -> RelayResponse:
        self.executed.append(asked.request_id)
        return RelayResponse(int(asked.query or 200), body=asked.path.encode())

    @property
    def is_first_active(self) -> bool:
        return self.pair.active == self.one.endpoint.name


@asynchronous
async def test_with_the_first_relay_down_the_second_answers_and_is_active_from_then_on() -> None:
    async with Pair() as both:
        await both.one.stop()
        assert (await both.pair.request("POST", "x")).text == "/x"
        assert not both.is_first_active
        assert [type(event).__name__ for event in both.events] == [
            "EndpointFailed",
            "RequestReissued",
            "RelayRolesSwapped",
        ]
        assert len(both.executed) == 1


@asynchronous
async def test_an_answer_that_is_lost_is_asked_for_again_with_the_same_id() -> None:
    async with Pair() as both:
        both.one.drops_answers = True
        assert (await both.pair.request("GET", "x")).status == 200
        assert len(both.executed) == 2
        assert len(set(both.executed)) == 1
        assert not both.is_first_active


@asynchronous
async def test_a_post_whose_answer_is_lost_is_not_sent_again_unless_that_is_allowed() -> None:
    async with Pair() as both:
        both.one.drops_answers = True
        with pytest.raises(Exception, match="broke"):
            await both.pair.request("POST", "x")
        assert len(both.executed) == 1
        assert both.is_first_active
        assert (await both.pair.request("POST", "x", may_repeat=True)).status == 200
        assert len(both.executed) == 3


@asynchronous
async def test_without_a_listener_at_the_first_relay_even_a_post_goes_to_the_second() -> None:
    async with Pair() as both:
        await both.listener.listeners[0].close()
        assert (await both.pair.request("POST", "x")).status == 200
        assert both.pair.active == both.two.endpoint.name
        assert both.listener.is_up


@pytest.mark.parametrize("status", [400, 404, 500, 503])
@asynchronous
async def test_an_answer_of_the_service_changes_nothing(status: int) -> None:
    async with Pair() as both:
        answer = await both.pair.request("GET", "x", query=str(status))
        assert answer.status == status
        assert both.is_first_active
        assert both.events == []
        assert both.two.requests == []


@pytest.mark.parametrize("status", [400, 401, 403])
@asynchronous
async def test_a_fault_of_the_configuration_is_raised_and_the_other_relay_not_asked(status: int) -> None:
    async with Pair() as both:
        both.one.refuses = status
        with pytest.raises(RelayRefused, match=str(status)):
            await both.pair.request("GET")
        assert both.is_first_active
        assert both.two.requests == []


@asynchronous
async def test_a_relay_that_takes_connections_and_is_silent_costs_half_of_the_time() -> None:
    async with Pair() as both:
        both.one.is_silent = True
        began = asyncio.get_running_loop().time()
        assert (await both.pair.request("GET", timeout=1.0)).status == 200
        assert 0.45 < asyncio.get_running_loop().time() - began < 0.95
        assert not both.is_first_active


@asynchronous
async def test_with_both_down_the_roles_stay_and_the_first_error_has_the_second_attached() -> None:
    async with Pair() as both:
        await both.one.stop()
        await both.two.stop()
        with pytest.raises(ConnectFailed) as caught:
            await both.pair.request("GET")
        assert caught.value.endpoint == both.one.endpoint.name
        assert isinstance(caught.value.second, ConnectFailed)
        assert caught.value.second.endpoint == both.two.endpoint.name
        assert both.is_first_active
        assert type(both.events[-1]).__name__ == "BothFailed"


@asynchronous
async def test_both_relays_come_and_go_and_the_former_active_one_is_used_after_the_next_failure() -> None:
    async with Pair() as both:
        for down, up in ((both.one, both.two), (both.two, both.one), (both.one, both.two)):
            await until(lambda: all(one.is_online for one in both.listener.listeners))
            await down.stop()
            assert (await both.pair.request("GET")).endpoint == up.endpoint.name
            assert both.pair.active == up.endpoint.name
            await down.start()
        assert sum(isinstance(event, RelayRolesSwapped) for event in both.events) == 3


@asynchronous
async def test_fifty_requests_that_fail_at_once_swap_the_roles_once() -> None:
    async with Pair() as both:
        await both.one.stop()
        answers = await asyncio.gather(*(both.pair.request("GET", str(number)) for number in range(50)))
        assert [answer.text for answer in answers] == [f"/{number}" for number in range(50)]
        assert sum(isinstance(event, RelayRolesSwapped) for event in both.events) == 1
        assert not both.is_first_active
        assert len(both.executed) == 50


@asynchronous
async def test_a_credential_that_gives_no_token_is_an_outage_of_its_endpoint_alone() -> None:
    class Broken:
        async def get_token(self, *_: str) -> None:
            raise OSError("the issuer is away")

    async with Pair(credentials=[Broken(), None]) as both:
        assert (await both.pair.request("POST")).endpoint == both.two.endpoint.name
        assert not both.is_first_active


@asynchronous
async def test_a_connection_goes_over_the_second_relay_when_the_first_has_no_listener() -> None:
    async with Pair() as both:
        await both.listener.listeners[0].close()
        async with await both.pair.connect() as connection:
            await connection.send("x")
            assert await connection.receive() == "x"
            assert connection.endpoint == both.two.endpoint.name
        assert not both.is_first_active


@asynchronous
async def test_a_listener_that_rejects_a_connection_is_an_answer() -> None:
    async with Pair() as both:

        async def reject(pending: PendingConnection) -> None:
            await pending.reject(404, "no such room")

        both.listener.listeners[0]._on_connection = reject
        with pytest.raises(ListenerRejected, match="no such room"):
            await both.pair.connect()
        assert both.is_first_active


@asynchronous
async def test_after_a_connection_that_broke_the_next_one_begins_with_the_other_relay() -> None:
    async with Pair() as both:
        connection = await both.pair.connect()
        await both.one.joined[-1].close(code=1011)
        with pytest.raises(StreamClosed):
            await connection.receive()
        assert both.is_first_active
        async with await both.pair.connect() as again:
            assert again.endpoint == both.two.endpoint.name
        assert not both.is_first_active


@asynchronous
async def test_a_service_with_a_filter_executes_a_request_once_though_it_comes_twice() -> None:
    executed: list[str | None] = []
    told: list[Event] = []

    async def serve(asked: RelayRequest) -> RelayResponse:
        executed.append(asked.request_id)
        await asyncio.sleep(0.05)
        return RelayResponse(body=str(len(executed)).encode())

    async with StandInRelay("a") as one, StandInRelay("b") as two:
        recent = DuplicateFilter(serve, on_event=told.append)
        async with PairListener([one.endpoint, two.endpoint], recent) as listener:
            for each in listener.listeners:
                await each.wait_online()
            one.drops_answers = True
            async with RelayPair([one.endpoint, two.endpoint], entropy=First()) as pair:
                assert (await pair.request("POST", may_repeat=True)).text == "1"
            sender = RelaySender(two.endpoint)
            sent = {"x-duobus-request-id": "same"}
            answers = await asyncio.gather(*(sender.request("POST", headers=sent) for _ in range(5)))
            await sender.close()
    assert {answer.text for answer in answers} == {"2"}
    assert len(executed) == 2
    assert sum(isinstance(event, DuplicateAnswered) for event in told) == 5


def test_pairs_draw_their_first_endpoint_at_random() -> None:
    endpoints = [RelayEndpoint("one", "p"), RelayEndpoint("two", "p")]
    drawn = [RelayPair(endpoints).active for _ in range(400)]
    assert 120 < drawn.count("one/p") < 280


def test_a_pair_of_one_endpoint_is_refused() -> None:
    with pytest.raises(ValueError, match="a pair needs two"):
        RelayPair([RelayEndpoint("one", "p"), RelayEndpoint("ONE", "p")])
    with pytest.raises(ValueError, match="two endpoints"):
        RelayPair([RelayEndpoint("one", "p")])


def test_a_pair_that_fails_over_on_an_answer_of_the_service_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "has_via", lambda headers, host: False)
    with pytest.raises((AssertionError, RelayRefused)):
        test_an_answer_of_the_service_changes_nothing(503)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_listener_that_opens_an_address_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingConnection, "_take", lambda self: None)
    with pytest.raises(RelayRefused, match="used before"):
        test_an_address_of_a_rendezvous_is_opened_once_however_often_it_is_accepted()
    # What that test left open is no later test's fault.
    gc.collect()


# -- with threads ----------------------------------------------------------------------------------------------------


def test_threads_have_the_same_listener_sender_and_pair() -> None:
    started, ended = threading.Event(), threading.Event()
    relays: list[StandInRelay] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        async with StandInRelay("a") as one, StandInRelay("b") as two:
            relays.extend([one, two])
            loops.append(asyncio.get_running_loop())
            started.set()
            while not ended.is_set():  # noqa: ASYNC110 - of a thread
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(10)
    one, two = relays
    try:

        def answer(asked: RelayRequest) -> RelayResponse:
            return RelayResponse(body=asked.body + asked.path.encode())

        def chat(pending: sync.PendingConnection) -> None:
            with pending.accept() as connection:
                for message in connection:
                    connection.send(message)

        with sync.PairListener([one.endpoint, two.endpoint], sync.DuplicateFilter(answer), chat) as listener:
            for each in listener.listeners:
                each.wait_online(10)
            with sync.RelayPair([one.endpoint, two.endpoint], entropy=First()) as pair:
                assert pair.request("POST", "x", body=b"1").text == "1/x"
                with pair.connect() as connection:
                    connection.send("hello")
                    assert connection.receive() == "hello"
                asyncio.run_coroutine_threadsafe(one.stop(), loops[0]).result(10)
                assert pair.request("POST", "y").endpoint == two.endpoint.name
                assert sync.request(two.endpoint, "GET", "z").text == "/z"
    finally:
        ended.set()
        thread.join(10)
