"""A port that is held stays with its server while that is down, and is free when nobody wants it any more."""

from __future__ import annotations

import socket
import sys

import pytest

from duobus.testing.ports import HeldPort

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ports are held on Linux only")


def listening(port: int) -> socket.socket:
    """A socket that listens as the broker's do."""
    return socket.create_server(("127.0.0.1", port), reuse_port=False)


def test_servers_come_and_go_on_a_held_port() -> None:
    held = HeldPort()
    for _ in range(3):
        with listening(held.number), socket.create_connection(("127.0.0.1", held.number)):
            pass


def test_a_held_port_without_a_server_refuses_connections() -> None:
    held = HeldPort()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", held.number))


def test_nobody_who_asks_for_any_port_is_given_a_held_one() -> None:
    held = {HeldPort() for _ in range(50)}
    numbers = {port.number for port in held}
    assert len(numbers) == 50
    with listening(0) as server:
        server.listen(500)
        address = server.getsockname()
        clients = [socket.create_connection(address) for _ in range(300)]
        servers = [listening(0) for _ in range(300)]
        given = {one.getsockname()[1] for one in (*clients, *servers)}
        for one in (*clients, *servers):
            one.close()
    assert not given & numbers


def test_a_held_port_that_is_forgotten_is_free() -> None:
    held = HeldPort()
    number = held.number
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", number))
    del held
    with socket.socket() as other:
        other.bind(("127.0.0.1", number))


def test_elsewhere_a_port_is_picked_and_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    found = HeldPort()
    with socket.socket() as other:
        other.bind(("127.0.0.1", found.number))
