"""A token is used until it ends, whether or not its issuer is there (IN4, I54)."""

from __future__ import annotations

import gc
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusClient as BlockingClient
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from duobus.clock import Clock
from duobus.ha import aio, sync
from duobus.ha.aio import credentials
from duobus.testing.server import ServerProcess, queues_config
from kits.pair import bounded

SECRET = "a secret of the tests, which is in no log"
HOUR_S = 3_600


class Moved(Clock):
    now_s = 1_000_000

    def now_ms(self) -> int:
        return self.now_s * 1000


class Issuer:
    """Gives tokens of an hour while it is there."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.is_away = False
        self.asked = 0
        self.closed = False

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        self.asked += 1
        if self.is_away:
            raise ConnectionRefusedError("the issuer is away")
        return AccessToken(f"{scopes[0]} {self.asked}", self.clock.now_ms() // 1000 + HOUR_S)

    async def close(self) -> None:
        self.closed = True


@bounded
async def test_a_token_is_asked_for_once_until_its_end_is_near() -> None:
    clock = Moved()
    issuer = Issuer(clock)
    async with aio.LastingCredential(issuer, clock=clock) as credential:  # type: ignore[arg-type]
        assert (await credential.get_token("s")).token == "s 1"
        clock.now_s += HOUR_S - credentials.AHEAD_S - 1
        assert (await credential.get_token("s")).token == "s 1"
        clock.now_s += 1
        assert (await credential.get_token("s")).token == "s 2"
        assert (await credential.get_token("other")).token == "other 3"
    assert issuer.closed


@bounded
async def test_while_the_issuer_is_away_the_old_token_is_given_until_it_ends_and_no_longer() -> None:
    clock = Moved()
    issuer = Issuer(clock)
    credential = aio.LastingCredential(issuer, clock=clock)  # type: ignore[arg-type]
    await credential.get_token("s")
    issuer.is_away = True
    clock.now_s += HOUR_S - 60
    assert (await credential.get_token("s")).token == "s 1"
    assert (await credential.get_token("s")).token == "s 1"
    assert issuer.asked == 2, "it is left alone for a while"
    clock.now_s += credentials.RETRY_S
    await credential.get_token("s")
    assert issuer.asked == 3
    clock.now_s += 60
    with pytest.raises(ConnectionRefusedError):
        await credential.get_token("s")
    issuer.is_away = False
    assert (await credential.get_token("s")).token == "s 5"


@bounded
async def test_a_token_is_given_for_the_options_alone_that_it_was_asked_for_with() -> None:
    credential = aio.LastingCredential(Issuer(Moved()), clock=Moved())  # type: ignore[arg-type]
    assert (await credential.get_token("s", tenant_id="a")).token == "s 1"
    assert (await credential.get_token("s", tenant_id="b")).token == "s 2"
    assert (await credential.get_token("s", tenant_id="a")).token == "s 1"


@bounded
async def test_the_number_of_tokens_is_bounded() -> None:
    credential = aio.LastingCredential(Issuer(Moved()), clock=Moved())  # type: ignore[arg-type]
    for number in range(credentials.SCOPES_MAX + 5):
        await credential.get_token(str(number))
    assert len(credential._tokens) == credentials.SCOPES_MAX


class Endpoint:
    """Logs in at the broker's own token endpoint, until that is taken away."""

    def __init__(self, server: ServerProcess) -> None:
        self.address = f"http://localhost:{server.ready['http_port']}/duobus/oauth2/v2.0/token"
        self.is_away = False

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        if self.is_away:
            raise ConnectionRefusedError("the issuer is away")
        form = {"grant_type": "client_credentials", "client_id": "owner", "client_secret": SECRET, "scope": scopes[0]}
        with urllib.request.urlopen(self.address, urllib.parse.urlencode(form).encode()) as reply:
            found = json.load(reply)
        return AccessToken(found["access_token"], int(time.time()) + found["expires_in"])

    def close(self) -> None:
        """Nothing is open."""


class AsyncEndpoint:
    def __init__(self, inner: Endpoint) -> None:
        self.inner = inner

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return self.inner.get_token(*scopes, **options)

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    path = tmp_path / "tokens.json"
    path.write_text(
        json.dumps({"Endpoint": {"Clients": [{"ClientId": "owner", "ClientSecret": SECRET, "Roles": ["Owner"]}]}})
    )
    arguments = ("--emulator", "--tls-self-signed", "--bearer-tokens", str(path))
    with ServerProcess(tmp_path / "data", config=queues_config({"q": {}}), arguments=arguments) as found:
        yield found
    gc.collect()


def how(server: ServerProcess) -> dict[str, Any]:
    return {
        "custom_endpoint_address": server.tls_endpoint,
        "transport_type": TransportType.Amqp,
        "connection_verify": server.ca,
        "retry_total": 0,
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_client_makes_new_connections_while_the_issuer_is_away(server: ServerProcess) -> None:
    issuer = Endpoint(server)

    @bounded
    async def with_asyncio() -> None:
        issuer.is_away = False
        credential = aio.LastingCredential(AsyncEndpoint(issuer))  # type: ignore[arg-type]
        for _ in range(2):
            client = ServiceBusClient("localhost", credential, **how(server))  # type: ignore[arg-type]
            async with client, client.get_queue_sender("q") as sender:
                await sender.send_messages(ServiceBusMessage("x"))
            issuer.is_away = True
        async with ServiceBusClient("localhost", AsyncEndpoint(issuer), **how(server)) as client:  # type: ignore[arg-type]
            with pytest.raises(ServiceBusError, match="the issuer is away"):
                await client.get_queue_sender("q").send_messages(ServiceBusMessage("x"))

    with_asyncio()
    issuer.is_away = False
    credential = sync.LastingCredential(issuer)  # type: ignore[arg-type]
    for _ in range(2):
        blocking = BlockingClient("localhost", credential, **how(server))  # type: ignore[arg-type]
        with blocking, blocking.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage("x"))
        issuer.is_away = True
