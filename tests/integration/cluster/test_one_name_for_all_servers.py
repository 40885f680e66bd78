"""One name for all servers: HAProxy in front of them, and a name with several addresses."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient
from kit_cluster import Cluster, Plain, running_cluster

from duobus.clock import Clock, Entropy
from duobus.gateway.tls import SelfSigned, TlsFiles
from duobus.ha.sdk import prompt_client
from kits.haproxy import HAProxy, running_haproxy

pytestmark = [pytest.mark.slow]

QUEUES = tuple(f"behind{number}" for number in range(4))
#: Only ends a hang.
PATIENCE_S = 90.0


def port_of(cluster: Cluster, number: int) -> int:
    return int(cluster.address(number).partition("localhost:")[2].partition(";")[0])


def http_port_of(cluster: Cluster, number: int) -> int:
    return int(cluster.http(number).rstrip("/").rpartition(":")[2])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """What each server has: a certificate that is good for the one name."""
    return SelfSigned(tmp_path_factory.mktemp("tls"), Clock(), Entropy()).ensure(())


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, certificates: TlsFiles) -> Iterator[Cluster]:
    words = ["--tls-cert", str(certificates.certificate), "--tls-key", str(certificates.key)]
    with running_cluster(tmp_path_factory.mktemp("cluster"), more=lambda _number: words) as found:
        found.await_served()
        yield found


@pytest.fixture(scope="module")
def proxy(servers: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HAProxy]:
    ports = [(port_of(servers, number), http_port_of(servers, number)) for number in servers.servers]
    http_ports = [(http_port, http_port) for _, http_port in ports]
    tls_ports = [(servers.tls_port(number), http_port) for number, (_, http_port) in enumerate(ports)]
    sections = {"amqp": ports, "amqps": tls_ports, "http": http_ports}
    with running_haproxy(tmp_path_factory.mktemp("haproxy"), sections) as found:
        with admin_at(servers, found.ports["http"]) as admin:
            for name in QUEUES:
                admin.create_queue(name)
        yield found


def admin_at(servers: Cluster, port: int) -> ServiceBusAdministrationClient:
    address = servers.address(0).replace(str(port_of(servers, 0)), str(port))
    return ServiceBusAdministrationClient.from_connection_string(address, transport=Plain())


def client_at(servers: Cluster, port: int, **options: Any) -> ServiceBusClient:
    address = servers.address(0).replace(str(port_of(servers, 0)), str(port))
    return prompt_client(ServiceBusClient.from_connection_string(address, **options))


def test_clients_of_one_name_are_spread_over_the_servers_and_reach_every_queue(
    servers: Cluster, proxy: HAProxy
) -> None:
    buses = [client_at(servers, proxy.ports["amqp"]) for _ in range(6)]
    try:
        for number, bus in enumerate(buses):
            name = QUEUES[number % len(QUEUES)]
            with bus.get_queue_sender(name) as sender:
                sender.send_messages(ServiceBusMessage(f"{number}"))
        got = set()
        for number, bus in enumerate(reversed(buses)):
            with bus.get_queue_receiver(QUEUES[number % len(QUEUES)]) as receiver:
                for message in receiver.receive_messages(10, max_wait_time=5):
                    got.add(str(message))
                    receiver.complete_message(message)
        assert got == {str(number) for number in range(6)}
    finally:
        for bus in buses:
            bus.close()
    assert all(int(row["stot"]) > 0 for row in proxy.rows("amqp").values())


@pytest.mark.parametrize("section", ["amqps", "http"])
def test_tls_and_websocket_pass_through_to_the_servers_whose_certificate_clients_verify(
    servers: Cluster, proxy: HAProxy, certificates: TlsFiles, section: str
) -> None:
    # The port of HTTP takes WebSocket, and tells TLS by its first byte.
    transport = TransportType.AmqpOverWebsocket if section == "http" else TransportType.Amqp
    address = "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"
    before = {name: int(row["stot"]) for name, row in proxy.rows(section).items()}
    buses = [
        prompt_client(
            ServiceBusClient.from_connection_string(
                address,
                custom_endpoint_address=f"sb://localhost:{proxy.ports[section]}",
                transport_type=transport,
                connection_verify=str(certificates.authority),
            )
        )
        for _ in range(3)
    ]
    try:
        for number, bus in enumerate(buses):
            with bus.get_queue_sender(QUEUES[number]) as sender, bus.get_queue_receiver(QUEUES[number]) as receiver:
                sender.send_messages(ServiceBusMessage(section))
                (message,) = receiver.receive_messages(1, max_wait_time=10)
                assert str(message) == section
                receiver.complete_message(message)
    finally:
        for bus in buses:
            bus.close()
    after = {name: int(row["stot"]) for name, row in proxy.rows(section).items()}
    # Those with the fewest connections get the next one.
    assert all(after[name] > before[name] for name in after)


def test_clients_go_on_when_a_server_behind_the_name_is_killed(servers: Cluster, proxy: HAProxy) -> None:
    sent: set[str] = set()
    failures: list[str] = []
    is_over = threading.Event()

    def send(name: str) -> None:
        number = 0
        while not is_over.is_set():
            with (
                suppress(ServiceBusError, OSError),
                client_at(servers, proxy.ports["amqp"]) as bus,
                bus.get_queue_sender(name) as sender,
            ):
                while not is_over.is_set():
                    text = f"{name}-{number}"
                    number += 1
                    try:
                        sender.send_messages(ServiceBusMessage(text))
                    except (ServiceBusError, OSError) as error:
                        failures.append(f"{type(error).__name__}: {error}")
                        raise
                    sent.add(text)
                    is_over.wait(0.05)

    threads = [threading.Thread(target=send, args=(name,)) for name in QUEUES]
    for thread in threads:
        thread.start()
    try:
        _until(lambda: len(sent) > 40)
        servers.kill(1)
        before = len(sent)
        proxy.await_status("amqp", "DOWN", "bus1")
        _until(lambda: len(sent) > before + 200)
        servers.start(1)
        servers.await_ready(1)
        proxy.await_status("amqp", "UP")
        before = len(sent)
        _until(lambda: len(sent) > before + 40)
    finally:
        is_over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    servers.await_served()
    received: set[str] = set()
    for name in QUEUES:
        with client_at(servers, proxy.ports["amqp"]) as bus, bus.get_queue_receiver(name) as receiver:
            while found := receiver.receive_messages(100, max_wait_time=3):
                for message in found:
                    received.add(str(message))
                    receiver.complete_message(message)
    assert sent <= received
    # Each sender at the killed server may fail once beyond what the SDK tries again by itself.
    assert len(failures) <= len(QUEUES), failures


def _until(is_so: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_sdk_tries_every_address_of_a_name(servers: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with two addresses, of which nobody listens on the first; the resolver is a stub, the SDK is not."""
    resolve = socket.getaddrinfo
    asked: list[str] = []

    def stub(host: Any, port: Any, *more: Any, **options: Any) -> Any:
        if host != "bus.example":
            return resolve(host, port, *more, **options)
        asked.append(host)
        found = resolve("127.0.0.1", port, *more, **options)
        return [(*entry[:4], ("127.0.0.2", entry[4][1])) for entry in found] + list(found)

    monkeypatch.setattr(socket, "getaddrinfo", stub)
    address = servers.address(0).replace("localhost", "bus.example")
    with prompt_client(ServiceBusClient.from_connection_string(address)) as bus:
        with bus.get_queue_sender(QUEUES[0]) as sender:
            sender.send_messages(ServiceBusMessage("by the second address"))
        with bus.get_queue_receiver(QUEUES[0]) as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=5)
            receiver.complete_message(message)
    assert asked
