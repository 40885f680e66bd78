"""Tests of this folder start no process and open no socket of the machine: a hook of the interpreter refuses both."""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tools.trace_walk import Walk

#: Events of the interpreter that are refused, and the words for each. The pair of sockets with which asyncio wakes a
#: loop is neither bound nor connected.
REFUSED: Final = {
    "os.exec": "replaces this process by another",
    "os.fork": "forks this process",
    "os.forkpty": "forks this process",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "socket.bind": "binds a socket",
    "socket.connect": "connects a socket",
    "subprocess.Popen": "starts a process",
}


class Refused(RuntimeError):
    """No error of the system: code that tries again after such an error shall not try again after this one."""


class Guard:
    """Refuses what a unit test may not ask of the machine.

    A hook of the interpreter cannot be taken away again, and tests of other folders run in the same process. So the
    hook refuses only while a test of this folder is set up or runs, and nothing to a thread that was there before it.

    Attributes:
        refused: The sentences of all refusals to the test that runs.
    """

    def __init__(self) -> None:
        self.refused: list[str] = []
        self._test = ""
        self._others: frozenset[int | None] = frozenset()

    def __call__(self, event: str, _arguments: tuple[Any, ...]) -> None:
        """Hear of an event."""
        words = REFUSED.get(event)
        if words is None or not self._test or threading.get_ident() in self._others:
            return
        sentence = (
            f"{self._test} {words} ({event}). Tests below tests/unit start no process and open no socket; "
            "a test that needs one belongs into tests/integration, or into tests/acceptance with programs of others."
        )
        self.refused.append(sentence)
        raise Refused(sentence)

    @contextmanager
    def over(self, test: str) -> Iterator[None]:
        """Refuse in the meantime. A refusal that the code under test has caught fails the test all the same."""
        self.refused.clear()
        self._others = frozenset(one.ident for one in threading.enumerate() if one is not threading.current_thread())
        self._test = test
        try:
            yield
        finally:
            self._test = ""
        if self.refused:
            pytest.fail(self.refused[0], pytrace=False)


# How long an example takes, on a machine that does something else as well, proves nothing.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")

GUARD: Final = Guard()
sys.addaudithook(GUARD)

# Clients of the SDK tell the processor's name. The standard library has a program say it, once in a process.
platform.processor()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    with GUARD.over(item.nodeid):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    with GUARD.over(item.nodeid):
        yield


@pytest.fixture(scope="session")
def walks_of_two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Walk]]:
    """The walks of two messages, one after the other, of links that are warm; for tests of the group ``walk``."""
    from tools.trace_walk import trace_walks

    return trace_walks(tmp_path_factory.mktemp("walk") / "data", rounds=2)


@pytest.fixture
def refused() -> list[str]:
    """The refusals to this test; a test that clears them does not fail for them."""
    return GUARD.refused
