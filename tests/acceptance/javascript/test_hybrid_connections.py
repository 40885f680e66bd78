"""The packages of Hybrid Connections, hyco-ws and hyco-https, unmodified: they take the broker for Azure Relay."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest
from kit_node import INSTALL_LIMIT_S, Node, NodeBus

from duobus.auth import sign_token
from kits.programs import LIMIT_S

pytestmark = pytest.mark.timeout(INSTALL_LIMIT_S + LIMIT_S)


def _relay(bus: NodeBus, name: str, senders: str) -> dict[str, Any]:
    """Create a relay and return what a program has to know of it."""
    login = bus.credentials()
    rule, key = login["username"], login["password"]
    host = f"localhost:{bus.http_port}"
    request = urllib.request.Request(
        f"http://{host}/$duobus/relays/{name}",
        f'{{"senders":"{senders}"}}'.encode(),
        {"Authorization": sign_token(f"http://{host}/", rule, key, 2_000_000_000)},
        method="PUT",
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 201
    return {"host": host, "path": name, "rule": rule, "key": key}


def test_hyco_ws_listens_and_sends_renews_its_token_and_comes_back(node: Node, node_bus: NodeBus) -> None:
    found = node.run("relay_websockets", **_relay(node_bus, "hyco/sockets", "websocket"))
    assert found["text"] == "text \u00e9"
    assert found["same"] is True
    assert found["code"] == 4001
    assert found["protocol"] == "first"
    assert (found["afterRenewal"], found["afterReconnect"]) == ("again", "back")
    assert "401" in found["refused"]


def test_hyco_https_answers_requests_small_and_large(node: Node, node_bus: NodeBus) -> None:
    given = _relay(node_bus, "hyco/requests", "http")
    found = node.run("relay_http", **given)
    small = found["small"]
    assert (small["status"], small["text"], small["target"]) == (200, "question", "/hyco/requests/more?a=1")
    assert (found["nothing"]["status"], found["nothing"]["text"]) == (204, "")
    assert found["head"]["status"] == 200
    assert found["failed"]["status"] == 503
    for name in ("large", "chunked"):
        assert (found[name]["status"], found[name]["sum"]) == (200, found["sum"]), name
    assert found["answered"]["size"] == 1_000_000
    assert found["later"]["text"] == "later"
    answers = [found[name] for name in ("small", "nothing", "head", "failed", "large", "chunked", "answered", "later")]
    assert {answer["via"] for answer in answers} == {f"1.1 {given['host']}"}
