"""Fuzz target of the heads of sends over HTTP: what the express lane reads, the general server reads alike."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser

from duobus.gateway.rest.runtime.send_head import Head, read_head
from duobus.gateway.rest.server import HEADER_BYTES_MAX, HEADERS_MAX, LINE_BYTES_MAX

_BODY = b"x"


def heads(data: bytes) -> None:
    """A head; one that is read is given to the general server's parser with a body as long as it says."""
    found = read_head(data)
    if found is not None:
        asyncio.run(_compare(data, found))


async def _compare(data: bytes, found: Head) -> None:
    loop = asyncio.get_running_loop()
    parser = HttpRequestParser(
        BaseProtocol(loop),
        loop,
        1 << 16,
        max_line_size=LINE_BYTES_MAX,
        max_field_size=HEADER_BYTES_MAX,
        max_headers=HEADERS_MAX,
    )
    try:
        messages, is_upgraded, rest = parser.feed_data(data + _BODY * found.length)
    except HttpProcessingError as error:
        raise AssertionError(f"the general server refuses what the lane takes: {error}") from error
    if is_upgraded or rest or len(messages) != 1:
        raise AssertionError("the general server sees another number of requests")
    message, payload = messages[0]
    if not payload.is_eof() or payload.total_bytes != found.length:
        raise AssertionError("the general server sees a body of another length")
    if _seen(message) != (found.path, found.host, found.authorization, found.content_type, False):
        raise AssertionError("the general server reads another request")


def _seen(message: Any) -> tuple[Any, ...]:
    fields = message.headers
    path = message.path.partition("?")[0]
    return path, fields.get("Host"), fields.get("Authorization"), fields.get("Content-Type"), message.should_close


def seeds() -> list[bytes]:
    """Heads as clients send them."""
    own = (
        b"Host: ns.example:5300\r\nAuthorization: SharedAccessSignature sr=x&sig=y&se=1&skn=z\r\nContent-Length: 4\r\n"
    )
    return [
        b"POST /q/messages HTTP/1.1\r\n" + own + b"\r\n",
        b"POST /a/b%2Dc/messages?timeout=60&api-version=2013-10 HTTP/1.1\r\nUser-Agent: me\r\nAccept: */*\r\n"
        b"Connection: keep-alive\r\nContent-Type: text/plain; charset=utf-8\r\n" + own + b"\r\n",
        b"POST /q/messages HTTP/1.1\r\n" + own + b'BrokerProperties: {"Label":"M1"}\r\nPriority: "High"\r\n\r\n',
        b"POST /q/messages HTTP/1.1\r\n" + own + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
    ]
