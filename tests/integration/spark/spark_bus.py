"""What tests do with their broker beside reading it through the data source."""

from __future__ import annotations

import itertools
from typing import Any

from azure.servicebus import ServiceBusMessage

from duobus.spark.connection import new_administration, new_client, place_of
from duobus.spark.options import CONNECTION_OPTIONS, parse

#: Environment of the workers that names the broker of these tests.
CONNECTION_ENV = "DUOBUS_SPARK_TESTS"


class Bus:
    """What tests do with the broker beside reading it through the data source."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.place = place_of(parse(options, CONNECTION_OPTIONS))
        self._number = itertools.count(1)

    def queue(self, begins: str = "spark", /, **properties: Any) -> str:
        """Create a queue of a name that no other test has; ``begins`` tells it from others by a pattern, too."""
        name = f"{begins}-{next(self._number)}"
        with new_administration(self.place) as administration:
            administration.create_queue(name, **properties)
        return name

    def subscription(self, **properties: Any) -> tuple[str, str]:
        """Create a topic with one subscription."""
        name = f"topic-{next(self._number)}"
        with new_administration(self.place) as administration:
            administration.create_topic(name)
            administration.create_subscription(name, "all", **properties)
        return name, "all"

    def send(self, entity: str, messages: list[Any], *, is_topic: bool = False) -> None:
        """Send messages; text becomes a body."""
        with new_client(self.place) as client:
            make = client.get_topic_sender if is_topic else client.get_queue_sender
            with make(entity) as sender:
                made = [one if isinstance(one, ServiceBusMessage) else ServiceBusMessage(one) for one in messages]
                # A batch goes to one fragment, so it has one key.
                for key in dict.fromkeys(one.partition_key for one in made):
                    some = [one for one in made if one.partition_key == key]
                    for at in range(0, len(some), 200):
                        sender.send_messages(some[at : at + 200])

    def counts(self, queue: str) -> tuple[int, int]:
        """Messages that are there in whatever state, and those of the dead-letter queue."""
        with new_administration(self.place) as administration:
            found = administration.get_queue_runtime_properties(queue)
        return found.total_message_count - found.dead_letter_message_count, found.dead_letter_message_count
