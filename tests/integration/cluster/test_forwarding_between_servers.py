"""Two servers over one PostgreSQL: what one forwards to the other, which is killed under traffic, is there once."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from kit_cluster import Cluster, running_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # The SDK leaves the sockets of a server that was killed to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

#: For how long messages may be on their way after the kill: a lease, and what the pauses of a forwarder come to. It
#: begins again with every message, as receiving them takes long on a busy machine.
ARRIVAL_S = 30.0
#: Messages that have to be sent while the other server is killed, or little is proved.
SENT_MIN = 500


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("pair"), servers=2, stores=2) as found:
        yield found


def _owner_of(cluster: Cluster, name: str) -> int:
    """The server that lists the fragment of a queue as its own."""
    for number in cluster.servers:
        with urllib.request.urlopen(f"{cluster.http(number)}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        if any(line.startswith("duobus_fragment_available") and f'entity="{name}"' in line for line in lines):
            return number
    raise AssertionError(name)


def test_what_is_forwarded_to_a_server_that_is_killed_is_there_once(pair: Cluster) -> None:
    pair.await_served()
    names = [f"end{number}" for number in range(8)]
    with pair.admin(0) as admin:
        for name in names:
            admin.create_queue(name)
        owners = {name: _owner_of(pair, name) for name in names}
        target = next(name for name in names if owners[name] == 1)
        starts = [f"start{number}" for number in range(8)]
        for name in starts:
            admin.create_queue(name, forward_to=target)
        start = next(name for name in starts if _owner_of(pair, name) == 0)
    sent: list[str] = []
    with pair.client(0) as bus, bus.get_queue_sender(start) as sender:
        ends = time.monotonic() + 6
        is_killed = False
        while time.monotonic() < ends or len(sent) <= SENT_MIN:
            texts = [f"m{len(sent) + index}" for index in range(20)]
            # The queue's own server is not killed: each of these is answered, and no send is repeated.
            sender.send_messages([ServiceBusMessage(text) for text in texts])
            sent += texts
            if not is_killed and time.monotonic() > ends - 4:
                pair.kill(1)
                is_killed = True
            # What takes time is the failover; more messages in it would only be more to receive.
            time.sleep(0.1)
    found: list[str] = []
    deadline = time.monotonic() + ARRIVAL_S
    while time.monotonic() < deadline and len(set(found)) < len(sent):
        try:
            with pair.client(0, retry_total=1) as bus, bus.get_queue_receiver(target) as receiver:
                for message in receiver.receive_messages(500, max_wait_time=2):
                    found.append(str(message))
                    receiver.complete_message(message)
                    deadline = time.monotonic() + ARRIVAL_S
        except (ServiceBusError, OSError):
            time.sleep(0.2)
    with pair.client(0) as bus, bus.get_queue_receiver(target) as receiver:
        found += [str(message) for message in receiver.receive_messages(10, max_wait_time=2)]
    print(f"sent {len(sent)}, received {len(found)}")
    assert sorted(found) == sorted(sent)
