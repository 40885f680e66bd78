"""Listeners and pairs in virtual time: pauses, tokens that end, deadlines, and failures that meet (IN6, I52)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from duobus.clock import Clock, Entropy
from duobus.model.relay.messages import RenewToken, to_relay
from duobus.relay import (
    ConnectFailed,
    ConnectionDropped,
    RelayEndpoint,
    RelayError,
    RelayRefused,
    RelayResponse,
    RelayTimeout,
)
from duobus.relay.aio import PairListener, RelayListener, RelayPair, RelaySender, TokenSource
from duobus.relay.aio import pair as pair_module
from duobus.relay.events import Event, RelayRolesSwapped
from duobus.relay.roles import Operation, Roles
from simulation.world.loop import SimulationLoop


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        loop = SimulationLoop(test.__name__)
        try:
            loop.run(test())
        finally:
            loop.close()

    run.__name__ = test.__name__
    return run


class LoopClock(Clock):
    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(asyncio.get_running_loop().time() * 1000)

    def monotonic_ms(self) -> int:
        return self.now_ms()


class First(Entropy):
    def number(self, bits: int) -> int:
        return 0


def now() -> float:
    return asyncio.get_running_loop().time()


class Socket:
    """A control channel that a test ends."""

    def __init__(self) -> None:
        self.endpoint = "e"
        self.protocol = None
        self.close_code: int | None = None
        self.close_reason = ""
        self.sent: list[tuple[float, Any]] = []
        self._ended = asyncio.Event()

    async def receive(self) -> None:
        await self._ended.wait()

    async def send(self, *messages: Any) -> None:
        if self.close_code is not None:
            raise ConnectionDropped("closed")
        self.sent += [(now(), message) for message in messages]

    async def close(self, code: int = 1000, reason: str = "") -> None:
        if self.close_code is None:
            self.close_code, self.close_reason = code, reason
        self._ended.set()


class Network:
    """The connections of one endpoint, and what becomes of them.

    Attributes:
        tries: Time of each handshake.
        fault: What handshakes and requests raise; None when all is well.
        delay_s: How long everything takes.
        life_s: How long the relay keeps a channel without a new token.
    """

    def __init__(self) -> None:
        self.tries: list[float] = []
        self.requests: list[tuple[float, str]] = []
        self.fault: Callable[[], RelayError] | None = None
        self.delay_s = 0.01
        self.life_s: float | None = None
        self.sockets: list[Socket] = []

    async def open(self, address: str, headers: Any, endpoint: str, *, limit_s: float, **_: Any) -> Any:
        self.tries.append(now())
        await self._pass(limit_s)
        socket = Socket()
        self.sockets.append(socket)
        if self.life_s is not None:
            asyncio.get_running_loop().call_later(self.life_s, self._expire, socket, 0)
        return socket

    def _expire(self, socket: Socket, renewals: int) -> None:
        count = sum(isinstance(to_relay(message), RenewToken) for _, message in socket.sent)
        if count > renewals:
            assert self.life_s is not None
            asyncio.get_running_loop().call_later(self.life_s * 0.8, self._expire, socket, count)
        else:
            asyncio.get_running_loop().create_task(socket.close(1008, "token expired"))

    async def request(
        self, method: str, address: str, headers: Any, body: bytes, endpoint: str, *, limit_s: float, **_: Any
    ) -> RelayResponse:
        self.requests.append((now(), headers["x-duobus-request-id"]))
        await self._pass(limit_s)
        return RelayResponse(endpoint=endpoint)

    async def stream(self, *words: Any, limit_s: float, **given: Any) -> Any:
        answer = await self.request(*words, limit_s=limit_s, **given)

        class Stream:
            status, headers, reason = answer.status, answer.headers, answer.reason

            async def close(self) -> None:
                pass

        return Stream()

    async def _pass(self, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.sleep(self.delay_s)
        except TimeoutError:
            raise RelayTimeout("late") from None
        if self.fault is not None:
            raise self.fault()

    async def close(self) -> None:
        for socket in self.sockets:
            await socket.close()


ONE = RelayEndpoint("one", "primary", "n", "k")
TWO = RelayEndpoint("two", "secondary", "n", "k")


def listener_of(network: Network, endpoint: RelayEndpoint = ONE, **given: Any) -> RelayListener:
    return RelayListener(endpoint, connections=network, clock=LoopClock(), **given)  # type: ignore[arg-type]


def refused() -> RelayError:
    return ConnectFailed("refused")


# -- listeners --------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_listener_tries_again_after_0_1_2_5_10_and_30_seconds() -> None:
    network = Network()
    network.delay_s, network.fault = 0.0, refused
    async with listener_of(network):
        await asyncio.sleep(120)
    assert [round(time) for time in network.tries] == [0, 0, 1, 3, 8, 18, 48, 78, 108]


@in_virtual_time
async def test_the_pauses_begin_anew_after_a_steady_registration_and_not_after_a_short_one() -> None:
    network = Network()
    network.delay_s = 0.0
    events: list[Event] = []
    async with listener_of(network, on_event=events.append):
        for _ in range(3):
            await asyncio.sleep(20)
            await network.sockets[-1].close(1011)
            await asyncio.sleep(0.5)
        assert len(network.tries) == 4
        for _ in range(3):
            await asyncio.sleep(0.1)
            await network.sockets[-1].close(1011)
        await asyncio.sleep(0.2)
        # The fourth pause is one of a second.
        assert len(network.tries) == 4
    pauses = [event.retry_ms for event in events if type(event).__name__ == "ListenerOffline"]  # type: ignore[attr-defined]
    assert pauses == [0, 0, 0, 1000]


@in_virtual_time
async def test_the_token_is_renewed_before_it_ends_so_that_the_relay_never_closes_the_channel() -> None:
    network = Network()
    network.life_s = 3600
    events: list[Event] = []
    async with listener_of(network, on_event=events.append):
        await asyncio.sleep(10 * 3600)
    assert [type(event).__name__ for event in events] == ["ListenerOnline"]
    times = [time for time, _ in network.sockets[0].sent]
    assert len(times) == 12
    assert all(2870 < after - before < 2890 for before, after in itertools.pairwise(times))


class Issuer:
    """A credential whose tokens last an hour, and which can be taken away."""

    is_away = False

    async def get_token(self, *_: str) -> Any:
        if self.is_away:
            raise OSError("away")

        class Given:
            token = "jwt"
            expires_on = LoopClock().now_ms() / 1000 + 3600

        return Given


@in_virtual_time
async def test_a_listener_whose_token_ended_is_not_kept_as_registered() -> None:
    network, issuer = Network(), Issuer()
    listener = listener_of(network, tokens=TokenSource(ONE, issuer, clock=LoopClock()))  # type: ignore[arg-type]
    async with listener:
        await listener.wait_online()
        issuer.is_away = True
        await asyncio.sleep(3590)
        assert listener.is_online
        await asyncio.sleep(20)
        assert not listener.is_online
        assert network.sockets[0].close_code == 1000
        assert listener.reporter.counts["TokenNotRenewed"] > 10
        issuer.is_away = False
        await asyncio.sleep(31)
        assert listener.is_online


@in_virtual_time
async def test_a_service_is_up_while_one_of_its_endpoints_has_registered_it() -> None:
    one, two = Network(), Network()
    both = PairListener([listener_of(one), listener_of(two, TWO)])
    async with both:
        await both.wait_up()
        await asyncio.sleep(1)
        one.fault = refused
        await one.sockets[-1].close(1011)
        await asyncio.sleep(60)
        assert both.is_up
        assert [listener.is_online for listener in both.listeners] == [False, True]
        # The failure of the one has not delayed or ended the other.
        assert len(two.tries) == 1
        two.fault = refused
        await two.sockets[-1].close(1011)
        await asyncio.sleep(1)
        assert not both.is_up
        one.fault = None
        await asyncio.sleep(31)
        assert both.is_up


@in_virtual_time
async def test_a_listener_that_is_refused_is_told_at_once_and_goes_on_trying() -> None:
    network = Network()
    network.fault = lambda: RelayRefused(403, "no Listen")
    async with listener_of(network) as listener:
        with pytest.raises(RelayRefused, match="no Listen"):
            await listener.wait_online()
        assert now() < 1
        network.fault = None
        await asyncio.sleep(3)
        assert listener.is_online


@in_virtual_time
async def test_waiting_for_an_endpoint_ends_with_the_reason() -> None:
    network = Network()
    network.fault = refused
    async with listener_of(network) as listener:
        with pytest.raises(ConnectFailed):
            await listener.wait_online(timeout=7)
        assert 6.9 < now() < 7.1


@in_virtual_time
async def test_waiting_for_an_endpoint_may_end_after_some_tries_however_long_they_take() -> None:
    network = Network()
    network.delay_s, network.fault = 0.0, refused
    async with listener_of(network) as listener:
        with pytest.raises(ConnectFailed):
            await listener.wait_online(timeout=1000, tries=5)
        assert (listener.failed_tries, now()) == (5, 8)
    assert len(network.tries) == 5


@in_virtual_time
async def test_waiting_for_a_pair_may_end_after_some_tries_at_both_endpoints() -> None:
    one, two = Network(), Network()
    one.delay_s = two.delay_s = 0.0
    one.fault = two.fault = refused
    async with PairListener([listener_of(one), listener_of(two, TWO)]) as both:
        with pytest.raises(ConnectFailed) as caught:
            await both.wait_up(timeout=1000, tries=3)
        assert isinstance(caught.value.second, ConnectFailed)
        assert now() == 1
        two.fault = None
        await both.wait_up(timeout=1000, tries=9)


# -- the pair ---------------------------------------------------------------------------------------------------------


class Both:
    def __init__(self, **given: Any) -> None:
        self.one, self.two = Network(), Network()
        self.events: list[Event] = []
        senders = [RelaySender(ONE, connections=self.one), RelaySender(TWO, connections=self.two)]  # type: ignore[arg-type]
        self.pair = RelayPair(senders, entropy=First(), on_event=self.events.append, **given)

    @property
    def swaps(self) -> int:
        return sum(isinstance(event, RelayRolesSwapped) for event in self.events)


@in_virtual_time
async def test_half_of_the_deadline_is_kept_for_the_second_endpoint() -> None:
    both = Both()
    both.one.delay_s = 1000
    answer = await both.pair.request("GET", timeout=60)
    assert answer.endpoint == TWO.name
    assert 30 <= now() < 30.1
    assert [time for time, _ in both.two.requests] == [30.0]


@in_virtual_time
async def test_half_of_the_deadline_of_a_connection_is_kept_for_the_second_endpoint() -> None:
    both = Both()
    both.one.delay_s = 1000
    await both.pair.connect(timeout=60)
    assert (both.one.tries, both.two.tries) == ([0.0], [30.0])
    assert both.pair.active == TWO.name


@in_virtual_time
async def test_the_head_of_a_streamed_answer_decides_which_endpoint_has_answered() -> None:
    both = Both()
    both.one.delay_s = 1000
    async with await both.pair.stream("GET", timeout=60) as answer:
        assert answer.endpoint == both.pair.active == TWO.name
    assert now() < 30.1
    assert both.one.requests[0][1] == both.two.requests[0][1]


@in_virtual_time
async def test_one_deadline_covers_both() -> None:
    both = Both()
    both.one.delay_s = both.two.delay_s = 1000
    with pytest.raises(RelayTimeout) as caught:
        await both.pair.request("GET", timeout=60)
    assert now() == 60
    assert isinstance(caught.value.second, RelayTimeout)
    assert both.pair.active == ONE.name


@in_virtual_time
async def test_a_post_that_gets_no_answer_has_all_of_the_time_and_is_not_sent_again() -> None:
    both = Both()
    both.one.delay_s = 1000
    with pytest.raises(RelayTimeout):
        await both.pair.request("POST", timeout=60)
    assert now() == 60
    assert both.two.requests == []


@in_virtual_time
async def test_both_attempts_have_one_id_and_different_requests_have_different_ones() -> None:
    both = Both()
    both.one.fault = refused
    await asyncio.gather(*(both.pair.request("GET") for _ in range(20)))
    ids = [text for _, text in both.one.requests]
    assert len(set(ids)) == 20
    assert sorted(ids) == sorted(text for _, text in both.two.requests)


@in_virtual_time
async def test_hot_failures_swap_once_and_a_late_failure_of_the_former_active_endpoint_swaps_nothing_back() -> None:
    both = Both()
    both.one.delay_s, both.one.fault = 5.0, refused
    requests = []
    for number in range(100):
        requests.append(asyncio.create_task(both.pair.request("GET", str(number))))
        await asyncio.sleep(0.01)
    await asyncio.gather(*requests)
    assert both.swaps == 1
    assert both.pair.active == TWO.name


@in_virtual_time
async def test_when_both_fail_hot_the_roles_never_move() -> None:
    both = Both()
    both.one.fault = both.two.fault = refused
    answers = await asyncio.gather(*(both.pair.request("GET") for _ in range(50)), return_exceptions=True)
    assert all(isinstance(answer, ConnectFailed) and answer.second is not None for answer in answers)
    assert (both.swaps, both.pair.active) == (0, ONE.name)


@in_virtual_time
async def test_a_token_that_is_refused_is_replaced_once_and_then_the_refusal_is_raised() -> None:
    both = Both()
    both.one.fault = lambda: RelayRefused(401, "expired")
    with pytest.raises(RelayRefused):
        await both.pair.request("GET")
    assert len(both.one.requests) == 2
    assert both.two.requests == []
    assert both.pair.active == ONE.name


# -- faults that are planted, each of which these tests have to notice -------------------------------------------------


class _SwapsTooSoon(Operation):
    """Swaps the roles before the backup has answered."""

    def on_failure(self, error: RelayError, now_ms: int) -> Any:
        self._roles.swap(self._choice)
        return super().on_failure(error, now_ms)


class _SwapsBack(Roles):
    """Swaps without regard to the generation."""

    def swap(self, choice: Any) -> bool:
        return super().swap(self.choice)


@pytest.mark.parametrize(
    ("name", "fault", "test"),
    [
        ("Operation", _SwapsTooSoon, test_when_both_fail_hot_the_roles_never_move),
        (
            "Roles",
            _SwapsBack,
            test_hot_failures_swap_once_and_a_late_failure_of_the_former_active_endpoint_swaps_nothing_back,
        ),
    ],
)
def test_a_planted_fault_of_the_roles_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, fault: type, test: Callable[[], None]
) -> None:
    monkeypatch.setattr(pair_module, name, fault)
    with pytest.raises(AssertionError):
        test()


def test_a_listener_that_keeps_its_registration_without_a_token_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: RelayListener, channel: Any) -> None:
        await asyncio.sleep(1e9)

    monkeypatch.setattr(RelayListener, "_renew", never)
    with pytest.raises(AssertionError):
        test_a_listener_whose_token_ended_is_not_kept_as_registered()
    with pytest.raises(AssertionError):
        test_the_token_is_renewed_before_it_ends_so_that_the_relay_never_closes_the_channel()
