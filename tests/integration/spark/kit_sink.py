"""Queues for tests of the sink and the jobs, and what is in them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from urllib.request import urlopen

from duobus.spark.connection import Place, new_administration, new_client, place_of
from duobus.spark.options import CONNECTION_OPTIONS, parse


def place(options: dict[str, str]) -> Place:
    return place_of(parse(options, CONNECTION_OPTIONS))


def make_queue(options: dict[str, str], name: str, *, detects_duplicates: bool = False, **given: Any) -> str:
    """Make a queue, and return its name."""
    if detects_duplicates:
        given |= {
            "requires_duplicate_detection": True,
            "duplicate_detection_history_time_window": timedelta(minutes=30),
        }
    with new_administration(place(options)) as management:
        management.create_queue(name, **given)
    return name


def drained(options: dict[str, str], name: str, **given: Any) -> list[Any]:
    """Every message of a queue, completed."""
    found: list[Any] = []
    with new_client(place(options)) as client, client.get_queue_receiver(name, **given) as receiver:
        while batch := receiver.receive_messages(500, max_wait_time=0.5):
            for message in batch:
                receiver.complete_message(message)
            found += batch
    return found


def body(message: Any) -> bytes:
    return b"".join(message.body)


def sends_to(http_port: int, entity: str) -> int:
    """Messages that were sent to an entity, dropped duplicates among them, as the broker metered them."""
    with urlopen(f"http://localhost:{http_port}/metrics") as page:
        text = page.read().decode()
    sample = rf'^duobus_metered_messages_total{{entity="{re.escape(entity)}",kind="send".*}} (\S+)$'
    line = re.search(sample, text, re.MULTILINE)
    return 0 if line is None else round(float(line[1]))
