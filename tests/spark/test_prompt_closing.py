"""Closing a link of the SDK does not wait for the thread that keeps its connection alive."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from azure.servicebus._pyamqp.client import AMQPClient
from spark_bus import Bus

from duobus.spark.closing import release_thread
from duobus.spark.connection import new_client


def test_the_thread_is_told_to_end_and_waited_for_no_more():
    handler = SimpleNamespace(_keep_alive_thread=object(), _shutdown=False)
    release_thread(handler)
    assert (handler._keep_alive_thread, handler._shutdown) == (None, True)


@pytest.mark.parametrize("handler", [None, SimpleNamespace(), SimpleNamespace(_keep_alive_thread=None)])
def test_an_sdk_without_such_a_thread_is_left_alone(handler):
    before = vars(handler).copy() if handler is not None else None
    release_thread(handler)
    assert handler is None or vars(handler) == before


@pytest.mark.slow
def test_no_link_that_closes_joins_its_thread(bus: Bus, monkeypatch: pytest.MonkeyPatch):
    queue = bus.queue()

    def keep_alive(client: AMQPClient) -> None:
        while not client._shutdown:
            threading.Event().wait(0.05)

    # As the SDK's own, which sleeps a second at a time.
    monkeypatch.setattr(AMQPClient, "_keep_alive", keep_alive)

    def join(timeout: float | None = None) -> None:
        raise AssertionError("a second may pass")

    with new_client(bus.place) as client:
        sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)
        with sender, receiver:
            receiver.peek_messages(1)
            threads = [link._handler._keep_alive_thread for link in (sender, receiver)]
            for thread in threads:
                assert thread.is_alive()
                thread.join = join
    for thread in threads:
        del thread.join
        thread.join(10)
        assert not thread.is_alive()
