"""The SDK's administration clients in both flavours, and transports that lose answers or speak plain HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import azure.servicebus.aio.management
import azure.servicebus.management
from azure.core.exceptions import ServiceRequestError
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from kit_bus import Bus
from kit_sdk import Face, opened

RULE = "RootManageSharedAccessKey"
MODULES = {"sync": azure.servicebus.management, "asyncio": azure.servicebus.aio.management}


class Admin:
    """Opens administration clients of one flavour."""

    def __init__(self, flavour: str, bus: Bus) -> None:
        self.module = MODULES[flavour]
        self.bus = bus

    def address(self, rule: str = RULE, key: str = "SAS_KEY_VALUE") -> str:
        port = self.bus.process.ready["http_port"]
        return f"Endpoint=sb://localhost:{port};SharedAccessKeyName={rule};SharedAccessKey={key}"

    @asynccontextmanager
    async def client(self, address: str | None = None, **options: Any) -> AsyncIterator[Face]:
        options = {"connection_verify": self.bus.process.ca, "retry_total": 0} | options
        made = self.module.ServiceBusAdministrationClient.from_connection_string(address or self.address(), **options)
        async with opened(made) as client:
            yield client


class Forgetful(RequestsTransport):
    """Loses the answer to the first request of each kind, after the server has done what it asked for."""

    def __init__(self, ca: str) -> None:
        super().__init__(connection_verify=ca)
        self.lost: list[str] = []

    def send(self, request: Any, **options: Any) -> Any:
        response = super().send(request, **options)
        if request.method not in self.lost:
            self.lost.append(request.method)
            raise ServiceRequestError("the answer is lost")
        return response


class ForgetfulAsync(AioHttpTransport):
    """The same of the asyncio flavour."""

    def __init__(self, ca: str) -> None:
        super().__init__(connection_verify=ca)
        self.lost: list[str] = []

    async def send(self, request: Any, **options: Any) -> Any:
        response = await super().send(request, **options)
        if request.method not in self.lost:
            self.lost.append(request.method)
            raise ServiceRequestError("the answer is lost")
        return response


class Plain(RequestsTransport):
    """Speaks plain HTTP: a hook that the SDK offers."""

    def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **options)


async def all_of(pages: Any) -> list[Any]:
    """Everything of a list, however the flavour gives pages."""
    if hasattr(pages, "__aiter__"):
        return [found async for found in pages]
    return list(pages)
