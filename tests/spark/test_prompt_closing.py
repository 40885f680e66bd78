"""Closing a link of a job does not wait for the thread that keeps its connection alive."""

from __future__ import annotations

from typing import Any

import pytest
from spark_bus import Bus

from duobus.spark.connection import new_client


@pytest.mark.slow
def test_a_link_of_a_job_that_closes_joins_no_thread(bus: Bus) -> None:
    queue = bus.queue()

    def join(timeout: float | None = None) -> None:
        raise AssertionError("a second may pass")

    with new_client(bus.place) as client:
        sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)
        with sender, receiver:
            receiver.peek_messages(1)
            threads: list[Any] = [link._handler._keep_alive_thread for link in (sender, receiver)]
            for thread in threads:
                assert thread.is_alive()
                thread.join = join
    for thread in threads:
        del thread.join
