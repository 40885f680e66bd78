"""Telling TLS, AMQP and HTTP apart: the rule itself, and every port of a whole server."""

from __future__ import annotations

import asyncio
import ssl
from itertools import product
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector

from duobus.amqp import ACCEPTED
from duobus.clock import Clock, Entropy
from duobus.gateway import protocol_switch as switch
from duobus.gateway.protocol_switch import AMQP, HEAD_BYTES_MAX, HTTP, IN_DOUBT, ProtocolSwitch, protocol_of
from duobus.gateway.tls import SelfSigned, TlsFiles
from kits.gateway import Client, TcpStream, WebSocketStream, closed_by_server, in_loop, serving, settled

PORTS = ("amqp", "tls", "http", "https")
GET_HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return SelfSigned(tmp_path_factory.mktemp("tls"), Clock(), Entropy()).ensure([])


@pytest.fixture
def options(files: TlsFiles) -> dict[str, Any]:
    return {"tls_cert": files.certificate, "tls_key": files.key, "https_port": 0}


def _trusting(files: TlsFiles) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(files.authority))


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("is_tls", [False, True])
@in_loop
async def test_every_port_serves_amqp_http_and_websocket(
    port: str, is_tls: bool, files: TlsFiles, options: dict[str, Any]
) -> None:
    context = _trusting(files) if is_tls else None
    how = {"ssl": context, "server_hostname": "localhost"} if is_tls else {}
    async with serving(**options) as server:
        number = server.port(port)
        assert number is not None
        client = Client(await TcpStream.connect(number, **how))
        assert await client.send(await client.sender(), b"body") is ACCEPTED

        stream = await TcpStream.connect(number, **how)
        await stream.write(GET_HEALTH)
        assert (await closed_by_server(stream.read)).startswith(b"HTTP/1.1 200 OK")

        scheme = "wss" if is_tls else "ws"
        url = f"{scheme}://localhost:{number}/$servicebus/websocket"
        connector = TCPConnector(ssl=context or True)
        async with (
            ClientSession(connector=connector) as session,
            session.ws_connect(url, protocols=["AMQPWSB10"]) as socket,
        ):
            over_websocket = Client(WebSocketStream(socket))
            assert await over_websocket.send(await over_websocket.sender(), b"body") is ACCEPTED


_UNKNOWN = [b"SSH-2.0-x\r\n", b"\x00", b"AMQX", b"get / HTTP/1.1\r\n\r\n"]


# What starts a TLS handshake is unknown only where one has been made already.
@pytest.mark.parametrize(("unknown", "is_tls"), [*product(_UNKNOWN, (False, True)), (b"\x16\x03\x01", True)])
@in_loop
async def test_what_nobody_knows_gets_the_amqp_header_and_a_close(
    unknown: bytes, is_tls: bool, files: TlsFiles, options: dict[str, Any]
) -> None:
    how = {"ssl": _trusting(files), "server_hostname": "localhost"} if is_tls else {}
    async with serving(**options) as server:
        number = server.port("http")
        assert number is not None
        stream = await TcpStream.connect(number, **how)
        await stream.write(unknown.ljust(8, b"\0"))
        assert await closed_by_server(stream.read) == SASL_HEADER


@pytest.mark.parametrize("is_tls", [False, True])
@in_loop
async def test_first_bytes_that_come_one_at_a_time_are_put_together(
    is_tls: bool, files: TlsFiles, options: dict[str, Any]
) -> None:
    how = {"ssl": _trusting(files), "server_hostname": "localhost"} if is_tls else {}
    async with serving(**options) as server:
        number = server.port("amqp")
        assert number is not None
        for data in (SASL_HEADER, GET_HEALTH):
            stream = await TcpStream.connect(number, **how)
            for index in range(len(data)):
                await stream.write(data[index : index + 1])
                await asyncio.sleep(0)
            answer = await stream.read()
            assert answer[:4] == (b"HTTP" if data is GET_HEALTH else b"AMQP")
            stream.drop()


@pytest.mark.parametrize("said", [b"", b"A", b"GET /health HTTP/1.1\r\nX-Slow: "])
@in_loop
async def test_a_connection_that_never_says_what_it_wants_is_dropped(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switch, "FIRST_BYTES_S", 0.05)
    monkeypatch.setattr("duobus.gateway.listener.FIRST_BYTE_TIMEOUT_S", 0.05)
    async with serving() as server:
        number = server.port("amqp")
        assert number is not None
        stream = await TcpStream.connect(number)
        if said:
            await stream.write(said)
        assert await closed_by_server(stream.read) == b""


@in_loop
async def test_closing_a_listener_drops_connections_that_are_undecided() -> None:
    async with serving() as server:
        number = server.port("amqp")
        assert number is not None
        listener = server.listeners["amqp"]
        stream = await TcpStream.connect(number)
        await stream.write(b"AM")
        await settled(lambda: len(listener._undetermined) == 1)
        await listener.close()
        assert await closed_by_server(stream.read) == b""
        await settled(lambda: not listener._undetermined)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", IN_DOUBT),
        (b"A", IN_DOUBT),
        (b"AMQ", IN_DOUBT),
        (b"AMQP", AMQP),
        (b"AMQX", AMQP),
        (b"G", IN_DOUBT),
        (b"GET / HTTP/1.1\r\n", IN_DOUBT),
        (b"GET / HTTP/1.1\r\n\r\n", HTTP),
        (b"DELETE /q HTTP/1.1\r\n\r\n", HTTP),
        (b"POST" + bytes(HEAD_BYTES_MAX), HTTP),
        (b"GETX", AMQP),
        (b"X", AMQP),
        (b"\x16\x03\x01", AMQP),
    ],
)
def test_the_first_bytes_decide_as_early_as_they_can(data: bytes, expected: int) -> None:
    assert protocol_of(data) == expected


def test_no_method_of_http_can_be_mistaken_for_amqp() -> None:
    for method in ("GET", "PUT", "POST", "HEAD", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"):
        request = f"{method} / HTTP/1.1\r\n\r\n".encode()
        kinds = [protocol_of(request[:size]) for size in range(len(request) + 1)]
        assert kinds == [IN_DOUBT] * len(request) + [HTTP]


@in_loop
async def test_what_was_read_is_handed_over_whole_and_once() -> None:
    received: list[bytes] = []

    class Recorder(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            received.append(data)

    def wrong() -> asyncio.Protocol:
        raise AssertionError("this is no HTTP")

    undetermined: dict[ProtocolSwitch, None] = {}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ProtocolSwitch(Recorder, wrong, undetermined), "127.0.0.1", 0)
    async with server:
        stream = await TcpStream.connect(server.sockets[0].getsockname()[1])
        await stream.write(b"AM")
        await settled(lambda: len(undetermined) == 1)
        await stream.write(b"QP rest")
        await settled(lambda: bool(received))
        await stream.write(b" and more")
        await settled(lambda: len(received) == 2)
        assert received == [b"AMQP rest", b" and more"]
        assert not undetermined
        stream.drop()
