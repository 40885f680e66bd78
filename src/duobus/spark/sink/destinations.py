"""Whether a destination makes repeated sends harmless, according to its description."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from duobus.spark.connection import Place, new_administration

if TYPE_CHECKING:
    from azure.servicebus.management import QueueProperties, ServiceBusAdministrationClient, TopicProperties

#: A window that is shorter than an outage and a restart lets repeats through.
SHORT_WINDOW: Final = timedelta(minutes=10)


def advice_on(place: Place, entity: str) -> str | None:
    """Advice for a write to an entity; None if the entity detects duplicates for long enough.

    Args:
        place: The namespace of the entity.
        entity: A queue or topic.
    """
    from azure.core.exceptions import AzureError

    try:
        with new_administration(place) as management:
            found = _description(management, entity)
    except (AzureError, OSError, ValueError) as error:
        return (
            f"Whether {entity!r} detects duplicates could not be seen ({type(error).__name__}); it needs the right "
            "Manage. Without duplicate detection a write that is repeated is delivered again."
        )
    if found is None:
        return f"There is no queue or topic {entity!r} yet."
    if not found.requires_duplicate_detection:
        return (
            f"{entity!r} does not detect duplicates: what is written again after a failure is delivered again. Make it "
            "with duplicate detection, or have its receivers drop repeated message ids."
        )
    window = found.duplicate_detection_history_time_window
    if isinstance(window, timedelta) and window < SHORT_WINDOW:
        return (
            f"{entity!r} remembers message ids for {window}. An outage and restart that take longer let repeats "
            "through; make its duplicate detection window longer."
        )
    return None


def may_detect_duplicates(place: Place, queue: str) -> bool:
    """Whether a queue drops a message whose id it has seen; also true when the description cannot be read."""
    from azure.core.exceptions import AzureError

    try:
        with new_administration(place) as management:
            found = _description(management, queue)
    except (AzureError, OSError, ValueError):
        return True
    return found is None or bool(found.requires_duplicate_detection)


def _description(management: ServiceBusAdministrationClient, entity: str) -> QueueProperties | TopicProperties | None:
    from azure.core.exceptions import ResourceNotFoundError

    for get in (management.get_queue, management.get_topic):
        # Queues and topics share one name space: the answer to ``get_queue`` may describe a topic, in which the SDK
        # looks for a queue's description, finds none and raises AttributeError.
        with suppress(ResourceNotFoundError, AttributeError):
            return get(entity)
    return None
