"""Access rules of servers that share a catalog: changed at any of them, and in force at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError, ServiceBusError
from click.testing import CliRunner
from kit_cluster import Cluster

from duobus.cli.main import main
from duobus.ha.sdk import prompt_client

pytestmark = [pytest.mark.slow]

#: How soon a change at one server is in force at the others.
LIMIT_S = 5.0


def ran(cluster: Cluster, server: int, *words: str) -> tuple[int, Any]:
    """Status and record of a command in this process, by the data folder of a server."""
    form = [] if words[0] == "remove" else ["-o", "json"]
    command = ["key", *words, "--data", str(cluster.folder_of(server)), *form]
    done = CliRunner(env={"DUOBUS_CONNECTION_STRING": None}).invoke(main, command)
    return done.exit_code, json.loads(done.stdout or "null") if done.exit_code == 0 else done.stderr


def status_beside(cluster: Cluster, server: int, *words: str) -> int:
    """Status of a command in a process of its own, so that two of them can run at the same time."""
    environment = {name: value for name, value in os.environ.items() if name != "DUOBUS_CONNECTION_STRING"}
    command = [sys.executable, "-m", "duobus", "key", *words, "--data", str(cluster.folder_of(server))]
    return subprocess.run(command, capture_output=True, env=environment, check=False).returncode


def within(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def is_taken(cluster: Cluster, server: int, rule: str, key: str, queue: str) -> bool:
    address = cluster.address(server).partition("SharedAccessKeyName=")[0]
    text = f"{address}SharedAccessKeyName={rule};SharedAccessKey={key};UseDevelopmentEmulator=true;"
    with prompt_client(ServiceBusClient.from_connection_string(text, retry_total=0)) as client:
        try:
            with client.get_queue_sender(queue) as sender:
                sender.send_messages(ServiceBusMessage("hello"))
        except (ServiceBusAuthenticationError, ServiceBusAuthorizationError):
            # By the server that the client is connected to, or by the one that has the queue.
            return False
    return True


def soon(cluster: Cluster, server: int, rule: str, key: str, queue: str, *, taken: bool) -> bool:
    """Whether a key comes to open a queue at a server, or not to open it, in time."""
    return within(lambda: is_taken(cluster, server, rule, key, queue) is taken)


def test_a_rule_of_the_namespace_that_one_server_adds_and_changes_counts_at_all(cluster: Cluster) -> None:
    cluster.await_served()
    with cluster.admin(0) as admin:
        admin.create_queue("keyed")
    status, added = ran(cluster, 0, "add", "shared", "--rights", "send")
    assert status == 0
    for server in cluster.servers:
        assert soon(cluster, server, "shared", added["primaryKey"], "keyed", taken=True)
    # The same rule from two servers at the same time: one of them has it, and both see it.
    with ThreadPoolExecutor(2) as pool:
        again = pool.map(lambda server: status_beside(cluster, server, "add", "once", "--rights", "send"), (1, 2))
        assert sorted(again) == [0, 4]
        # And two others from two servers: neither is lost.
        both = pool.map(
            lambda server: status_beside(cluster, server, "add", f"of-{server}", "--rights", "send"), (1, 2)
        )
        assert list(both) == [0, 0]
    names = {"shared", "once", "of-1", "of-2"}
    for server in cluster.servers:
        assert within(lambda server=server: names <= {rule["name"] for rule in ran(cluster, server, "list")[1]})
    assert ran(cluster, 1, "rotate", "shared", "--which", "primary")[0] == 0
    for server in cluster.servers:
        assert soon(cluster, server, "shared", added["primaryKey"], "keyed", taken=False)
        assert is_taken(cluster, server, "shared", added["secondaryKey"], "keyed")
    for name in names:
        assert ran(cluster, 0, "remove", name, "--yes")[0] == 0


def test_a_link_at_another_server_ends_with_its_key(cluster: Cluster) -> None:
    cluster.await_served()
    with cluster.admin(0) as admin:
        admin.create_queue("linked")
    _, rule = ran(cluster, 0, "add", "app", "--rights", "send")
    text = cluster.address(2).partition("SharedAccessKeyName=")[0]
    text += f"SharedAccessKeyName=app;SharedAccessKey={rule['primaryKey']};UseDevelopmentEmulator=true;"
    assert soon(cluster, 2, "app", rule["primaryKey"], "linked", taken=True)
    client = prompt_client(ServiceBusClient.from_connection_string(text, retry_total=0))
    with client, client.get_queue_sender("linked") as sender:
        sender.send_messages(ServiceBusMessage("hello"))
        assert ran(cluster, 1, "remove", "app", "--yes")[0] == 0

        def is_refused() -> bool:
            try:
                sender.send_messages(ServiceBusMessage("more"))
            except ServiceBusError:
                return True
            return False

        assert within(is_refused)


@pytest.mark.parametrize("server", range(3))
def test_rules_of_an_entity_are_changed_at_every_server_wherever_the_entity_is(cluster: Cluster, server: int) -> None:
    cluster.await_served()
    names = [f"owned-{server}-{number}" for number in range(4)]
    with cluster.admin(0) as admin:
        for name in names:
            admin.create_queue(name)
    for name in names:
        status, added = ran(cluster, server, "add", "own", "--rights", "send,listen", "--entity", name.upper())
        assert status == 0, added
        assert added["entity"] == name
        status, rotated = ran(cluster, server, "rotate", "own", "--which", "secondary", "--entity", name)
        assert (status, rotated["primaryKey"]) == (0, added["primaryKey"])
        assert ran(cluster, server, "add", "own", "--rights", "send", "--entity", name)[0] == 4
        for other in cluster.servers:
            # Clients put their tokens at any server.
            assert soon(cluster, other, "own", rotated["secondaryKey"], name, taken=True)
            assert soon(cluster, other, "own", added["secondaryKey"], name, taken=False)

    def are_listed() -> bool:
        return set(names) <= {rule["entity"] for rule in ran(cluster, server, "list")[1]}

    assert within(are_listed)
    for name in names:
        assert ran(cluster, server, "remove", "own", "--yes", "--entity", name)[0] == 0
        assert ran(cluster, server, "show", "own", "--entity", name)[0] == 3


def test_the_folder_of_a_joined_server_that_does_not_run_says_where_its_rules_are(cluster: Cluster) -> None:
    cluster.terminate(2)
    status, told = ran(cluster, 2, "list")
    assert status == 1
    assert "one of several servers, whose catalog is in PostgreSQL" in told
    cluster.start(2)
    cluster.await_ready(2)
    assert ran(cluster, 2, "list")[0] == 0
