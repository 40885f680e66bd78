"""A unit test that starts a process or opens a socket is told where it belongs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest


def start_a_process() -> None:
    subprocess.run([sys.executable, "--version"], check=True)


def start_a_shell() -> None:
    os.system("true")


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def connect() -> None:
    with socket.socket() as client:
        client.connect(("127.0.0.1", 9))


def listen() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))


ASKED: list[tuple[Callable[[], None], str]] = [
    (start_a_process, "starts a process (subprocess.Popen)"),
    (start_a_shell, "starts a process (os.system)"),
    (fork, "forks this process (os.fork)"),
    (connect, "connects a socket (socket.connect)"),
    (listen, "binds a socket (socket.bind)"),
]


@pytest.mark.parametrize(("ask", "words"), ASKED, ids=[ask.__name__ for ask, _ in ASKED])
def test_what_a_unit_test_may_not_ask_for_is_refused_with_where_it_belongs(
    ask: Callable[[], None], words: str, refused: list[str]
) -> None:
    with pytest.raises(RuntimeError, match="belongs into tests/integration") as told:
        ask()
    refused.clear()

    assert words in str(told.value)
    assert "test_what_a_unit_test_may_not_ask_for" in str(told.value)


def test_a_refusal_is_remembered_where_the_code_catches_everything(refused: list[str]) -> None:
    with contextlib.suppress(RuntimeError):
        connect()
    (sentence,) = refused
    refused.clear()

    assert "connects a socket" in sentence


def test_a_thread_of_the_test_is_refused_too(refused: list[str]) -> None:
    def ask() -> None:
        with contextlib.suppress(RuntimeError):
            connect()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    count = len(refused)
    refused.clear()

    assert count == 1


def test_an_event_loop_of_asyncio_is_no_socket_of_the_machine(refused: list[str]) -> None:
    async def turn() -> str:
        return await asyncio.to_thread(lambda: "done")

    assert asyncio.run(turn()) == "done"
    assert refused == []
