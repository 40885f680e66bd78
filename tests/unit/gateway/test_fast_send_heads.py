"""The heads of ordinary sends: what is read, what is left to the general server, and that both read the same."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from hypothesis import given
from hypothesis import strategies as st

from duobus.gateway.rest.runtime.send_head import BODY_BYTES_MAX, HEAD_BYTES_MAX, HEAD_LINES_MAX, read_head
from duobus.gateway.rest.server import HEADER_BYTES_MAX, HEADERS_MAX, LINE_BYTES_MAX

LINES: Final = ("Host: localhost:5300", "Authorization: SharedAccessSignature sr=x&sig=y", "Content-Length: 4")


def head(*lines: str, start: str = "POST /q/messages HTTP/1.1", instead: str = "") -> bytes:
    """An ordinary head with more lines; ``instead`` takes the place of the line of the same name."""
    own = [line for line in LINES if not instead or line.partition(":")[0] != instead.partition(":")[0]]
    return "\r\n".join((start, *own, *([instead] if instead else ()), *lines, "", "")).encode("latin-1")


def test_the_head_of_an_ordinary_send_is_read() -> None:
    found = read_head(
        head(
            "content-TYPE:\t text/plain; charset=utf-8 ",
            "BrokerProperties: {}",
            "User-Agent: me",
            "Accept: */*",
            "cuStom-Case: \t7 ",
            "Connection: Keep-Alive",
            start="POST /a/b%2Dc/messages?timeout=60&api-version=2013-10 HTTP/1.1",
        )
    )
    assert found is not None
    assert found.path == "/a/b%2Dc/messages"
    assert found.target.segments == ("a", "b-c", "messages")
    assert dict(found.target.query) == {"timeout": "60", "api-version": "2013-10"}
    assert found.address.path == "a/b-c"
    assert found.host == "localhost:5300"
    assert found.authorization == "SharedAccessSignature sr=x&sig=y"
    assert found.length == 4
    assert found.content_type == "text/plain; charset=utf-8"
    assert found.broker_properties == "{}"
    assert found.others == ((b"cuStom-Case", b"7"),)


@pytest.mark.parametrize(
    "data",
    [
        head(start="PUT /q/messages HTTP/1.1"),
        head(start="post /q/messages HTTP/1.1"),
        head(start="POST /q/messages/head HTTP/1.1"),
        head(start="POST /messages HTTP/1.1"),
        head(start="POST /q/Messages HTTP/1.1"),
        head(start="POST /q/messages/ HTTP/1.1"),
        head(start="POST /q/$deadletterqueue/messages HTTP/1.1"),
        head(start="POST http://localhost/q/messages HTTP/1.1"),
        head(start="POST /q/messages#x HTTP/1.1"),
        head(start="POST /q/../messages HTTP/1.1"),
        head(start="POST /q/%ff/messages HTTP/1.1"),
        head(start="POST /q%00/messages HTTP/1.1"),
        head(start="POST /q%0d%0a/messages HTTP/1.1"),
        head(start="POST //messages HTTP/1.1"),
        head(start="POST /t/subscriptions/messages HTTP/1.1"),
        head(start="POST /q/messages/7/messages HTTP/1.1"),
        head(instead="Host: a b"),
        head(instead="Host: a/b"),
        head(start="POST  /q/messages HTTP/1.1"),
        head(start="POST /q/messages HTTP/1.0"),
        head(start="POST /q/messages"),
        head(start="\r\nPOST /q/messages HTTP/1.1"),
        head(start=f"POST /{'q' * 1025}/messages HTTP/1.1"),
        head("Transfer-Encoding: chunked"),
        head("transfer-encoding:"),
        head("Expect: 100-continue"),
        head("Upgrade: websocket"),
        head("Trailer: X"),
        head("Connection: close"),
        head("Connection: keep-alive, upgrade"),
        head("Content-Length: 4"),
        head("Host: other"),
        head("authorization: other"),
        head("Content-Type: a", "Content-Type: b"),
        head("User-Agent: a", "user-agent: b"),
        head("Property: a", "property: b"),
        head(instead="Content-Length: 4, 4"),
        head(instead="Content-Length: +4"),
        head(instead="Content-Length: -1"),
        head(instead="Content-Length: 0x4"),
        head(instead="Content-Length: 4_0"),
        head(instead="Content-Length: 4 4"),
        head(instead="Content-Length:"),
        head(instead="Content-Length: \xb2"),
        head(instead="Content-Length: 999999999999999999999"),
        head(instead=f"Content-Length: {BODY_BYTES_MAX + 1}"),
        head(instead="Host:"),
        head(instead="Authorization:"),
        head("Name : value"),
        head(" folded"),
        head("Name: a\r\n folded"),
        head("Name: a\nOther: b"),
        head("Name: a\rOther: b"),
        head("Name: a\0b"),
        head("Name: \xe4"),
        head(": nameless"),
        head("no colon"),
        head(*[f"x{number}: 1" for number in range(HEAD_LINES_MAX - 2)]),
        head("Name: " + "x" * HEAD_BYTES_MAX),
        head().replace(b"\r\n", b"\n"),
        head()[:-2],
        head() + b"\r\n",
        b"\r\n\r\n",
        b"",
    ],
)
def test_everything_else_is_left_to_the_general_server(data: bytes) -> None:
    assert read_head(data) is None


@pytest.mark.parametrize("name", ["Host", "Authorization", "Content-Length"])
def test_nothing_may_be_missing(name: str) -> None:
    lines = [line for line in LINES if not line.startswith(name)]
    assert read_head("\r\n".join(("POST /q/messages HTTP/1.1", *lines, "", "")).encode()) is None


def generally(data: bytes) -> Any:
    """What the general server's parser makes of the same bytes."""

    async def parse() -> Any:
        loop = asyncio.get_running_loop()
        parser = HttpRequestParser(
            BaseProtocol(loop),
            loop,
            1 << 16,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            max_headers=HEADERS_MAX,
        )
        messages, upgraded, rest = parser.feed_data(data)
        assert (upgraded, rest) == (False, b"")
        return messages

    return asyncio.run(parse())


#: Pieces of lines, good ones and the kind that servers disagree about.
PIECES: Final = (
    *("Name", "Content-Length", "Transfer-Encoding", "Host", "Connection", "Expect", "X", "chunked", "identity"),
    *(":", ": ", ":\t", " ", "\t", "4", "44", "close", "keep-alive", ",", ";", "\r\n", "\n", "\r", "\0", "\x7f"),
    *("\xe9", "{", '"', "\\", "/messages", "?", "#", "%", "%00", "HTTP/1.1", "HTTP/1.0", "POST "),
)


def texts(size: int) -> st.SearchStrategy[str]:
    """Up to so many pieces in a row."""
    return st.lists(st.sampled_from(PIECES), max_size=size).map("".join)


@given(texts(8), texts(4))
def test_what_is_read_here_the_general_server_reads_alike(line: str, target: str) -> None:
    data = head(*([line] if line else ()), start=f"POST /q{target}/messages HTTP/1.1")
    found = read_head(data)
    if found is None:
        return
    try:
        messages = generally(data + b"x" * found.length)
    except HttpProcessingError as error:
        pytest.fail(f"the general server refuses {data!r}: {error}")
    # One message, of the same length: nobody can hide a second one in it.
    ((message, payload),) = messages
    assert payload.is_eof()
    assert payload.total_bytes == found.length
    assert (message.method, message.should_close, message.chunked) == ("POST", False, False)
    assert message.path.partition("?")[0] == found.path
    assert message.headers["Host"] == found.host
    assert message.headers["Authorization"] == found.authorization
    assert tuple(pair for pair in message.raw_headers if pair in found.others) == found.others
