"""The senders of this process: they outlive the tasks, as attaching a link anew costs some round trips."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from duobus.spark.connection import KEPT, Place, client
from duobus.spark.sink.sender import Post

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusSender


def post_to(place: Place, pace: Callable[[int], None] | None = None) -> Post:
    """What sends to the entities of a namespace.

    Args:
        place: The namespace.
        pace: Is told how many messages were sent, and returns when more may be.
    """
    return Post(partial(_kept, place), partial(_drop, place), pace)


def _kept(place: Place, entity: str) -> ServiceBusSender:
    # Asked for each time: a client that looks idle would be closed under its senders.
    here = client(place)
    # Topics too: the SDK tells them apart by their argument's name only.
    found: ServiceBusSender = KEPT.get(("sender", place, entity), lambda: here.get_queue_sender(entity))
    return found


def _drop(place: Place, entity: str) -> None:
    KEPT.drop(("sender", place, entity))
