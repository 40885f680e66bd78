"""Answers whose bodies go piece by piece: closed once, with their pieces; and headers that come several times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from duobus.relay import RelayResponse, sync
from duobus.relay.aio import StreamedBody, StreamedResponse
from duobus.relay.errors import AnswerTooLarge, BodyTooLarge


def test_an_answer_that_is_closed_ends_its_pieces_and_says_so_once() -> None:
    told: list[str] = []

    async def pieces() -> AsyncIterator[bytes]:
        try:
            yield b"1"
            yield b"2"
        finally:
            told.append("ended")

    async def on_close() -> None:
        told.append("closed")

    async def run() -> None:
        made = pieces()
        async with StreamedResponse(body=made, on_close=on_close) as answer:
            assert await made.__anext__() == b"1"
        await answer.close()
        assert told == ["ended", "closed"]

    asyncio.run(run())


def test_an_answer_with_threads_ends_its_pieces_too() -> None:
    told: list[str] = []

    def pieces() -> Iterator[bytes]:
        try:
            yield b"1"
            yield b"2"
        finally:
            told.append("ended")

    made = pieces()
    with sync.StreamedResponse(body=made, on_close=lambda: told.append("closed")):
        assert next(made) == b"1"
    assert told == ["ended", "closed"]


def test_a_body_is_read_as_a_whole_up_to_what_the_reader_takes() -> None:
    assert sync.StreamedBody(b"four").read(4) == b"four"
    assert sync.StreamedResponse(body=iter([b"a", b"b"])).read(2) == b"ab"
    with pytest.raises(BodyTooLarge, match="more than 3 bytes"):
        sync.StreamedBody(b"four").read(3)
    with pytest.raises(AnswerTooLarge, match="more than 1 bytes"):
        sync.StreamedResponse(body=iter([b"a", b"b"])).read(1)
    assert asyncio.run(StreamedBody(b"").read()) == b""


def test_values_of_a_header_are_taken_apart_and_cookies_not_within_their_dates() -> None:
    answer = RelayResponse(
        headers={"set-cookie": "a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT, b=2;Path=/", "Vary": "a, b"}
    )
    assert answer.values("Set-Cookie") == ["a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT", "b=2;Path=/"]
    assert answer.values("vary") == ["a", "b"]
    assert answer.values("date") == []
