"""Nothing that a bad request holds comes out in a log, whoever writes it and at whatever level (I66)."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Iterator

import pytest

from duobus.amqp.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame
from duobus.amqp.performatives import Begin, Open, SaslInit
from duobus.clock import Clock
from duobus.gateway.rest.atom.management import Management
from duobus.gateway.rest.health import Health
from duobus.telemetry.bounded_log import BURST_MAX, LINES_S, BoundedLog, tell_faults
from duobus.telemetry.logs import Log, TextFormatter
from kits.gateway import TcpStream, closed_by_server, in_loop, serving
from kits.http_client import token

CANARY = "cAnArY7391"
MARK = CANARY.encode()
GOOD = b"Host: localhost\r\nAuthorization: " + token().encode() + b"\r\n"


class Everything(logging.Handler):
    """Keeps what all loggers say, in our form and in the standard library's."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.stream = io.StringIO()
        self._forms = (TextFormatter(Clock()), logging.Formatter("%(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        for form in self._forms:
            self.stream.write(form.format(record) + "\n")


@pytest.fixture
def heard() -> Iterator[Everything]:
    """Every logger at the level of developers, those of asyncio and aiohttp too."""
    handler = Everything()
    loggers = [logging.getLogger(name) for name in (None, "duobus", "asyncio", "aiohttp", "aiohttp.server")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    logging.getLogger().addHandler(handler)
    try:
        yield handler
    finally:
        logging.getLogger().removeHandler(handler)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _request(line: bytes, *lines: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((line, *lines)) + b"\r\n\r\n" + body


def _sized(line: bytes, body: bytes, *lines: bytes) -> bytes:
    return _request(line, GOOD[:-2], b"Content-Length: %d" % len(body), *lines, body=body)


HEADS = {
    "version": _request(b"GET /" + MARK + b" HTTP/9.9", b"Host: localhost"),
    "no-host": _request(b"GET / HTTP/1.1", b"Authorization: Basic " + MARK),
    "field-name": _request(b"GET / HTTP/1.1", b"Host: localhost", b"Bad Name " + MARK + b": x"),
    "no-colon": _request(b"GET / HTTP/1.1", b"Host: localhost", b"Authorization Bearer " + MARK),
    "null": _request(b"GET / HTTP/1.1", b"Host: localhost", b"Authorization: Bearer " + MARK + b"\0"),
    "host-twice": _request(b"GET / HTTP/1.1", b"Host: localhost", b"Host: " + MARK),
    "host": _request(b"GET / HTTP/1.1", b"Host: " + MARK + b" x/y", b"Authorization: Basic " + MARK),
    "line": _request(b"GET /" + MARK * 3000 + b" HTTP/1.1", b"Host: localhost"),
    "field": _request(b"GET / HTTP/1.1", b"Host: localhost", b"Authorization: Bearer " + MARK * 4000),
    "length": _request(b"POST / HTTP/1.1", b"Host: localhost", b"Content-Length: " + MARK),
    "coding": _request(b"POST / HTTP/1.1", b"Host: localhost", b"Transfer-Encoding: " + MARK),
    "address": _request(b"GET http://[" + MARK + b"/ HTTP/1.1", b"Host: localhost"),
    "origin": _request(
        b"GET /$servicebus/websocket HTTP/1.1",
        b"Host: localhost",
        b"Origin: http://u:" + MARK + b"@x",
        b"Upgrade: websocket",
    ),
    "connect": _request(b"CONNECT " + MARK + b":x HTTP/1.1", b"Host: localhost"),
    "second": _request(b"GET /health HTTP/1.1", b"Host: localhost") + b"GET / HTTP/1.1\r\n\0" + MARK + b"\r\n\r\n",
}
TOKENS = {
    "basic": b"Basic " + MARK,
    "bearer": b"Bearer " + MARK,
    "jwt": b"Bearer eyJhbGciOiJub25lIn0." + MARK + b"." + MARK,
    "unknown": b"Negotiate " + MARK,
    "bare": MARK,
    "signature": b"SharedAccessSignature sr=x&sig=" + MARK + b"&se=99999999999&skn=" + MARK,
    "cut": b"SharedAccessSignature sr=" + MARK,
}
BODIES = {
    "xml": _sized(b"PUT /new HTTP/1.1", b"<entry><" + MARK),
    "element": _sized(b"PUT /new HTTP/1.1", b"<entry>" + MARK + b"</entry>"),
    "entity": _sized(b"PUT /new HTTP/1.1", b"<!DOCTYPE x [<!ENTITY a '" + MARK + b"'>]><x>&a;</x>"),
    "broker-properties": _sized(b"POST /q/messages HTTP/1.1", b"x", b'BrokerProperties: {"MessageId": ' + MARK + b"}"),
    "wrong-property": _sized(b"POST /q/messages HTTP/1.1", b"x", b'BrokerProperties: {"TimeToLive": "' + MARK + b'"}'),
    "custom-property": _sized(b"POST /q/messages HTTP/1.1", b"x", b"X-Custom: " + MARK),
    "batch": _sized(
        b"POST /q/messages HTTP/1.1", b'[{"Body": ' + MARK, b"Content-Type: application/vnd.microsoft.servicebus.json"
    ),
    "desk": _sized(b"POST /q/$desk HTTP/1.1", b'{"action": "' + MARK + b'"}'),
    "desk-broken": _sized(b"POST /q/$desk HTTP/1.1", b'{"action": ' + MARK),
    "chunk": _request(b"POST /q/messages HTTP/1.1", GOOD[:-2], b"Transfer-Encoding: chunked", body=MARK + b"\r\nx"),
    "chunk-end": _request(
        b"POST /q/messages HTTP/1.1", GOOD[:-2], b"Transfer-Encoding: chunked", body=b"1\r\nx" + MARK + b"\r\n"
    ),
    "late-chunk": _request(
        b"PUT /new HTTP/1.1", GOOD[:-2], b"Transfer-Encoding: chunked", body=b"1\r\nx\r\nZ" + MARK + b"\r\n"
    ),
}
REQUESTS = (
    {f"head-{name}": data for name, data in HEADS.items()}
    | {
        f"token-{name}": _request(b"GET /q HTTP/1.1", b"Host: localhost", b"Authorization: " + text)
        for name, text in TOKENS.items()
    }
    | {f"body-{name}": data for name, data in BODIES.items()}
)


def _sasl(mechanism: str, response: bytes) -> bytes:
    init = SaslInit(mechanism=mechanism, initial_response=response, hostname="localhost")
    return SASL_HEADER + frame(0, init.to_bytes(), TYPE_SASL)


_ANONYMOUS = _sasl("ANONYMOUS", b"") + AMQP_HEADER
_OPENED = _ANONYMOUS + frame(0, Open(container_id="c", hostname="localhost").to_bytes())
_BEGUN = _OPENED + frame(0, Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10).to_bytes())
FRAMES = {
    "header": b"XYZ" + MARK,
    "key": _sasl("PLAIN", b"\0RootManageSharedAccessKey\0" + MARK),
    "name": _sasl("PLAIN", b"\0" + MARK + b"\0" + MARK),
    "response": _sasl("PLAIN", MARK),
    "mechanism": _sasl(CANARY, MARK),
    "sasl": SASL_HEADER + frame(0, b"\x00\x53\x41" + MARK, TYPE_SASL),
    "performative": _OPENED + frame(0, b"\x00\x53\x12" + MARK),
    "described": _OPENED + frame(0, b"\x00\xa1\x0a" + MARK + b"\x45"),
    "size": _OPENED + b"\x00\x00\x00\x04" + MARK,
    "type": _OPENED + frame(0, MARK, 7),
    "open": _ANONYMOUS + frame(0, b"\x00\x53\x10\xc0\x0d\x01\xa1\x0a" + MARK) + MARK,
    "handle": _BEGUN + frame(0, b"\x00\x53\x14\xc0\x0e\x02\x43\x43" + MARK),
    "tls": b"\x16\x03\x01" + MARK,
}


@in_loop
async def test_bad_requests_over_http_leave_nothing_of_themselves_in_the_logs(heard: Everything) -> None:
    async with serving() as server:
        await asyncio.gather(*(_ask(server.port("http") or 0, data) for data in REQUESTS.values()))
    text = _assert_clean(heard)
    assert "bad request kind=" in text
    assert "refused tracking_id=" in text


@in_loop
async def test_bad_frames_and_logins_over_amqp_leave_nothing_of_themselves_in_the_logs(heard: Everything) -> None:
    async with serving() as server:
        await asyncio.gather(*(_ask(server.port("amqp") or 0, data) for data in FRAMES.values()))
    assert "login refused mechanism=PLAIN" in _assert_clean(heard)


@in_loop
async def test_a_handler_that_fails_over_a_request_tells_where_and_not_what(
    heard: Everything, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: object) -> None:
        raise RuntimeError(CANARY)

    monkeypatch.setattr(Management, "answer", fail)
    monkeypatch.setattr(Health, "_whole", fail)
    async with serving() as server:
        for path in (b"/q", b"/health"):
            await _ask(server.port("http") or 0, _request(b"GET " + path + b" HTTP/1.1", GOOD[:-2]))
    text = _assert_clean(heard)
    assert "fault kind=RuntimeError places=test_log_canaries.py:" in text
    assert "http server failed kind=RuntimeError places=" in text


def test_a_fault_that_nobody_catches_is_told_by_kind_and_place(heard: Everything) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        tell_faults(loop, BoundedLog(Log("server"), Clock().monotonic_ms))

        def fail() -> None:
            raise RuntimeError(CANARY)

        loop.call_soon(fail)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert "fault in the loop reason=Exception in callback" in _assert_clean(heard)


def test_lines_about_refusals_are_bounded_and_those_left_out_are_counted(heard: Everything) -> None:
    now_ms = 0
    log = BoundedLog(Log("bounded"), lambda: now_ms)
    for number in range(5 * BURST_MAX):
        log.info("refused", number=number)
    now_ms = 1000
    for number in range(5 * BURST_MAX):
        log.info("refused", number=number)
    lines = [line for line in heard.stream.getvalue().splitlines() if "duobus.bounded: " in line]
    assert len(lines) == BURST_MAX + LINES_S + 1
    assert sum(f"lines left out number={4 * BURST_MAX}" in line for line in lines) == 1


async def _ask(port: int, data: bytes) -> None:
    stream = await TcpStream.connect(port)
    await stream.write(data)
    try:
        async with asyncio.timeout(0.3):
            await closed_by_server(stream.read)
    except TimeoutError:
        # It waits for more; it is cut off in the middle then.
        pass
    stream.drop()
    await asyncio.sleep(0.01)


def _assert_clean(heard: Everything) -> str:
    text = heard.stream.getvalue()
    assert CANARY not in text, text
    assert "Traceback" not in text, text
    return text
