"""The fuzz target of relays: frames of WebSockets, the messages in them, and addresses."""

from __future__ import annotations

from duobus.model.relay.addresses import parse_handshake, parse_request
from duobus.model.relay.frames import (
    BINARY,
    CLOSE,
    PING,
    TEXT,
    Control,
    FrameDecoder,
    FrameError,
    Piece,
    close_payload,
    head,
    read_close,
)
from duobus.model.relay.headers import is_name, is_value
from duobus.model.relay.messages import Accept, MalformedMessage, Response, to_listener, to_relay


def relay(data: bytes) -> None:
    """Read bytes as frames, whole and in parts; what they mean is the same, and its parts hold no more."""
    # A relay reads the frames of clients, and a listener those of its relay.
    for is_of_client in (True, False):
        whole = _messages(_read(data, len(data) or 1, is_of_client))
        if _messages(_read(data, 7, is_of_client)) != whole:
            raise AssertionError("the parts in which bytes come have changed their meaning")
        for opcode, message in whole:
            if opcode == TEXT:
                _message(message)
    _message(data)
    target = data[:4096].decode("latin-1")
    parse_request(target)
    handshake = parse_handshake(target)
    if handshake is not None and any(part.lower().startswith("sb-hc-") for part in handshake.query.split("&")):
        raise AssertionError("a parameter of the relay would reach the listener")


def _read(data: bytes, size: int, is_of_client: bool) -> list[Piece | Control]:
    decoder = FrameDecoder(is_of_client=is_of_client)
    found: list[Piece | Control] = []
    try:
        for pos in range(0, len(data), size):
            for event in decoder.feed(data[pos : pos + size]):
                found.append(event)
                if isinstance(event, Control) and event.opcode == CLOSE:
                    read_close(event.data)
                    return found
    except FrameError:
        pass
    return found


def _messages(events: list[Piece | Control]) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    message = bytearray()
    for event in events:
        if isinstance(event, Control):
            found.append((event.opcode, event.data))
            continue
        if event.is_first:
            message.clear()
        message += event.data
        if event.is_last:
            found.append((event.opcode, bytes(message)))
    return found


def _message(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for read in (to_relay, to_listener):
        try:
            found = read(text)
        except MalformedMessage:
            continue
        if isinstance(found, Response):
            for name, value in found.headers.items():
                if not is_name(name) or not is_value(value):
                    raise AssertionError("a header that HTTP does not allow would reach the sender")


def seeds() -> list[bytes]:
    """Frames of a listener, messages and addresses."""
    response = Response("42", 200, "OK", {"content-type": "text/plain", "x": "y"}, has_body=True).to_json()
    accept = Accept("wss://host/$hc/a?sb-hc-action=accept&sb-hc-id=1", "1", {"Sec-WebSocket-Key": "k"}).to_json()
    close = close_payload(1000, "over")
    return [
        _masked(TEXT, response.encode()) + _masked(BINARY, b"body") + _masked(PING, b"p") + _masked(CLOSE, close),
        _masked(TEXT, b'{"renewToken":', is_last=False) + _masked(0, b'{"token":"t"}}'),
        _masked(BINARY, bytes(300)),
        response.encode(),
        accept.encode(),
        b"/$hc/a/b?sb-hc-action=accept&sb-hc-id=1&sb-hc-statusCode=403&sb-hc-statusDescription=no&x=%2f1",
        b"/%24hc/a?x=1&sbc-hc-token=SharedAccessSignature%20sr%3Da&y",
    ]


def _masked(opcode: int, data: bytes, *, is_last: bool = True) -> bytes:
    start = bytearray(head(opcode, len(data), is_last=is_last))
    start[1] |= 0x80
    return bytes(start) + bytes(4) + data
