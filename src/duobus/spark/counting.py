"""How many messages wait, which is what a run with ``availableNow`` takes and no more."""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from duobus.spark.connection import Place, new_administration
from duobus.spark.entities import said, split_name

_SUBSCRIPTION: Final = re.compile(r"(?i)(.+)/subscriptions/([^/]+)")
_log = logging.getLogger("duobus.spark")


def waiting_messages(place: Place, entities: tuple[str, ...]) -> int | None:
    """Return how many messages can be received from some entities now; None when the management API does not tell.

    Rights to listen are enough to read, but not to ask this.
    """
    try:
        with new_administration(place) as administration:
            return sum(_waiting(administration, entity) for entity in entities)
    except Exception as error:  # noqa: BLE001 - of whatever kind: the run ends by another rule then
        _log.warning(
            "the number of waiting messages is not known (%s); the run ends when nothing is left, or with messages "
            "that came after its start",
            said(error),
        )
        return None


def _waiting(administration: Any, entity: str) -> int:
    name, sub_queue = split_name(entity)
    found = _SUBSCRIPTION.fullmatch(name)
    if found is not None:
        numbers = administration.get_subscription_runtime_properties(found[1], found[2])
    else:
        numbers = administration.get_queue_runtime_properties(name)
    member = {
        None: "active_message_count",
        "deadletter": "dead_letter_message_count",
        "transferdeadletter": "transfer_dead_letter_message_count",
    }[sub_queue]
    return int(getattr(numbers, member) or 0)
