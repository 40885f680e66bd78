"""Bodies that go piece by piece through the relay of a real server, both ways, and hold up who is too quick."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from integration.relay.test_relay_clients import First, asynchronous, until
from integration.relay.test_relay_clients_with_servers import endpoint_of

from duobus.clock import Clock, Entropy
from duobus.gateway.tls import SelfSigned
from duobus.model.relay.description import HybridConnectionDescription
from duobus.model.relay.limits import CHANNEL_BODY_BYTES_MAX
from duobus.relay import ConnectionDropped, RelayEndpoint, RelayRefused, RelayRequest, RelayResponse, sync
from duobus.relay.aio import (
    RelayListener,
    RelayPair,
    RelaySender,
    StreamedRequest,
    StreamedResponse,
    request,
)
from duobus.relay.asgi import AsgiService
from duobus.relay.errors import AnswerTooLarge
from duobus.relay.tunnel import LocalPort
from kits.relay import relaying

PIECE = b"p" * 65_536


def largest_buffer(direction: str) -> int:
    """How many bytes a socket may keep, of what it has received (``rmem``) or is to send (``wmem``)."""
    try:
        return int(Path(f"/proc/sys/net/ipv4/tcp_{direction}").read_text().split()[2])
    except OSError:
        return 8 << 20


#: What may lie between a writer that is held up and its reader: buffers of three programs, and the two connections
#: between these.
BETWEEN_BYTES = (8 << 20) + 2 * (largest_buffer("rmem") + largest_buffer("wmem"))


class Counted:
    """Pieces without end, and how much of them was asked for."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.size = 0
        self.is_ended = False
        self._pause_s = pause_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                self.size += len(PIECE)
                yield PIECE
                await asyncio.sleep(self._pause_s)
        finally:
            self.is_ended = True

    async def held_up(self) -> None:
        """Return when nothing moves any more; fail when that is too much."""
        last = -1
        while self.size != last:
            last = self.size
            assert last < BETWEEN_BYTES
            await asyncio.sleep(0.3)


@asynchronous
async def test_a_service_reads_the_body_of_a_request_while_the_sender_still_makes_it() -> None:
    read: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(asked: StreamedRequest) -> RelayResponse:
        async for piece in asked.body:
            read.put_nowait(piece)
        return RelayResponse(body=b"all")

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(5):
            yield b"piece %d" % number
            # Without streaming this would wait for ever.
            assert await read.get() == b"piece %d" % number

    async with relaying() as parties, RelayListener(endpoint_of(parties), on_stream=serve) as listener:
        await listener.wait_online()
        assert (await request(endpoint_of(parties), "POST", body=pieces())).body == b"all"


@asynchronous
async def test_a_sender_reads_an_answer_while_the_service_still_makes_it() -> None:
    read = asyncio.Semaphore(0)

    async def serve(asked: StreamedRequest) -> StreamedResponse:
        async def pieces() -> AsyncIterator[bytes]:
            for number in range(5):
                yield b"piece %d" % number
                await read.acquire()

        return StreamedResponse(201, {"X-One": "1"}, pieces(), "Made")

    async with (
        relaying() as parties,
        RelayListener(endpoint_of(parties), on_stream=serve) as listener,
        RelaySender(endpoint_of(parties)) as sender,
    ):
        await listener.wait_online()
        async with await sender.stream("GET") as answer:
            assert (answer.status, answer.reason, answer.header("x-one")) == (201, "Made", "1")
            found = []
            async for piece in answer.body:
                found.append(piece)
                read.release()
        assert found == [b"piece %d" % number for number in range(5)]


@asynchronous
async def test_bodies_of_many_sizes_go_through_in_pieces_unaltered() -> None:
    async def serve(asked: StreamedRequest) -> StreamedResponse:
        return StreamedResponse(body=asked.body)

    async with (
        relaying() as parties,
        RelayListener(endpoint_of(parties), on_stream=serve) as listener,
        RelaySender(endpoint_of(parties)) as sender,
    ):
        await listener.wait_online()
        for size in (0, 1, CHANNEL_BODY_BYTES_MAX, CHANNEL_BODY_BYTES_MAX + 1, 9_000_001):
            content = random.Random(size).randbytes(size)

            async def pieces(content: bytes = content) -> AsyncIterator[bytes]:
                for start in range(0, len(content), 300_000):
                    yield content[start : start + 300_000]

            for body in (content, pieces()):
                answer = await sender.request("PUT", body=body)
                assert (answer.status, hashlib.sha256(answer.body).digest()) == (200, hashlib.sha256(content).digest())


@asynchronous
async def test_bodies_go_through_in_pieces_over_tls(tmp_path: Path) -> None:
    async def serve(asked: StreamedRequest) -> StreamedResponse:
        return StreamedResponse(body=asked.body)

    files = SelfSigned(tmp_path, Clock(), Entropy()).ensure([])
    options = {"tls_cert": files.certificate, "tls_key": files.key, "https_port": 0}
    trusted = ssl.create_default_context(cafile=str(files.authority))
    content = random.Random(7).randbytes(5_000_000)
    async with relaying(**options) as parties:
        host = f"localhost:{parties.server.port('https')}"
        endpoint = RelayEndpoint(host, "relay/one", "RootManageSharedAccessKey", "SAS_KEY_VALUE")
        async with (
            RelayListener(endpoint, on_stream=serve, tls=trusted) as listener,
            RelaySender(endpoint, tls=trusted) as sender,
        ):
            await listener.wait_online()
            async with await sender.stream("PUT", body=content) as answer:
                assert await answer.read() == content


@asynchronous
async def test_a_sender_that_does_not_read_holds_the_service_up_and_one_that_leaves_ends_its_answer() -> None:
    made = Counted()

    async def serve(asked: StreamedRequest) -> StreamedResponse:
        return StreamedResponse(body=made)

    async with (
        relaying() as parties,
        RelayListener(endpoint_of(parties), on_stream=serve) as listener,
        RelaySender(endpoint_of(parties)) as sender,
    ):
        await listener.wait_online()
        async with await sender.stream("GET") as answer:
            assert await answer.body.__aiter__().__anext__()
            await made.held_up()
            with pytest.raises(AnswerTooLarge):
                await answer.read(40 << 20)
        await until(lambda: made.is_ended)


@asynchronous
async def test_a_service_that_does_not_read_holds_the_sender_up() -> None:
    made, may_answer = Counted(), asyncio.Event()

    async def serve(asked: StreamedRequest) -> RelayResponse:
        await may_answer.wait()
        return RelayResponse(202)

    async with (
        relaying() as parties,
        RelayListener(endpoint_of(parties), on_stream=serve) as listener,
        RelaySender(endpoint_of(parties)) as sender,
    ):
        await listener.wait_online()
        asking = asyncio.create_task(sender.request("POST", body=made))
        await made.held_up()
        may_answer.set()
        # An answer before the end of the body: the rest is not sent.
        assert (await asking).status == 202
        await until(lambda: made.is_ended)


@asynchronous
async def test_a_service_that_reads_on_after_its_answer_does_not_take_what_is_left_for_a_whole_body() -> None:
    late: list[asyncio.Task[bytes]] = []
    is_answered = asyncio.Event()

    async def serve(asked: StreamedRequest) -> RelayResponse:
        async def read_on() -> bytes:
            await is_answered.wait()
            return await asked.body.read()

        source: Any = asked.body._source
        await until(lambda: source._is_whole)
        late.append(asyncio.create_task(read_on()))
        return RelayResponse(202)

    async with relaying() as parties, RelayListener(endpoint_of(parties), on_stream=serve) as listener:
        await listener.wait_online()
        assert (await request(endpoint_of(parties), "POST", body=PIECE * 2)).status == 202
        await until(lambda: not [task for task in listener._at_work if not task.is_over])
        is_answered.set()
        with pytest.raises(ConnectionDropped):
            await late[0]


@asynchronous
async def test_a_service_has_its_time_to_answer_anew_with_each_piece_of_a_slow_request() -> None:
    async def serve(asked: StreamedRequest) -> RelayResponse:
        return RelayResponse(body=str(len(await asked.body.read())).encode())

    async def pieces(pauses: list[float]) -> AsyncIterator[bytes]:
        for pause in pauses:
            yield b"x"
            await asyncio.sleep(pause)

    async with relaying() as parties, RelayListener(endpoint_of(parties), on_stream=serve) as listener:
        parties.hub.response_s = 0.5
        await listener.wait_online()
        assert (await request(endpoint_of(parties), "POST", body=pieces([0.2] * 6))).text == "6"
        with pytest.raises(RelayRefused, match="504"):
            await request(endpoint_of(parties), "POST", body=pieces([2.0]))


@asynchronous
async def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one() -> None:
    async def serve(asked: StreamedRequest) -> StreamedResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield PIECE
            raise RuntimeError("no more")

        return StreamedResponse(body=pieces())

    async with (
        relaying() as parties,
        RelayListener(endpoint_of(parties), on_stream=serve) as listener,
        RelaySender(endpoint_of(parties)) as sender,
    ):
        await listener.wait_online()
        with pytest.raises(ConnectionDropped):
            await sender.request("GET")
        async with await sender.stream("GET") as answer:
            with pytest.raises(ConnectionDropped):
                await answer.read()


@asynchronous
async def test_a_sender_whose_body_fails_has_its_own_error_and_the_service_no_whole_body(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[BaseException] = []

    async def serve(asked: StreamedRequest) -> RelayResponse:
        try:
            await asked.body.read()
        except ConnectionDropped as error:
            seen.append(error)
            raise
        return RelayResponse()

    async def pieces() -> AsyncIterator[bytes]:
        yield PIECE
        await asyncio.sleep(0.05)
        raise LookupError("of the program")

    async with (
        relaying() as parties,
        RelayListener(endpoint_of(parties), on_stream=serve) as listener,
        RelaySender(endpoint_of(parties)) as sender,
    ):
        await listener.wait_online()
        with pytest.raises(LookupError, match="of the program"):
            await sender.request("POST", body=pieces())
        await until(lambda: bool(seen))
    # That a sender leaves is nothing that the service did wrong.
    # Another test in this process may have asked for lines that only inform.
    wrong = [record for record in caplog.records if record.levelno > logging.INFO]
    assert [record for record in wrong if record.name == "duobus.relay"] == []


@asynchronous
async def test_a_body_that_is_larger_than_the_listener_allows_gets_413() -> None:
    async def serve(asked: RelayRequest) -> RelayResponse:
        return RelayResponse(body=str(len(asked.body)).encode())

    async with relaying() as parties, RelayListener(endpoint_of(parties), serve, body_max=100_000) as listener:
        await listener.wait_online()
        assert (await request(endpoint_of(parties), "POST", body=bytes(100_000))).text == "100000"
        answer = await request(endpoint_of(parties), "POST", body=bytes(100_001))
        assert (answer.status, answer.text) == (413, "the body has more than 100000 bytes")
        assert listener.is_online


@asynchronous
async def test_an_answer_to_head_has_no_body_and_its_pieces_are_let_go() -> None:
    ended: list[str] = []

    async def serve(asked: StreamedRequest) -> StreamedResponse:
        async def end() -> None:
            ended.append(asked.method)

        return StreamedResponse(200, {"X-One": "1"}, Counted(), on_close=end)

    async with relaying() as parties, RelayListener(endpoint_of(parties), on_stream=serve) as listener:
        await listener.wait_online()
        answer = await request(endpoint_of(parties), "HEAD")
        assert (answer.status, answer.header("x-one"), answer.body) == (200, "1", b"")
        await until(lambda: ended == ["HEAD"])


@asynchronous
async def test_several_cookies_arrive_as_several() -> None:
    dated = "a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            cookies = [(b"set-cookie", dated.encode()), (b"set-cookie", b"b=2; Path=/")]
            await send({"type": "http.response.start", "status": 200, "headers": cookies})
            await send({"type": "http.response.body", "body": b"x"})

    async with (
        relaying() as parties,
        AsgiService(app) as service,
        RelayListener(endpoint_of(parties), on_stream=service.on_stream) as listener,
        RelaySender(endpoint_of(parties)) as sender,
    ):
        await listener.wait_online()
        assert (await sender.request("GET")).values("Set-Cookie") == [dated, "b=2; Path=/"]
        token = await sender._tokens.headers()
        async with parties.session.get(parties.url("relay/one"), headers=token) as answer:
            assert answer.headers.getall("Set-Cookie") == [dated, "b=2; Path=/"]


def test_a_listener_has_one_function_for_requests() -> None:
    async def serve(asked: Any) -> RelayResponse:
        return RelayResponse()

    with pytest.raises(ValueError, match="one of them"):
        RelayListener("Endpoint=sb://h/;EntityPath=p", serve, on_stream=serve)


# -- ASGI and TCP ports -----------------------------------------------------------------------------------------------


@asynchronous
async def test_an_application_hears_and_says_one_piece_after_the_other() -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        more = True
        while more:
            message = await receive()
            more = message["more_body"]
            if message["body"]:
                heard.put_nowait(message["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(3):
            await send({"type": "http.response.body", "body": b"event %d" % number, "more_body": True})
            assert await heard.get() == b"go on"
        await send({"type": "http.response.body"})

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"piece %d" % number
            assert await heard.get() == b"piece %d" % number

    async with (
        relaying() as parties,
        AsgiService(app) as service,
        RelayListener(endpoint_of(parties), on_stream=service.on_stream) as listener,
        RelaySender(endpoint_of(parties)) as sender,
    ):
        await listener.wait_online()
        async with await sender.stream("POST", body=pieces()) as answer:
            found = []
            async for piece in answer.body:
                found.append(piece)
                heard.put_nowait(b"go on")
        assert found == [b"event 0", b"event 1", b"event 2"]


@asynchronous
async def test_an_application_is_told_that_its_sender_has_left_and_is_held_up_before() -> None:
    sent, told = 0, asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": PIECE, "more_body": True})
                sent += len(PIECE)
        except OSError:
            while (await receive())["type"] != "http.disconnect":
                pass
            told.set()

    async with (
        relaying() as parties,
        AsgiService(app) as service,
        RelayListener(endpoint_of(parties), on_stream=service.on_stream) as listener,
        RelaySender(endpoint_of(parties)) as sender,
    ):
        await listener.wait_online()
        async with await sender.stream("GET"):
            last = -1
            while sent != last:
                last = sent
                assert last < BETWEEN_BYTES
                await asyncio.sleep(0.3)
            assert sent
        await told.wait()


@pytest.mark.parametrize("moment", ["before", "within"])
@asynchronous
async def test_an_application_that_raises_is_a_500_or_breaks_its_answer_off(moment: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if moment == "within":
            await send({"type": "http.response.body", "body": PIECE * 2, "more_body": True})
        raise RuntimeError("no")

    async with (
        relaying() as parties,
        AsgiService(app) as service,
        RelayListener(endpoint_of(parties), on_stream=service.on_stream) as listener,
    ):
        await listener.wait_online()
        if moment == "before":
            assert (await request(endpoint_of(parties), "GET")).status == 500
        else:
            with pytest.raises(ConnectionDropped):
                await request(endpoint_of(parties), "GET")


@asynchronous
async def test_a_port_gets_a_large_body_in_chunks_and_a_small_one_with_its_length() -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        digest = hashlib.sha256()
        if b"chunked" in heads[-1]:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                digest.update(await reader.readexactly(size))
                await reader.readexactly(2)
        else:
            digest.update(await reader.readexactly(200_000))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + digest.hexdigest().encode() + PIECE * 40)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    local = LocalPort("127.0.0.1", server.sockets[0].getsockname()[1], lambda what, text: None)
    async with relaying() as parties, RelayListener(endpoint_of(parties), on_stream=local.on_stream) as listener:
        await listener.wait_online()
        for size in (200_000, 5_000_000):
            body = random.Random(size).randbytes(size)
            answer = await request(endpoint_of(parties), "POST", body=body)
            assert answer.body[:64].decode() == hashlib.sha256(body).hexdigest()
            assert answer.body[64:] == PIECE * 40
    assert [b"Content-Length: 200000" in head for head in heads] == [True, False]
    server.close()
    await local.close()


# -- pairs, and threads -----------------------------------------------------------------------------------------------


@asynchronous
async def test_a_pair_sends_a_body_anew_and_streams_the_answer_of_the_second_endpoint() -> None:
    async def serve(asked: StreamedRequest) -> StreamedResponse:
        return StreamedResponse(body=asked.body)

    def pieces() -> AsyncIterator[bytes]:
        async def made() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield PIECE

        return made()

    two_path = HybridConnectionDescription(name="second")
    async with relaying() as one, relaying(two_path) as two:
        endpoints = [endpoint_of(one), endpoint_of(two, "second")]
        async with (
            RelayListener(endpoints[1], on_stream=serve) as listener,
            RelayPair(endpoints, entropy=First()) as pair,
        ):
            await listener.wait_online()
            async with await pair.stream("POST", body=pieces) as answer:
                assert answer.endpoint == pair.active == endpoints[1].name
                assert await answer.read() == PIECE * 20
            with pytest.raises(TypeError, match="has to be bytes"):
                await pair.stream("PUT", body=pieces())  # type: ignore[arg-type]


@contextmanager
def server_in_a_thread() -> Iterator[RelayEndpoint]:
    started, ended = threading.Event(), threading.Event()
    endpoints: list[RelayEndpoint] = []

    async def serve() -> None:
        async with relaying() as parties:
            endpoints.append(endpoint_of(parties))
            started.set()
            while not ended.is_set():  # noqa: ASYNC110 - of a thread
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(20)
        yield endpoints[0]
    finally:
        ended.set()
        thread.join(20)


def test_threads_stream_bodies_as_tasks_do() -> None:
    made: list[int] = []

    def serve(asked: sync.StreamedRequest) -> Any:
        if asked.path == "/sum":
            return RelayResponse(body=hashlib.sha256(asked.body.read()).hexdigest().encode())
        return sync.StreamedResponse(body=asked.body)

    def pieces(thread: int) -> Iterator[bytes]:
        for number in range(100):
            # A cursor of a database would demand that too.
            assert threading.get_ident() == thread
            made.append(number)
            yield PIECE

    def failing() -> Iterator[bytes]:
        yield PIECE
        raise LookupError("of the program")

    content = hashlib.sha256(PIECE * 100).hexdigest()
    with server_in_a_thread() as endpoint, sync.RelayListener(endpoint, on_stream=serve) as listener:
        listener.wait_online(20)
        with sync.RelaySender(endpoint) as sender:
            answer = sender.request("POST", "sum", body=pieces(threading.get_ident()))
            assert (answer.text, made) == (content, list(range(100)))
            with sender.stream("POST", body=PIECE * 100) as streamed:
                digest = hashlib.sha256()
                for piece in streamed.body:
                    digest.update(piece)
                assert digest.hexdigest() == content
            with pytest.raises(LookupError, match="of the program"):
                sender.request("POST", "sum", body=failing())
            listener.close()
            with pytest.raises(RelayRefused, match="no listener"):
                sender.request("POST", "sum", body=pieces(threading.get_ident()))


def test_a_thread_that_sends_is_held_up_while_the_service_does_not_read() -> None:
    made: list[int] = []
    may_read = threading.Event()

    def serve(asked: sync.StreamedRequest) -> RelayResponse:
        assert may_read.wait(30)
        return RelayResponse(body=str(len(asked.body.read(1 << 30))).encode())

    def pieces() -> Iterator[bytes]:
        while not may_read.is_set():
            made.append(len(made))
            yield PIECE

    with server_in_a_thread() as endpoint, sync.RelayListener(endpoint, on_stream=serve) as listener:
        listener.wait_online(20)
        with sync.RelaySender(endpoint) as sender, ThreadPoolExecutor(1) as beside:
            asking = beside.submit(sender.request, "POST", body=pieces())
            last = -1
            while len(made) != last:
                last = len(made)
                assert last * len(PIECE) < BETWEEN_BYTES
                time.sleep(0.3)
            assert made
            may_read.set()
            assert asking.result().text == str(len(made) * len(PIECE))
