"""The spare thread of a server's loop: a blocking call that takes long stops nobody (I9, PE4)."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest

from duobus.concurrency.spare_thread import SpareThread
from duobus.server.turn_selector import FEW, TurnLoop
from kits.turns import TURN_LIMIT_S, turned_until


class Call:
    """A blocking call that ends when it is told to, and notes in which threads what happened.

    Args:
        is_quick: It ends at once.
        yields: As of ``BlockingCall``.
    """

    def __init__(self, *, is_quick: bool = False, yields: bool = False) -> None:
        self.yields = yields
        self.may_end = threading.Event()
        if is_quick:
            self.may_end.set()
        self.run_by: int | None = None
        self.finished_by: int | None = None
        self.is_passed_on = False
        self.finished = asyncio.Event()

    def run(self) -> None:
        self.run_by = threading.get_ident()
        assert self.may_end.wait(TURN_LIMIT_S)

    def finish(self) -> None:
        self.finished_by = threading.get_ident()
        self.finished.set()

    def pass_on(self) -> None:
        self.is_passed_on = True
        self.finished.set()


@pytest.fixture
def loop() -> Iterator[TurnLoop]:
    made = TurnLoop()
    yield made
    made.close()


async def until_another_thread_runs_the_loop() -> int:
    """Return which one."""
    own = threading.main_thread().ident
    await turned_until(lambda: threading.get_ident() != own)
    return threading.get_ident()


def test_a_quick_call_is_made_by_the_loops_own_thread_and_announced_there(loop: TurnLoop) -> None:
    call = Call(is_quick=True)

    async def run() -> None:
        loop.block(call)
        await call.finished.wait()

    loop.run_until_complete(run())

    own = threading.get_ident()
    assert (call.run_by, call.finished_by) == (own, own)


def test_a_call_is_made_when_all_is_done_that_the_turn_has_brought(loop: TurnLoop) -> None:
    order: list[str] = []

    class Noted(Call):
        def run(self) -> None:
            order.append("call")

    call = Noted()

    def first() -> None:
        order.append("first")
        loop.call_at_turn_end(lambda: order.append("second"))

    async def run() -> None:
        loop.block(call)
        loop.call_at_turn_end(first)
        await call.finished.wait()

    loop.run_until_complete(run())

    assert order == ["first", "second", "call"]


def test_while_a_call_hangs_another_thread_runs_timers_tasks_and_sockets(loop: TurnLoop) -> None:
    call = Call()
    here, there = socket.socketpair()
    for one in (here, there):
        one.setblocking(False)
    watched: list[int] = []

    def read(_events: int) -> None:
        watched.append(threading.get_ident())
        here.recv(1)

    async def run() -> None:
        task = asyncio.current_task()
        loop.watch(here.fileno(), 1, read)
        loop.block(call)
        spare = await until_another_thread_runs_the_loop()
        assert asyncio.get_running_loop() is loop
        assert asyncio.current_task() is task
        assert await loop.create_task(asyncio.sleep(0, "done")) == "done"
        assert await loop.run_in_executor(None, lambda: "computed") == "computed"
        there.send(b"x")
        await turned_until(lambda: bool(watched))
        assert watched == [spare]
        loop.unwatch(here.fileno())
        assert call.finished_by is None
        call.may_end.set()
        await call.finished.wait()
        # Behind the call, the loop is its own thread's again.
        assert threading.get_ident() == call.finished_by == call.run_by == threading.main_thread().ident

    with here, there:
        loop.run_until_complete(run())


def test_signals_are_seen_to_while_a_call_hangs(loop: TurnLoop) -> None:
    call = Call()
    seen: list[int] = []

    async def run() -> None:
        loop.add_signal_handler(signal.SIGUSR1, lambda: seen.append(threading.get_ident()))
        loop.block(call)
        spare = await until_another_thread_runs_the_loop()
        os.kill(os.getpid(), signal.SIGUSR1)
        await turned_until(lambda: bool(seen))
        assert seen == [spare]
        call.may_end.set()
        await call.finished.wait()
        loop.remove_signal_handler(signal.SIGUSR1)

    loop.run_until_complete(run())


def test_calls_behind_one_that_hangs_are_done_elsewhere_and_no_more_are_taken(loop: TurnLoop) -> None:
    first, second = Call(), Call()

    async def run() -> None:
        assert loop.may_block()
        loop.block(first)
        loop.block(second)
        await second.finished.wait()
        assert second.is_passed_on
        assert second.run_by is None
        assert not loop.may_block()
        first.may_end.set()
        await first.finished.wait()
        assert loop.may_block()

    loop.run_until_complete(run())


def test_calls_hang_again_and_again_and_each_time_the_loop_goes_on(loop: TurnLoop) -> None:
    async def run() -> None:
        for _ in range(5):
            call = Call()
            loop.block(call)
            await until_another_thread_runs_the_loop()
            call.may_end.set()
            await call.finished.wait()
            assert threading.get_ident() == threading.main_thread().ident

    loop.run_until_complete(run())


def test_a_spare_thread_that_sleeps_is_woken_by_the_next_call(loop: TurnLoop) -> None:
    async def run() -> None:
        for _ in range(3):
            quick, hanging = Call(is_quick=True), Call()
            loop.block(quick)
            await quick.finished.wait()
            await turned_until(lambda: loop._spare_thread._is_asleep)
            loop.block(hanging)
            await until_another_thread_runs_the_loop()
            hanging.may_end.set()
            await hanging.finished.wait()

    loop.run_until_complete(run())


def test_quick_calls_one_after_the_other_for_a_while_do_not_move_the_loop(loop: TurnLoop) -> None:
    async def run() -> set[int]:
        threads = set()
        end_s = loop.time() + 0.2
        while loop.time() < end_s:
            call = Call(is_quick=True)
            loop.block(call)
            await call.finished.wait()
            threads.add(threading.get_ident())
        return threads

    # A machine that lets nothing run for 20 ms may move it once.
    assert threading.main_thread().ident in loop.run_until_complete(run())


def test_a_loop_that_is_stopped_while_a_call_hangs_ends_when_the_call_has(loop: TurnLoop) -> None:
    call = Call()
    ended_after: list[bool] = []

    async def run() -> str:
        loop.block(call)
        await until_another_thread_runs_the_loop()
        loop.call_soon(lambda: threading.Timer(0.05, call.may_end.set).start())
        return "result"

    assert loop.run_until_complete(run()) == "result"
    ended_after.append(call.may_end.is_set())

    assert ended_after == [True]
    # The outcome is announced all the same, and the loop can be run again.
    assert call.finished_by == threading.get_ident()
    loop.run_until_complete(asyncio.sleep(0))


def test_what_a_loop_passes_on_is_raised_by_it_whichever_thread_it_came_from(loop: TurnLoop) -> None:
    call = Call()

    def leave() -> None:
        call.may_end.set()
        raise SystemExit(3)

    async def run() -> None:
        loop.block(call)
        await until_another_thread_runs_the_loop()
        loop.call_soon(leave)
        await asyncio.sleep(TURN_LIMIT_S)

    task = loop.create_task(run())
    with pytest.raises(SystemExit) as raised:
        loop.run_until_complete(task)

    assert raised.value.code == 3
    assert call.finished_by == threading.get_ident()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)


def test_in_debug_mode_both_threads_may_ask_the_loop_for_something(loop: TurnLoop) -> None:
    call = Call()
    loop.set_debug(True)
    loop.slow_callback_duration = TURN_LIMIT_S

    async def run() -> None:
        loop.block(call)
        await until_another_thread_runs_the_loop()
        loop.call_soon(call.may_end.set)
        await call.finished.wait()
        loop.call_soon(lambda: None)
        await asyncio.sleep(0)

    loop.run_until_complete(run())


def test_an_asynchronous_generator_that_was_begun_in_the_spare_thread_is_closed_by_the_loop(loop: TurnLoop) -> None:
    call = Call()
    closed: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    async def run() -> None:
        loop.block(call)
        await until_another_thread_runs_the_loop()
        async for _ in numbers():
            break
        gc.collect()
        await turned_until(lambda: bool(closed))
        call.may_end.set()
        await call.finished.wait()

    loop.run_until_complete(run())

    assert closed == ["closed"]


def test_a_call_that_yields_is_done_elsewhere_if_anything_is_ready(loop: TurnLoop) -> None:
    here, there = socket.socketpair()
    here.setblocking(False)
    busy, free = Call(is_quick=True, yields=True), Call(is_quick=True, yields=True)

    async def run() -> list[bytes]:
        read: list[bytes] = []
        loop.watch(here.fileno(), 1, lambda _events: read.append(here.recv(1)))
        there.send(b"x")
        loop.block(busy)
        await busy.finished.wait()
        loop.block(free)
        await free.finished.wait()
        loop.unwatch(here.fileno())
        return read

    with here, there:
        assert loop.run_until_complete(run()) == [b"x"]

    assert (busy.is_passed_on, free.is_passed_on) == (True, False)


def test_where_many_files_are_ready_at_once_the_loop_makes_no_calls(loop: TurnLoop) -> None:
    pairs = [socket.socketpair() for _ in range(FEW + 1)]
    answers: list[bool] = []

    def read(here: socket.socket, _events: int) -> None:
        here.recv(1)
        answers.append(loop.may_block())

    async def run() -> None:
        for here, there in pairs:
            loop.watch(here.fileno(), 1, partial(read, here))
            there.send(b"x")
        await turned_until(lambda: len(answers) == len(pairs))
        pairs[0][1].send(b"x")
        await turned_until(lambda: len(answers) > len(pairs))
        for here, _ in pairs:
            loop.unwatch(here.fileno())

    loop.run_until_complete(run())
    for here, there in pairs:
        here.close()
        there.close()

    assert answers == [False] * len(pairs) + [True]


def test_what_comes_right_behind_the_one_file_that_was_ready_is_read_before_the_line_is_worked_off(
    loop: TurnLoop,
) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    (first, to_first), (second, to_second) = pairs
    order: list[str] = []

    is_over = asyncio.Event()

    def end() -> None:
        order.append("line")
        is_over.set()

    def read_first(_events: int) -> None:
        order.append("first")
        first.recv(1)
        loop.call_at_turn_end(end)
        to_second.send(b"x")

    def read_second(_events: int) -> None:
        order.append("second")
        second.recv(1)

    async def run() -> None:
        quick = Call(is_quick=True)
        loop.block(quick)
        await quick.finished.wait()
        loop.watch(first.fileno(), 1, read_first)
        loop.watch(second.fileno(), 1, read_second)
        # By another thread, so that nothing else asks for a turn of the loop.
        threading.Thread(target=to_first.send, args=(b"x",)).start()
        await is_over.wait()
        loop.unwatch(first.fileno())
        loop.unwatch(second.fileno())

    loop.run_until_complete(run())
    for here, there in pairs:
        here.close()
        there.close()

    assert order == ["first", "second", "line"]


def test_a_fault_in_an_announcement_is_reported_and_the_loop_goes_on(loop: TurnLoop) -> None:
    told: list[object] = []
    loop.set_exception_handler(lambda _loop, context: told.append(context["exception"]))
    fault = ValueError("a fault of ours")

    class Faulty(Call):
        def finish(self) -> None:
            raise fault

    call, next_call = Faulty(is_quick=True), Call(is_quick=True)

    async def run() -> None:
        loop.block(call)
        loop.block(next_call)
        await next_call.finished.wait()

    loop.run_until_complete(run())

    assert told == [fault]


def test_the_spare_thread_ends_with_the_loop() -> None:
    made = TurnLoop()
    call = Call(is_quick=True)

    async def run() -> None:
        made.block(call)
        await call.finished.wait()

    made.run_until_complete(run())
    thread = made._spare_thread._thread
    assert thread is not None
    assert thread.is_alive()

    made.close()

    assert not thread.is_alive()


def test_a_loop_that_makes_no_calls_has_no_spare_thread() -> None:
    made = TurnLoop()
    made.run_until_complete(asyncio.sleep(0))
    assert made._spare_thread._thread is None
    made.close()


def test_where_the_system_has_no_more_threads_the_loop_makes_no_calls_until_it_has(
    loop: TurnLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError(f"can't start new thread {thread.name}")

    async def ask() -> bool:
        return loop.may_block()

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert not loop.run_until_complete(ask())
    assert loop.run_until_complete(ask())


def test_one_thread_at_a_time_has_the_loop() -> None:
    """Many calls that take about as long as the spare thread waits."""
    has_loop = threading.Lock()
    never = threading.Event()
    turns = 0

    def run_loop(is_wanted: Callable[[], bool]) -> None:
        nonlocal turns
        assert has_loop.acquire(blocking=False), "two threads have the loop"
        turns += 1
        while not is_wanted():
            never.wait(0.0001)
        has_loop.release()

    spare = SpareThread(run_loop, lambda: None, after_s=0.0002)

    class Pause(Call):
        def run(self) -> None:
            never.wait(0.0003)

    for _ in range(1500):
        assert has_loop.acquire(blocking=False), "two threads have the loop"
        # From here on either may have it, until the call has come back.
        has_loop.release()
        spare.run(Pause())
    spare.close()

    assert turns > 0
