"""The selector of a server's event loop: how often the system is asked, and that nobody waits longer for it."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Iterator

import pytest

from duobus.server.turn_selector import TurnSelector, new_event_loop


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The questions that reach the system, each with the time that it may take."""
    asked: list[float | None] = []
    select = selectors.DefaultSelector.select

    def asking(selector: selectors.DefaultSelector, timeout: float | None = None) -> object:
        asked.append(timeout)
        return select(selector, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", asking)
    return asked


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = new_event_loop()
    yield made
    made.close()


def test_a_look_without_waiting_is_left_out_once_after_each_that_reached_the_system(looks: list[float | None]) -> None:
    selector = TurnSelector()
    try:
        for _ in range(6):
            assert selector.select(0) == []
        assert looks == [0, 0, 0]
    finally:
        selector.close()


def test_a_look_that_may_wait_is_never_left_out(looks: list[float | None]) -> None:
    selector = TurnSelector()
    try:
        for timeout in (0, 0.001, 0.001, 0, 0.001):
            selector.select(timeout)
        assert looks == [0, 0.001, 0.001, 0.001]
    finally:
        selector.close()


def test_what_is_left_out_is_not_lost(looks: list[float | None]) -> None:
    here, there = socket.socketpair()
    selector = TurnSelector()
    try:
        selector.register(here, selectors.EVENT_READ)
        selector.select(0)
        there.send(b"x")
        assert selector.select(0) == []
        assert [key.fileobj for key, _ in selector.select(0)] == [here]
    finally:
        selector.close()
        here.close()
        there.close()


def test_a_loop_that_is_never_idle_still_reads_its_sockets(loop: asyncio.AbstractEventLoop) -> None:
    here, there = socket.socketpair()
    here.setblocking(False)
    turns = 0
    read_in: list[int] = []

    def go_on() -> None:
        nonlocal turns
        turns += 1
        if turns == 3:
            there.send(b"x")
        if turns > 10:
            loop.stop()
        loop.call_soon(go_on)

    def read() -> None:
        here.recv(1)
        read_in.append(turns)

    with here, there:
        loop.add_reader(here, read)
        loop.call_soon(go_on)
        loop.run_forever()
        loop.remove_reader(here)

    assert read_in
    assert read_in[0] <= 5


def test_the_end_of_a_turn_costs_no_look_at_the_sockets(
    loop: asyncio.AbstractEventLoop, looks: list[float | None]
) -> None:
    here, there = socket.socketpair()

    def read() -> None:
        here.recv(1)
        loop.call_soon(loop.stop)

    with here, there:
        loop.add_reader(here, read)
        there.send(b"x")
        looks.clear()
        loop.run_forever()
        loop.remove_reader(here)

    assert len(looks) == 1
