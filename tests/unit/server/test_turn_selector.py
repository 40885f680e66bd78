"""The selector of a server's event loop: how often the system is asked, and that nobody waits longer for it."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from duobus.concurrency.turn_end import turn_end
from duobus.server.turn_selector import TurnLoop, TurnSelector, new_event_loop


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The questions of this thread that reach the system, each with the time that it may take.

    What other tests share, as a broker in a thread, may have a loop in this process, too.
    """
    asked: list[float | None] = []
    select = selectors.DefaultSelector.select
    mine = threading.get_ident()

    def asking(selector: selectors.DefaultSelector, timeout: float | None = None) -> object:
        if threading.get_ident() == mine:
            asked.append(timeout)
        return select(selector, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", asking)
    return asked


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = new_event_loop()
    yield made
    made.close()


@pytest.fixture
def turns() -> Iterator[TurnLoop]:
    """A server's loop, which a timer stops where it sleeps over what it is asked for."""
    made = TurnLoop()
    rescue = made.call_later(0.5, made.stop)
    yield made
    rescue.cancel()
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


def test_what_is_in_line_is_called_in_order_when_all_that_the_turn_brought_is_done(turns: TurnLoop) -> None:
    order: list[str] = []

    def read(name: str) -> None:
        order.append(f"read {name}")
        turns.call_at_turn_end(lambda: order.append(f"end {name}"))

    turns.call_soon(read, "a")
    turns.call_soon(read, "b")
    turns.call_soon(turns.call_at_turn_end, turns.stop)
    turns.run_forever()

    assert order == ["read a", "read b", "end a", "end b"]


def test_what_the_line_does_costs_no_round_of_its_own(turns: TurnLoop, looks: list[float | None]) -> None:
    rounds = 0

    def begin() -> None:
        nonlocal rounds
        rounds = len(looks)
        turns.call_at_turn_end(lambda: None)

    turns.call_soon(begin)
    turns.run_forever()

    # The first look after it waits for the timer.
    waited = looks[rounds]
    assert waited is not None
    assert waited > 0


@pytest.mark.parametrize("way", ["soon", "later", "line", "stop"])
def test_the_loop_does_not_sleep_over_what_the_line_asks_for(
    turns: TurnLoop, looks: list[float | None], way: str
) -> None:
    def ask() -> None:
        if way == "soon":
            turns.call_soon(turns.stop)
        elif way == "later":
            turns.call_later(0, turns.stop)
        elif way == "line":
            turns.call_at_turn_end(turns.stop)
        else:
            turns.stop()

    turns.call_soon(turns.call_at_turn_end, ask)
    looks.clear()
    turns.run_forever()

    assert all(timeout is not None and timeout <= 0 for timeout in looks)


@pytest.mark.parametrize(("timeout", "left"), [(1.0, 0.75), (0.1, 0), (None, None)])
def test_the_time_that_the_line_took_is_not_waited_for_again(
    looks: list[float | None], timeout: float | None, left: float | None
) -> None:
    now_s = 100.0

    def take_long() -> None:
        nonlocal now_s
        now_s += 0.25

    here, there = socket.socketpair()
    with here, there, closing(TurnSelector()) as selector:
        selector.register(here, selectors.EVENT_WRITE)
        selector.now_s = lambda: now_s
        selector.line.append(take_long)
        selector.select(timeout)

    assert looks == [left]


def test_a_fault_of_one_in_line_is_told_and_keeps_no_other_back(turns: TurnLoop) -> None:
    told: list[object] = []
    turns.set_exception_handler(lambda _, context: told.append(context["exception"]))
    fault = ValueError("a fault")

    def fail() -> None:
        raise fault

    turns.call_soon(turns.call_at_turn_end, fail)
    turns.call_soon(turns.call_at_turn_end, turns.stop)
    turns.run_forever()

    assert told == [fault]


def test_a_line_that_never_ends_still_lets_sockets_be_read(turns: TurnLoop) -> None:
    here, there = socket.socketpair()
    rounds = 0
    read_in: list[int] = []

    def go_on() -> None:
        nonlocal rounds
        rounds += 1
        if rounds > 10:
            turns.stop()
        turns.call_at_turn_end(go_on)

    def read() -> None:
        here.recv(1)
        read_in.append(rounds)

    with here, there:
        turns.add_reader(here, read)
        there.send(b"x")
        turns.call_soon(go_on)
        turns.run_forever()
        turns.remove_reader(here)

    assert read_in
    assert read_in[0] <= 3


def test_on_any_other_loop_the_end_of_a_turn_is_the_next_round() -> None:
    order: list[str] = []

    async def run() -> None:
        at_turn_end = turn_end(asyncio.get_running_loop())
        at_turn_end(lambda: order.append("end"))
        order.append("now")
        await asyncio.sleep(0)

    asyncio.run(run())

    assert order == ["now", "end"]


@pytest.mark.parametrize("way", ["soon", "timer", "line", "stop", "other socket"])
def test_what_a_watching_callback_asks_for_is_not_slept_over(turns: TurnLoop, way: str) -> None:
    here, there = socket.socketpair()
    other, far = socket.socketpair()
    is_rescued = False

    def rescue() -> None:
        nonlocal is_rescued
        is_rescued = True
        turns.stop()

    def ask(events: int) -> None:
        assert events == selectors.EVENT_READ
        here.recv(1)
        if way == "soon":
            turns.call_soon(turns.stop)
        elif way == "timer":
            turns.call_later(0, turns.stop)
        elif way == "line":
            turns.call_at_turn_end(turns.stop)
        elif way == "other socket":
            turns.add_reader(other, turns.stop)
            far.send(b"x")
        else:
            turns.stop()

    with here, there, other, far:
        turns.watch(here.fileno(), selectors.EVENT_READ, ask)
        turns.call_later(0.4, rescue)
        there.send(b"x")
        turns.run_forever()
        turns.unwatch(here.fileno())
        turns.remove_reader(other)

    assert not is_rescued


def test_a_timer_rings_though_a_watched_file_is_always_ready(turns: TurnLoop) -> None:
    here, there = socket.socketpair()
    calls = 0

    def count(_: int) -> None:
        nonlocal calls
        calls += 1

    with here, there:
        turns.watch(here.fileno(), selectors.EVENT_WRITE, count)
        turns.call_later(0.02, turns.stop)
        turns.run_forever()
        turns.unwatch(here.fileno())

    assert calls > 1


def test_what_watched_files_bring_in_one_turn_is_worked_off_together_at_its_end(turns: TurnLoop) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    done: list[str] = []

    def take(sock: socket.socket) -> None:
        sock.recv(1)
        done.append("read")
        if len(done) == 1:
            turns.call_at_turn_end(lambda: done.append("end of turn"))
        if len(done) >= len(pairs):
            turns.call_at_turn_end(turns.stop)

    for here, there in pairs:
        turns.watch(here.fileno(), selectors.EVENT_READ, lambda _, sock=here: take(sock))  # type: ignore[misc]
        there.send(b"x")
    turns.run_forever()
    for here, there in pairs:
        turns.unwatch(here.fileno())
        here.close()
        there.close()

    assert done == ["read", "read", "read", "end of turn"]


def test_a_fault_of_a_watching_callback_is_told_and_keeps_no_other_back(turns: TurnLoop) -> None:
    told: list[object] = []
    turns.set_exception_handler(lambda _, context: told.append(context["exception"]))
    fault = ValueError("a fault")
    here, there = socket.socketpair()

    def fail(_: int) -> None:
        here.recv(1)
        turns.call_at_turn_end(turns.stop)
        raise fault

    with here, there:
        turns.watch(here.fileno(), selectors.EVENT_READ, fail)
        there.send(b"x")
        turns.run_forever()
        turns.unwatch(here.fileno())

    assert told == [fault]


def test_a_file_is_watched_for_what_was_said_last(turns: TurnLoop) -> None:
    here, there = socket.socketpair()
    seen: list[tuple[str, int]] = []

    def note(name: str, events: int) -> None:
        seen.append((name, events))
        turns.stop()

    with here, there:
        turns.watch(here.fileno(), selectors.EVENT_READ, lambda events: note("first", events))
        turns.watch(here.fileno(), selectors.EVENT_WRITE, lambda events: note("second", events))
        turns.run_forever()
        turns.unwatch(here.fileno())

    assert seen == [("second", selectors.EVENT_WRITE)]
