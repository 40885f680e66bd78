"""Relays of servers that share a catalog: made at any of them, known to all, and told apart by who listens where."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from kit_cluster import Cluster

from duobus.model.access_rules import sign_token

pytestmark = [pytest.mark.slow]

#: How soon a change at one server is in force at the others.
LIMIT_S = 5.0


def asked(cluster: Cluster, server: int, method: str, path: str, body: Any = None) -> tuple[int, str, Any]:
    """Status, reason phrase and JSON of a request to one server."""
    parts = dict(part.split("=", 1) for part in cluster.address(server).rstrip(";").split(";"))
    base = cluster.http(server)
    token = sign_token(base, parts["SharedAccessKeyName"], parts["SharedAccessKey"], int(time.time()) + 600)
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"Authorization": token}, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.reason, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.reason, None


def within(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_a_relay_of_one_server_is_known_to_all_and_its_name_is_taken_at_all(cluster: Cluster) -> None:
    cluster.await_served()
    assert asked(cluster, 0, "PUT", "/$duobus/relays/joined/one", {"userMetadata": "x"})[0] == 201

    def metadata(server: int) -> str | None:
        found = asked(cluster, server, "GET", "/$duobus/relays/joined/one")[2]
        return None if found is None else found["userMetadata"]

    for server in cluster.servers:
        assert within(lambda server=server: metadata(server) == "x")
    assert asked(cluster, 1, "PUT", "/$duobus/relays/Joined/One?must=new", {})[0] == 409
    with cluster.admin(0) as admin:
        admin.create_queue("joined-queue")
    assert within(lambda: asked(cluster, 1, "PUT", "/$duobus/relays/joined-queue?must=new", {})[0] == 409)
    # Nobody listens here: the text says that others may have listeners.
    status, reason, _ = asked(cluster, 1, "GET", "/joined/one")
    assert status == 502
    assert "share its catalog" in reason
    assert asked(cluster, 1, "PUT", "/$duobus/relays/joined/one", {"userMetadata": "y"})[0] == 200
    for server in cluster.servers:
        assert within(lambda server=server: metadata(server) == "y")
    assert asked(cluster, 1, "DELETE", "/$duobus/relays/joined/one")[0] == 200
    for server in cluster.servers:
        assert within(lambda server=server: metadata(server) is None)
