"""Sockets over which HTTP requests are sent on to other servers (decision 0024)."""

from __future__ import annotations

import socket

import pytest

from duobus.cluster.http.proxy import watched_socket


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no TCP_USER_TIMEOUT")
def test_a_server_that_falls_silent_in_the_middle_of_an_answer_is_given_up_in_seconds() -> None:
    with watched_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, pause, tries, limit_ms = (
            made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        )
    # Both while it waits for an answer, and while it sends.
    assert idle + pause * tries <= 6
    assert limit_ms == 6_000
