"""The SDK without the waits that prove nothing.

It looks every 50 ms whether a link is ready, and every second whether to end. A link needs several looks, so that
opening one takes a quarter of a second in which nobody does anything, and closing one takes half a second. With asyncio
the SDK also reads all certificates of the system for each connection, of those without TLS too: 20 ms of the processor.
The tests open and close thousands. Programs that tests start (examples, samples, campaigns) have the SDK as it is; the
processes of Spark look as often as the tests (``prompt_links.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from azure.servicebus._pyamqp.aio._client_async import AMQPClientAsync
from azure.servicebus._pyamqp.aio._transport_async import AsyncTransport
from azure.servicebus._pyamqp.client import AMQPClient

#: Modules of the SDK that look whether something is ready, and what they sleep by.
LOOKING: Final = {
    "_servicebus_sender": "time",
    "_servicebus_receiver": "time",
    "_pyamqp.client": "time",
    "aio._servicebus_sender_async": "asyncio",
    "aio._servicebus_receiver_async": "asyncio",
    "_pyamqp.aio._client_async": "asyncio",
}
#: What lies between two looks, in the SDK and here.
LOOK_S: Final = 0.05
PROMPT_S: Final = 0.002


class _Module:
    """A module with another ``sleep``."""

    def __init__(self, module: ModuleType, sleep: Any) -> None:
        self._module = module
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _shorter(seconds: float) -> float:
    return PROMPT_S if seconds == LOOK_S else seconds


def _sleep(seconds: float) -> None:
    time.sleep(_shorter(seconds))


async def _sleep_async(seconds: float) -> None:
    await asyncio.sleep(_shorter(seconds))


def _no_worker(client: AMQPClient) -> None:
    """Stands in for the keep-alive worker, which has nothing to do in the first 30 s."""


async def _no_worker_async(client: AMQPClientAsync) -> None:
    """The same for the asyncio flavour."""


_whole_ssl_opts: Final = AsyncTransport._build_ssl_opts


def _ssl_opts(transport: AsyncTransport, opts: Any) -> Any:
    """Certificates for connections with TLS only; the others do not look at them."""
    return _whole_ssl_opts(transport, opts) if transport._use_tls else opts


def prompt_modules() -> Iterator[tuple[ModuleType, str, object]]:
    """Each module of the SDK that looks, the name of what it sleeps by, and what is to stand there."""
    prompt = {"time": _Module(time, _sleep), "asyncio": _Module(asyncio, _sleep_async)}
    for name, module in LOOKING.items():
        yield import_module(f"azure.servicebus.{name}"), module, prompt[module]


@contextmanager
def prompt_sdk() -> Iterator[None]:
    """Let the SDK in this process open and close its links at once."""
    # Processes of Spark, which begin by the hundred, have no use for it.
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        for looking, name, module in prompt_modules():
            patch.setattr(looking, name, module)
        patch.setattr(AMQPClient, "_keep_alive", _no_worker)
        patch.setattr(AMQPClientAsync, "_keep_alive_async", _no_worker_async)
        patch.setattr(AsyncTransport, "_build_ssl_opts", _ssl_opts)
        yield
