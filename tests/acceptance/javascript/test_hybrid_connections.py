"""The packages of Hybrid Connections, hyco-ws and hyco-https, unmodified: they take the broker for Azure Relay."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from kit_node import INSTALL_LIMIT_S, Node, NodeBus

from duobus.auth import sign_token
from duobus.relay import RelayEndpoint, RelayRefused, sync
from kits.programs import LIMIT_S

_T = TypeVar("_T")

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


@pytest.mark.parametrize(("kind", "senders"), [("hyco-ws", "websocket"), ("hyco-https", "http")])
def test_a_package_renews_its_token_and_comes_back_with_another_when_one_has_ended(
    kind: str, senders: str, node: Node, node_bus: NodeBus
) -> None:
    found = node.run("relay_tokens", kind=kind, **_relay(node_bus, f"{kind}/tokens", senders))
    assert found["renewed"] == {"same": True, "answers": True}
    assert (found["code"], found["answersAgain"]) == (1008, True)


def _endpoint(given: dict[str, Any]) -> RelayEndpoint:
    return RelayEndpoint(given["host"], given["path"], given["rule"], given["key"], is_secure=False)


def test_hyco_ws_sends_to_our_listener_and_is_rejected_by_it(node: Node, node_bus: NodeBus) -> None:
    def answer(pending: sync.PendingConnection) -> None:
        assert pending.query == "room=1"
        if pending.path == "/reject":
            pending.reject(403, "Members only.")
            return
        with pending.accept() as connection:
            for message in connection:
                if message == "close":
                    connection.close(4002, "as asked")
                    return
                connection.send(message)

    given = _relay(node_bus, "hyco/ours", "websocket")
    with sync.RelayListener(_endpoint(given), on_connection=answer) as listener:
        listener.wait_online()
        found = node.run("relay_sender", **given)
    assert (found["protocol"], found["same"]) == ("first", True)
    assert (found["code"], found["reason"]) == (4002, "as asked")
    assert "403" in found["rejected"]


def _once_listening(send: Callable[[], _T]) -> _T:
    """Send as soon as a listener is there."""
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            return send()
        except RelayRefused as error:
            if not error.precedes_delivery or time.monotonic() > end:
                raise
            time.sleep(0.1)


def test_our_sender_reaches_a_listener_of_hyco_ws(node: Node, node_bus: NodeBus) -> None:
    given = _relay(node_bus, "hyco/serving-sockets", "websocket")
    content = bytes(range(256)) * 20_000
    with ThreadPoolExecutor(1) as beside, sync.RelaySender(_endpoint(given)) as sender:
        running = beside.submit(node.run, "relay_serving", kind="hyco-ws", **given)
        with _once_listening(sender.connect) as connection:
            for message in ("text \u00e9", content):
                connection.send(message)
                assert connection.receive() == message
            connection.send("stop")
            assert connection.receive() is None
            assert connection.close_code == 4001
        assert running.result()["stopped"]


def test_our_sender_reaches_a_listener_of_hyco_https_with_bodies_in_pieces(node: Node, node_bus: NodeBus) -> None:
    given = _relay(node_bus, "hyco/serving-requests", "http")
    piece = bytes(range(256)) * 256

    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield piece

    with ThreadPoolExecutor(1) as beside, sync.RelaySender(_endpoint(given)) as sender:
        running = beside.submit(node.run, "relay_serving", kind="hyco-https", **given)
        small = _once_listening(lambda: sender.request("POST", body=b"small"))
        assert (small.body, small.values("set-cookie")) == (b"small", ["a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT"])
        with sender.stream("POST", body=pieces) as answer:
            assert answer.read() == piece * 20
        assert sender.request("POST", "stop", body=b"x").status == 200
        assert running.result()["stopped"]
