"""Fast sends: sends that are taken straight from their connection, and what leaves it."""

from __future__ import annotations

import asyncio
import re
import ssl
from pathlib import Path
from typing import Any

import pytest

from duobus.clock import Clock
from duobus.errors import StoreFailed
from duobus.gateway.rest import fast_sends as express
from duobus.gateway.rest.fast_sends import AHEAD_BYTES_MAX, FastSendServer
from duobus.gateway.rest.runtime.send_head import BODY_BYTES_MAX, HEAD_BYTES_MAX
from duobus.gateway.rest.runtime.sends import Sends
from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from duobus.server.composition import Server
from duobus.storage.memory import MemoryStore
from duobus.storage.writers import LoopWriter
from kits.gateway import in_loop, serving, settled
from kits.http_client import Http, Reply, both, token


def fast_sends_of(server: Server) -> FastSendServer:
    assert server.rest.fast_sends is not None
    return server.rest.fast_sends


async def connect(server: Server) -> Http:
    return await Http.connect(server.port("http") or 0)


async def send(http: Http, body: bytes = b"x", **headers: str) -> Reply:
    return await http.ask("POST", "/q/messages", body, headers)


async def bodies(server: Server, number: int) -> list[bytes]:
    """What lies in the queue, in order."""
    http = await connect(server)
    return [(await http.ask("DELETE", "/q/messages/head")).body for _ in range(number)]


@in_loop
async def test_sends_stay_on_the_lane_and_are_answered_as_the_general_server_answers() -> None:
    async with serving() as server:
        http = await connect(server)
        first = await send(http, b"one", Property="7")
        assert len(fast_sends_of(server)) == 1
        general = await connect(server)
        other = await general.ask("POST", "/q/Messages/", b"two")
        assert len(fast_sends_of(server)) == 1
        assert (first.status, first.body) == (other.status, other.body) == (201, b"")
        assert [name for name, _ in first.headers] == [name for name, _ in other.headers]
        assert first.header("Server") == other.header("Server")
        assert server.metering.totals["ns", "q", "send"][0] == 2
        found = await general.ask("DELETE", "/q/messages/head")
        assert (found.body, found.header("Property")) == (b"one", "7")
        assert await bodies(server, 1) == [b"two"]


@in_loop
async def test_requests_behind_each_other_are_answered_in_order() -> None:
    async with serving() as server:
        http = await connect(server)
        await both(*(http.start("POST", "/q/messages", str(number)) for number in range(50)))
        assert [(await http.reply()).status for _ in range(50)] == [201] * 50
        assert len(fast_sends_of(server)) == 1
        assert await bodies(server, 50) == [str(number).encode() for number in range(50)]


@in_loop
async def test_another_request_behind_sends_gets_its_answer_behind_theirs() -> None:
    async with serving() as server:
        http = await connect(server)
        await http.start("POST", "/q/messages", b"x")
        await http.start("POST", "/nobody/messages", b"z")
        await http.start("DELETE", "/q/messages/head")
        await http.start("POST", "/q/messages", b"y")
        await http.start("POST", "/q/messages", b"z")
        replies = [await http.reply() for _ in range(5)]
        assert [reply.status for reply in replies] == [201, 410, 200, 201, 201]
        assert replies[2].body == b"x"
        assert len(fast_sends_of(server)) == 0


@in_loop
async def test_a_request_that_comes_in_pieces_is_read_as_one() -> None:
    async with serving() as server:
        http = await connect(server)
        assert (await send(http)).status == 201
        head = f"POST /q/messages HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token()}\r\nContent-Length: 6\r\n\r\n"
        data = head.encode() + b"pieces"
        for pos in range(0, len(data), 40):
            await http.stream.write(data[pos : pos + 40])
            await asyncio.sleep(0.001)
        assert (await http.reply()).status == 201
        assert len(fast_sends_of(server)) == 1
        assert await bodies(server, 2) == [b"x", b"pieces"]


def told(reply: Reply) -> list[Any]:
    """What a reply says, but for what differs from one refusal to the next."""
    text = re.sub("TrackingId:[-0-9a-f]+|Timestamp:[-:T0-9]+", "", reply.text)
    return [reply.status, text, [pair for pair in reply.headers if pair[0] != "Date"]]


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [
        ("/Nobody/messages", {}, 410),
        ("/topic/Subscriptions/none/messages?timeout=60", {}, 410),
        ("/topic/Subscriptions/all/messages", {}, 400),
        ("/q/messages", {"Authorization": "SharedAccessSignature sr=a&sig=b&se=1&skn=c"}, 401),
        ("/q/messages?api-version=1", {"Authorization": token(expires_s=1)}, 401),
        ("/q/messages", {"Authorization": token("other")}, 401),
        ("/q/messages", {"Authorization": "x"}, 401),
        ("/q/messages", {"BrokerProperties": "{"}, 400),
        ("/q/messages", {"BrokerProperties": '{"TimeToLive":-1}'}, 400),
        ("/q/messages", {"Quoted": '"open'}, 400),
        ("/q/messages", {"Content-Type": "application/vnd.microsoft.servicebus.json"}, 400),
        ("/sessions/messages", {}, 400),
        ("/disabled/messages", {}, 403),
        ("/small/messages", {}, 403),
    ],
)
def test_what_is_refused_is_refused_as_the_general_server_refuses_it(
    target: str, headers: dict[str, str], status: int
) -> None:
    queues = (
        QueueDescription(name="q"),
        QueueDescription(name="sessions", requires_session=True),
        QueueDescription(name="disabled", status="SendDisabled"),
        QueueDescription(name="small", max_message_size_bytes=1024),
    )

    @in_loop
    async def run() -> None:
        async with serving(*queues) as server:
            await server.unit.topics.create_topic("ns", TopicDescription(name="topic"))
            await server.unit.topics.create_subscription("ns", "topic", SubscriptionDescription(name="all"))
            http = await connect(server)
            here = await http.ask("POST", target, b"x" * 2000, headers)
            assert here.status == status
            assert (await send(http)).status == 201
            assert len(fast_sends_of(server)) == 1
            fast_sends_of(server).is_open = False
            there = await (await connect(server)).ask("POST", target, b"x" * 2000, headers)
            assert told(here) == told(there)

    run()


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [
        ("/q/messages", {"Host": "a b"}, 400),
        ("/q/messages", {"Transfer-Encoding": "chunked"}, 400),
        ("/q/../messages", {}, 400),
        ("/q/%ff/messages", {}, 400),
        ("/q/messages/7/messages", {}, 400),
        ("/q/$deadletterqueue/messages", {}, 400),
        ("/messages", {}, 405),
    ],
)
def test_what_is_no_ordinary_send_is_the_general_servers(target: str, headers: dict[str, str], status: int) -> None:
    @in_loop
    async def run() -> None:
        async with serving() as server:
            http = await connect(server)
            assert (await http.ask("POST", target, b"x", headers)).status == status
            assert len(fast_sends_of(server)) == 0

    run()


@in_loop
async def test_a_large_body_is_the_general_servers() -> None:
    async with serving() as server:
        http = await connect(server)
        assert (await send(http, b"x" * BODY_BYTES_MAX)).status == 201
        assert len(fast_sends_of(server)) == 1
        assert (await send(http, b"x" * (BODY_BYTES_MAX + 1))).status == 201
        assert len(fast_sends_of(server)) == 0


@in_loop
async def test_a_head_that_does_not_end_is_the_general_servers() -> None:
    async with serving() as server:
        http = await connect(server)
        assert (await send(http)).status == 201
        await http.stream.write(b"POST /q/messages HTTP/1.1\r\nName: " + b"x" * HEAD_BYTES_MAX)
        await settled(lambda: len(fast_sends_of(server)) == 0)
        await http.stream.write(b"x" * 40_000 + b"\r\n\r\n")
        assert (await http.reply()).status == 400


@in_loop
async def test_a_request_that_drips_is_the_general_servers_after_two_looks() -> None:
    async with serving() as server:
        forwarder = fast_sends_of(server)
        http = await connect(server)
        assert (await send(http)).status == 201
        await http.stream.write(
            f"POST /q/messages HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token()}\r\n".encode()
            + b"Content-Length: 3\r\n\r\nx"
        )
        (connection,) = forwarder._open
        await settled(lambda: bool(connection._data))
        forwarder._sweep_now()
        assert len(forwarder) == 1
        await http.stream.write(b"y")
        await settled(lambda: connection._data.endswith(b"xy"))
        forwarder._sweep_now()
        assert len(forwarder) == 0
        await http.stream.write(b"z")
        assert (await http.reply()).status == 201
        assert await bodies(server, 2) == [b"x", b"xyz"]


@in_loop
async def test_many_refusals_at_once_take_a_turn_of_the_loop_each() -> None:
    async with serving() as server:
        http = await connect(server)
        assert (await send(http)).status == 201
        (connection,) = fast_sends_of(server)._open
        fields = f"Host: localhost\r\nAuthorization: {token()}\r\nContent-Length: 0"
        one = f"POST /nobody/messages HTTP/1.1\r\n{fields}\r\n\r\n"
        connection.data_received(one.encode() * 20)
        assert len(connection._data) == 19 * len(one)
        assert [(await http.reply()).status for _ in range(20)] == [410] * 20


@in_loop
async def test_a_connection_that_does_nothing_is_closed_after_the_time_of_keep_alive() -> None:
    async with serving() as server:
        forwarder = fast_sends_of(server)
        http = await connect(server)
        assert (await send(http)).status == 201
        for _ in range(int(300 / express.SWEEP_S)):
            forwarder._sweep_now()
        assert (await send(http)).status == 201
        for _ in range(int(300 / express.SWEEP_S) + 1):
            forwarder._sweep_now()
        assert await http.stream.read() == b""
        await settled(lambda: len(forwarder) == 0)


@in_loop
async def test_whoever_does_not_read_answers_sends_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    prepare = Sends.prepare

    def counted(self: Sends, *args: Any) -> Any:
        nonlocal taken
        taken += 1
        return prepare(self, *args)

    monkeypatch.setattr(Sends, "prepare", counted)
    async with serving() as server:
        http = await connect(server)
        assert (await send(http)).status == 201
        (connection,) = fast_sends_of(server)._open
        connection.pause_writing()
        for _ in range(4):
            await http.start("POST", "/q/messages", b"x" * (AHEAD_BYTES_MAX // 2))
        await settled(lambda: connection._is_paused)
        assert taken == 1
        connection.resume_writing()
        assert [(await http.reply()).status for _ in range(4)] == [201] * 4
        assert not connection._is_paused


@in_loop
async def test_a_large_request_behind_another_is_read_to_its_end() -> None:
    async with serving() as server:
        http = await connect(server)
        assert (await send(http)).status == 201
        (connection,) = fast_sends_of(server)._open
        connection.pause_writing()
        await http.start("POST", "/q/messages", b"x" * BODY_BYTES_MAX)
        await settled(lambda: len(connection._data) > AHEAD_BYTES_MAX)
        connection._is_paused = True
        assert connection._tr is not None
        connection._tr.pause_reading()
        whole, connection._data = connection._data, connection._data[: AHEAD_BYTES_MAX + 1]
        connection.resume_writing()
        assert not connection._is_paused
        connection.data_received(whole[AHEAD_BYTES_MAX + 1 :])
        assert (await http.reply()).status == 201


@in_loop
async def test_a_namespace_past_its_rate_says_so_and_the_connection_stays() -> None:
    from duobus.broker import Throttle

    async with serving() as server:
        server.unit.namespace("ns").throttle = Throttle("ns", 5, Clock())
        http = await connect(server)
        replies = [await send(http) for _ in range(8)]
        assert {reply.status for reply in replies} == {201, 503}
        (busy, *_) = (reply for reply in replies if reply.status == 503)
        assert busy.text.startswith("<Error><Code>503</Code><Detail>SubCode=50004.")
        assert busy.header("Retry-After") == "2"
        assert len(fast_sends_of(server)) == 1


@in_loop
async def test_a_send_whose_store_is_away_or_fails_is_told_so_and_the_connection_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as server:
        http = await connect(server)
        (handle,) = server.unit.namespace("ns").queues["q"].fragments
        fragment, handle.fragment = handle.fragment, None
        away = await send(http)
        handle.fragment = fragment

        def fail(self: MemoryStore, batch: Any) -> None:
            raise StoreFailed("the disk is gone")

        monkeypatch.setattr(MemoryStore, "commit", fail)
        failed = await send(http)
        assert (away.status, failed.status) == (503, 503)
        assert len(fast_sends_of(server)) == 1


@in_loop
async def test_a_fault_of_ours_is_answered_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server:
        http = await connect(server)

        def fault(batch: Any) -> None:
            raise ZeroDivisionError("secret")

        queue = server.unit.namespace("ns").queues["q"]
        monkeypatch.setattr(type(queue), "send", lambda self, batch: fault(batch))
        reply = await send(http)
        assert reply.status == 500
        assert "secret" not in reply.text


@in_loop
async def test_the_room_for_bodies_is_given_back_whatever_happens() -> None:
    async with serving() as server:
        http = await connect(server)
        room = fast_sends_of(server).sends._room
        assert (await send(http, b"x" * 1000)).status == 201
        assert room.used == 0
        (handle,) = server.unit.namespace("ns").queues["q"].fragments
        fragment, handle.fragment = handle.fragment, None
        assert (await send(http, b"x" * 1000)).status == 503
        handle.fragment = fragment
        assert room.used == 0


def holding(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have results of stores held back from here on; what is held."""
    held: list[Any] = []
    submit = LoopWriter.submit

    def hold(self: LoopWriter, call: Any, done: Any) -> None:
        submit(self, call, lambda *result: held.append((done, result)))

    monkeypatch.setattr(LoopWriter, "submit", hold)
    return held


def let_go(held: list[Any]) -> None:
    """Tell what was held back."""
    for done, result in held:
        done(*result)


@in_loop
async def test_a_client_that_goes_away_has_sent_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server:
        forwarder = fast_sends_of(server)
        http = await connect(server)
        assert (await send(http)).status == 201
        held = holding(monkeypatch)
        await http.start("POST", "/q/messages", b"gone")
        await settled(lambda: bool(held))
        http.stream.drop()
        await settled(lambda: len(forwarder) == 0)
        monkeypatch.undo()
        let_go(held)
        assert await bodies(server, 2) == [b"x", b"gone"]


@in_loop
async def test_a_stop_answers_what_is_under_way_and_closes_those_that_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server:
        forwarder = fast_sends_of(server)
        resting, busy = await connect(server), await connect(server)
        assert (await send(resting)).status == 201
        held = holding(monkeypatch)
        await busy.start("POST", "/q/messages", b"last")
        await settled(lambda: bool(held))
        closing = asyncio.create_task(forwarder.close(10.0))
        assert await resting.stream.read() == b""
        monkeypatch.undo()
        let_go(held)
        assert (await busy.reply()).status == 201
        assert await busy.stream.read() == b""
        await closing


@in_loop
async def test_connections_of_the_lane_count_among_those_that_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    from duobus.gateway.rest import connection_limit as crowd
    from duobus.gateway.rest import server as app

    monkeypatch.setattr(app, "bounded", lambda server: crowd.bounded(server, 2))
    async with serving() as server:
        general, express_one = await connect(server), await connect(server)
        assert (await general.ask("GET", "/q")).status == 200
        assert (await send(express_one)).status == 201
        assert (await (await connect(server)).ask("POST", "/q/messages", b"x")).status == 503


@in_loop
async def test_servers_that_share_their_work_have_no_lane() -> None:
    async with serving() as server:
        before, after = await connect(server), await connect(server)
        assert (await send(before)).status == 201
        fast_sends_of(server).is_open = False
        assert (await send(after)).status == 201
        assert len(fast_sends_of(server)) == 1
        assert (await send(before)).status == 201
        assert len(fast_sends_of(server)) == 0


def test_the_lane_is_there_behind_tls_too(tmp_path: Path) -> None:
    @in_loop
    async def run() -> None:
        async with serving(ephemeral=False, data=tmp_path, tls_self_signed=True) as server:
            assert server.authority is not None
            context = ssl.create_default_context(cafile=str(server.authority))
            http = await Http.connect(server.port("http") or 0, ssl=context, server_hostname="localhost")
            await both(*(http.start("POST", "/q/messages", b"x") for _ in range(3)))
            assert [(await http.reply()).status for _ in range(3)] == [201] * 3
            assert len(fast_sends_of(server)) == 1
            assert (await http.ask("DELETE", "/q/messages/head")).body == b"x"
            assert len(fast_sends_of(server)) == 0
            await http.stream.close()

    run()
