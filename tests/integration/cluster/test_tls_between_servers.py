"""Servers that reach each other by TLS: those of one authority pass messages on, another's is refused."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from aiohttp import ClientSession
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from kit_cluster import Cluster, running_cluster
from test_relays_of_joined_servers import asked, come_alive, signed, within
from yarl import URL

from duobus.clock import Clock, Entropy
from duobus.cluster.directory import Directory
from duobus.gateway.tls import SelfSigned
from duobus.model.access_rules import sign_token
from duobus.server.settings import EMULATOR_KEY
from duobus.storage.catalog_rows import CatalogContents, StoreRow

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

#: The server whose certificate is of another authority than those of the others.
STRANGER = 2
NAMESPACE = "sbemulatorns"


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three servers with a store each; the last one has an authority of its own."""
    folder = tmp_path_factory.mktemp("tls-cluster")
    ours, theirs = (SelfSigned(folder / name, Clock(), Entropy()).ensure(()) for name in ("ours", "theirs"))

    def more(number: int) -> list[str]:
        files = theirs if number == STRANGER else ours
        words = ["--tls-cert", str(files.certificate), "--tls-key", str(files.key)]
        return [*words, "--cluster-ca", str(files.authority), "--advertise", "localhost"]

    with running_cluster(folder, stores=3, more=more) as cluster:
        cluster.await_served()
        yield cluster


def _queue_of(cluster: Cluster, server: int) -> str:
    """A queue in the store that a server has, made by that server itself."""
    (store,) = cluster.serving(server)[server]
    directory = Directory(CatalogContents((), (), tuple(StoreRow(number, "") for number in (1, 2, 3))))
    names = (f"tls-{number}" for number in range(100))
    name = next(name for name in names if directory.store_for_new(NAMESPACE, name) == int(store))
    with cluster.admin(server) as admin:
        admin.create_queue(name)
    return name


def test_messages_pass_between_servers_of_one_authority(strange: Cluster) -> None:
    name = _queue_of(strange, 0)
    with strange.client(1) as bus, bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
        sender.send_messages(ServiceBusMessage("passed"))
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        assert str(message) == "passed"
        receiver.complete_message(message)
    with strange.admin(1) as admin:
        assert admin.get_queue_runtime_properties(name).active_message_count == 0


def test_a_server_of_another_authority_is_refused_in_clear_words(strange: Cluster) -> None:
    name = _queue_of(strange, STRANGER)
    with strange.client(0, retry_total=0) as bus, pytest.raises(ServiceBusError, match="--cluster-ca does not vouch"):
        bus.get_queue_sender(name).__enter__()
    address = f"{strange.http(0)}/{name}/messages"
    token = sign_token(address, "RootManageSharedAccessKey", EMULATOR_KEY, 1 << 32)
    request = urllib.request.Request(address, b"x", {"Authorization": token}, method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == 503
    assert "--cluster-ca does not vouch" in refused.value.read().decode()


def test_requests_to_relays_pass_between_servers_of_one_authority_and_a_stranger_says_that_it_does_not_know(
    strange: Cluster,
) -> None:
    assert asked(strange, 0, "PUT", "/$duobus/relays/tls/relay", {})[0] == 201
    assert within(lambda: asked(strange, 1, "GET", "/$duobus/relays/tls/relay")[0] == 200)
    assert within(lambda: asked(strange, STRANGER, "GET", "/$duobus/relays/tls/relay")[0] == 200)

    async def run() -> None:
        async with ClientSession() as session:
            listener = await come_alive(session, strange, "tls/relay")
            asking = asyncio.ensure_future(session.get(f"{strange.http(1)}/tls/relay", headers=signed(strange, 1)))
            (request,) = json.loads(await listener.receive_str(timeout=20)).values()
            await listener.send_json({"response": {"requestId": request["id"], "statusCode": 200}})
            assert (await asking).status == 200
            url = f"{strange.http(1).replace('http', 'ws', 1)}/$hc/tls/relay?sb-hc-action=connect"
            connecting = asyncio.ensure_future(session.ws_connect(url, headers=signed(strange, 1)))
            (accept,) = json.loads(await listener.receive_str(timeout=20)).values()
            far = await session.ws_connect(URL(accept["address"], encoded=True))
            near = await connecting
            await near.send_str("through both")
            assert await far.receive_str(timeout=20) == "through both"
            async with session.get(f"{strange.http(STRANGER)}/tls/relay", headers=signed(strange, STRANGER)) as answer:
                assert answer.status == 502
                assert "not every server that shares its catalog has told of its own" in (answer.reason or "")

    asyncio.run(run())
