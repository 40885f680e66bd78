"""Which tests share a process when they run in several (``--dist loadgroup``), in which order, and what they leave."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from duobus.testing import server as server_process
from kits.authorities import authorities_by_folder
from kits.browser_pages import browser, group_pages, page
from kits.few_reports import tell_less
from kits.loggers import loggers_as_before
from kits.order import place_of
from kits.prompt_sdk import prompt_sdk
from kits.prompt_start import PromptStarter, interpreter_environment, start_promptly
from kits.schedule import ALL, REST, UNIT, UNIT_NICE, Places, Schedule, parts_of, read_durations, write_durations
from kits.sockets import collect_sockets, sockets_forgiven

#: Fixtures for tests with a browser, wherever they are: two folders that import them have two browsers in one process.
__all__ = ["browser", "page"]
#: What starts servers promptly, once there is one.
_STARTERS: Final[list[PromptStarter]] = []
#: How many servers had been killed when sockets were last collected between two tests.
_KILLS: Final = [0]
#: Whether the test before may have left sockets, and its file.
_LEFT: Final = [False]
_FILE: Final[list[Path | None]] = [None]
#: Fixtures that are costly enough for one process alone: a JVM takes seconds to start, and a gigabyte.
ALONE: Final = ("spark",)
#: So many new objects may be there before the collector looks at them.
NEW_OBJECTS: Final = 10_000
TESTS: Final = Path(__file__).parent
UNIT_TESTS: Final = TESTS / "unit"


def pytest_configure(config: pytest.Config) -> None:
    tell_less(config)
    os.environ.update(authorities_by_folder())
    if part_of(config) == UNIT:
        os.nice(UNIT_NICE)


def part_of(config: pytest.Config) -> str:
    """What this process runs."""
    return getattr(config, "workerinput", {}).get("part", ALL)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.pluginmanager.hasplugin("dsession") and session.config.getoption("dist") == "loadgroup":
        session.config.pluginmanager.register(HandingOut(session))


class HandingOut:
    """What the process that runs no tests tells those that do."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        config = session.config
        folder = config.invocation_params.dir
        self._is_all = any(UNIT_TESTS.is_relative_to((folder / path).resolve()) for path in config.args)
        self._parts = parts_of(len(config.getoption("tx")), everything=self._is_all)
        self._places = Places(self._parts)
        self._schedule = Schedule(self._parts, read_durations(), self._tell_total)

    def _tell_total(self, number: int) -> None:
        self._session.testscollected = number

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        self._places.give(node)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        # One that has run all that it was given says goodbye without an error, and nobody takes its place.
        if error:
            self._places.take_back(node)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self) -> Schedule:
        return self._schedule

    @pytest.hookimpl
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        option = self._session.config.getoption
        is_less = any(option(name, None) for name in ("keyword", "markexpr", "ignore", "ignore_glob", "deselect"))
        if self._is_all and not is_less and exitstatus == pytest.ExitCode.OK:
            write_durations(self._schedule.took, TESTS.parent / ".build" / "durations.tsv")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A process that runs no unit tests imports none."""
    return True if part_of(config) == REST and collection_path.is_relative_to(UNIT_TESTS) else None


# Before xdist looks at the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    group_pages(items)
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        group = group_of(item)
        if group is not None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place_of(limit_of(item)))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep the collector out of the way: what the import of ten thousand tests makes is there to stay.

    Each worker would look through the growing heap again and again, for a second of processor time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse a run that would lose its groups, and take what stays for the whole run out of the collector's sight.

    Hundreds of tests collect what the SDK leaves behind. Each of them would look at a third of a million objects that
    cannot be garbage, for a quarter of a second of processor time.
    """
    if session.config.getoption("loadgroup", False):
        demand_groups(session.items)
    gc.collect()
    gc.freeze()
    # Tests make objects by the million and hardly any cycles: looking for some at each 700 took 3 % of their time.
    gc.set_threshold(NEW_OBJECTS)


def pytest_unconfigure() -> None:
    """Let the interpreter's end find everything again: what is left over then, extension modules write about."""
    gc.unfreeze()


def demand_groups(items: list[pytest.Item]) -> None:
    """Raise UsageError unless pytest-xdist keeps the tests of a group together.

    A pytest that the plugin does not know takes the groups away without a word: then each worker starts a Spark session
    and a broker of its own, and the run takes twice as long.
    """
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        if mark is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
            raise pytest.UsageError(
                f"pytest-xdist does not keep the group {mark.args[0]!r} together: "
                f"its version does not go with pytest {pytest.__version__}. Install the versions of constraints.txt."
            )


def limit_of(item: pytest.Item) -> float:
    """What a test says that it may take, in seconds."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark is not None and mark.args else 0.0


def group_of(item: pytest.Item) -> str | None:
    """The group of a test: those with the session of Spark, and those of a module that share what it has started."""
    for name in ALONE:
        if name in getattr(item, "fixturenames", ()):
            return name
    found = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    if any(definitions[-1].scope == "module" for definitions in found.values()):
        return item.nodeid.partition("::")[0]
    return None


@pytest.fixture(scope="session", autouse=True)
def prompt_links() -> Iterator[None]:
    """The SDK opens and closes its links at once, wherever tests use it."""
    with prompt_sdk():
        yield


@pytest.fixture(scope="session", autouse=True)
def prompt_stops() -> Iterator[None]:
    """No server waits at its end for clients that the SDK has left to the collector, nor is a test blamed for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_process, "let_go", collect_sockets)
        yield


@pytest.fixture(scope="session", autouse=True)
def prompt_starts() -> Iterator[None]:
    """Servers begin in a fork of a process that has imported duobus; that process begins with the first server."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(server_process, "start_process", partial(start_promptly, _STARTERS))
        yield
        for starter in _STARTERS:
            stack.enter_context(starter)


def killed_servers() -> int:
    """How many servers tests of this process have killed."""
    return sum(starter.kills for starter in _STARTERS)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Collect what the test before may have left, before anything that this test is made of begins.

    What threads of the SDK, or fixtures of a module, held to the end of the test before is garbage only now. In a new
    file nothing lives but imported modules and what is there for the whole run. The collector need not look at that
    again: with half a million objects, each of two thousand collections took 50 ms of processor time.
    """
    if _LEFT[0] or killed_servers() > _KILLS[0]:
        collect_sockets()
        if item.path != _FILE[0]:
            gc.freeze()
    _LEFT[0], _KILLS[0], _FILE[0] = False, killed_servers(), item.path


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Collect what the last test that killed a server has left, before pytest looks for it and fails the run.

    Until that test's end pytest keeps the records of its log, and with them the frames of errors that were logged.
    """
    if killed_servers():
        collect_sockets()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """What a test, or a program that runs inside of it, silences is heard again by the next one."""
    with loggers_as_before():
        yield


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    """A test, or a program that runs inside of it, that leaves the collector off or slower fails itself.

    The tests behind it in the same process would hold their garbage to the end, and those that count bytes would fail.
    """
    before = gc.isenabled(), gc.get_threshold()
    yield
    after = gc.isenabled(), gc.get_threshold()
    if after != before:
        gc.enable()
        gc.set_threshold(*before[1])
    assert after == before, "the test leaves the collector of its process with other settings"


@pytest.fixture(autouse=True)
def interpreter_as_before() -> Iterator[None]:
    """A test that leaves other variables for interpreters fails itself: no server behind it could begin in a fork."""
    before = interpreter_environment()
    yield
    after = interpreter_environment()
    for name in after.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    assert after == before, "the test leaves other variables that interpreters read at their start"


@pytest.fixture(autouse=True)
def sockets_collected(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect the sockets that the SDK leaves unclosed when a server is killed, before another test is blamed for them.

    Only behind slow tests, those that killed a server, and those that say themselves that sockets are left; whatever
    else is found counts.
    """
    kills = killed_servers()
    if kills > _KILLS[0]:
        # Fixtures of a module have killed servers.
        _KILLS[0] = kills
        collect_sockets()
    marks = request.node.iter_markers("filterwarnings")
    is_known = request.node.get_closest_marker("slow") is not None or any(
        "Unraisable" in str(text) for mark in marks for text in mark.args
    )

    def are_left() -> bool:
        return is_known or killed_servers() > kills

    with sockets_forgiven(are_left), pytest.MonkeyPatch.context() as patch:
        if not is_known:
            patch.setattr(server_process, "let_go", lambda: None)
        yield
    _LEFT[0] = are_left()
    if _LEFT[0]:
        collect_sockets()
