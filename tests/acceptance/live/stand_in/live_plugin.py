"""Plug-in of pytest for upstream's tests: it chooses the live ones and runs those that are coroutines."""

from __future__ import annotations

import asyncio
import inspect
import os

import pytest


@pytest.fixture(scope="session")
def test_proxy():
    """Upstream's recorder; there is none."""


def pytest_addoption(parser):
    """``asyncio_mode`` and others may stand in files of upstream's."""
    parser.addini("asyncio_mode", "unused", default="auto")


def pytest_configure(config):
    """Markers of plug-ins that are not there."""
    config.addinivalue_line("markers", "asyncio: a coroutine")


def _is_live(item):
    marked = any(item.get_closest_marker(name) for name in ("liveTest", "live_test_only"))
    return marked or getattr(item.function, "is_live", False)


def _takes_connection_string(item):
    """Whether a test gets a connection string; in the emulator's form it differs then, and only then."""
    code = inspect.unwrap(item.function).__code__
    inner = [one.cell_contents for one in inspect.unwrap(item.function).__closure__ or ()]
    codes = [code, *(one.__code__ for one in inner if inspect.isfunction(one))]
    return any(name.endswith("connection_string") for one in codes for name in one.co_varnames)


def pytest_collection_modifyitems(config, items):
    """Leave out what needs no broker, and for the emulator's form what would be the same again."""
    wanted = [item for item in items if _is_live(item)]
    if os.environ.get("LIVE_EMULATOR"):
        wanted = [item for item in wanted if _takes_connection_string(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
    items[:] = wanted


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a coroutine in a loop of its own."""
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(function(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
