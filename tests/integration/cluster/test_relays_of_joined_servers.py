"""Relays of servers that share a catalog: made at any of them, known to all, and told apart by who listens where."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import ClientSession, WSServerHandshakeError
from kit_cluster import Cluster
from yarl import URL

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
    # Nobody listens anywhere.
    status, reason, _ = asked(cluster, 1, "GET", "/joined/one")
    assert (status, reason.partition(".")[0]) == (502, "The hybrid connection 'joined/one' has no listener")
    assert asked(cluster, 1, "PUT", "/$duobus/relays/joined/one", {"userMetadata": "y"})[0] == 200
    for server in cluster.servers:
        assert within(lambda server=server: metadata(server) == "y")
    assert asked(cluster, 1, "DELETE", "/$duobus/relays/joined/one")[0] == 200
    for server in cluster.servers:
        assert within(lambda server=server: metadata(server) is None)


def signed(cluster: Cluster, server: int) -> dict[str, str]:
    """The headers with which a listener or a sender signs in at a server."""
    parts = dict(part.split("=", 1) for part in cluster.address(server).rstrip(";").split(";"))
    rule, key = parts["SharedAccessKeyName"], parts["SharedAccessKey"]
    return {"ServiceBusAuthorization": sign_token(cluster.http(server), rule, key, int(time.time()) + 600)}


async def come_alive(session: ClientSession, cluster: Cluster, path: str) -> Any:
    """A listener of a relay at the first server, which reads its catalog within moments."""
    url = f"{cluster.http(0).replace('http', 'ws', 1)}/$hc/{path}?sb-hc-action=listen"
    for _ in range(100):
        try:
            return await session.ws_connect(url, headers=signed(cluster, 0))
        except WSServerHandshakeError as error:
            if error.status != 404:
                raise
            await asyncio.sleep(0.05)
    raise AssertionError("the relay does not come to be known")


def test_a_sender_at_one_server_reaches_a_listener_at_another(cluster: Cluster) -> None:
    cluster.await_served()
    assert asked(cluster, 1, "PUT", "/$duobus/relays/far/away", {})[0] == 201

    async def run() -> None:
        async with ClientSession() as session:
            listener = await come_alive(session, cluster, "far/away")
            await requests(session, cluster, listener)
            await websockets(session, cluster, listener)
            await listener.close()

    async def requests(session: ClientSession, cluster: Cluster, listener: Any) -> None:
        base = cluster.http(1)
        for body, kind in ((b"small", "channel"), (bytes(range(256)) * 800, "rendezvous")):
            asking = asyncio.ensure_future(
                session.post(
                    URL(f"{base}/far/away/x?y=%2f", encoded=True), data=body, headers=signed(cluster, 1), expect100=True
                )
            )
            (request,) = json.loads(await listener.receive_str(timeout=20)).values()
            socket = listener
            if kind == "rendezvous":
                socket = await session.ws_connect(URL(request["address"], encoded=True), max_msg_size=0)
                (request,) = json.loads(await socket.receive_str(timeout=20)).values()
            assert request["requestTarget"] == "/far/away/x?y=%2f"
            assert not {"x-duobus-passed-by", "servicebusauthorization"} & {
                name.lower() for name in request["requestHeaders"]
            }
            assert await socket.receive_bytes(timeout=20) == body
            response = {"requestId": request["id"], "statusCode": 201, "statusDescription": "Made far", "body": True}
            await socket.send_json({"response": response})
            await socket.send_bytes(body[::-1])
            answer = await asking
            assert (answer.status, answer.reason, await answer.read()) == (201, "Made far", body[::-1])
            # The sender sees whose answer that is, by the name under which the sender knows the relay.
            assert answer.headers["Via"] == f"1.1 {base.partition('//')[2]}"

    async def websockets(session: ClientSession, cluster: Cluster, listener: Any) -> None:
        url = f"{cluster.http(1).replace('http', 'ws', 1)}/$hc/far/away?sb-hc-action=connect"
        connecting = asyncio.ensure_future(
            session.ws_connect(url, headers=signed(cluster, 1), protocols=("one", "two"), max_msg_size=0)
        )
        (accept,) = json.loads(await listener.receive_str(timeout=20)).values()
        # A balancer in front may bring a listener's rendezvous to any server: it reaches the one that waits for it.
        address = accept["address"].replace(cluster.http(0).partition("//")[2], cluster.http(2).partition("//")[2])
        assert address != accept["address"]
        far = await session.ws_connect(URL(address, encoded=True), protocols=("one",), max_msg_size=0)
        near = await connecting
        assert near.protocol == "one"
        data = bytes(range(256)) * 4096 * 8
        for source, target in ((near, far), (far, near)):
            sending = asyncio.ensure_future(source.send_bytes(data))
            assert await target.receive_bytes(timeout=60) == data
            await sending
        await near.close(code=4002, message=b"done")
        closed = await far.receive(timeout=20)
        assert (far.close_code, closed.extra) == (4002, "done")
        # A reject reaches the sender with the listener's status, as from the server itself.
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        connecting = asyncio.ensure_future(
            session.get(url.replace("ws", "http", 1), headers=signed(cluster, 1) | upgrade | {"Sec-WebSocket-Key": "x"})
        )
        (accept,) = json.loads(await listener.receive_str(timeout=20)).values()
        rejected = f"{accept['address']}&sb-hc-statusCode=451&sb-hc-statusDescription=Not%20today"
        async with session.get(URL(rejected.replace("ws", "http", 1), encoded=True)) as answer:
            assert answer.status == 410
        refused = await connecting
        assert (refused.status, refused.reason) == (451, "Not today")
        assert refused.headers["Via"] == f"1.1 {cluster.http(1).partition('//')[2]}"

    asyncio.run(run())
    # The listener has gone, and so every server refuses.
    assert within(lambda: asked(cluster, 1, "GET", "/far/away")[0] == 502)
    assert asked(cluster, 2, "DELETE", "/$duobus/relays/far/away")[0] == 200
