"""Closing a link of a job does not wait for the thread that keeps its connection alive."""

from __future__ import annotations

import pytest
from spark_bus import Bus

from duobus.ha.sdk import prompt
from duobus.spark.connection import new_client


@pytest.mark.slow
def test_the_links_of_a_job_close_promptly(bus: Bus) -> None:
    queue = bus.queue()
    with new_client(bus.place) as client:
        for link in (client.get_queue_sender(queue), client.get_queue_receiver(queue)):
            made = link.close
            # Nothing is left to be changed.
            assert prompt(link).close is made
