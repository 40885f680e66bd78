"""How many messages wait in the entities of a source, as the broker counts them."""

from __future__ import annotations

from contextlib import suppress

from duobus.pipeline.document.model import Source
from duobus.spark.connection import new_administration, place_of
from duobus.spark.entities import PATTERNS, split_name
from duobus.spark.options import CONNECTION_OPTIONS, parse

_SUBSCRIPTION = "/subscriptions/"


def waiting_in(source: Source) -> int | None:
    """Messages that wait in the entities of a source; None where the rights do not suffice, or for a pattern."""
    if source.mode != "claim" or any(name in source.options for name in PATTERNS):
        return None
    names = {option.name for option in CONNECTION_OPTIONS}
    connection = {key: value for key, value in source.options.items() if key in names}
    total = 0
    # The rights may be missing, or the management API: no lag is no fault of the stage.
    with suppress(Exception), new_administration(place_of(parse(connection, CONNECTION_OPTIONS))) as management:
        for entity in source.entities:
            name, sub_queue = split_name(entity)
            topic, is_subscription, subscription = name.partition(_SUBSCRIPTION)
            found = (
                management.get_subscription_runtime_properties(topic, subscription)
                if is_subscription
                else management.get_queue_runtime_properties(name)
            )
            if sub_queue == "transferdeadletter":
                total += found.transfer_dead_letter_message_count or 0
            elif sub_queue is not None:
                total += found.dead_letter_message_count or 0
            else:
                total += found.active_message_count or 0
        return total
    return None
