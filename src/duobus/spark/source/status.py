"""What a source tells of itself beside its rows, in the JSON of ``latestOffset`` of Spark's progress. Pure.

Spark 4.3 takes no metrics from a stream that is written in Python, and describes such a stream by the name of a Java
class. It does ask for the newest offset there is, puts the answer into ``StreamingQueryProgress`` as it is, and never
reads it. So the answer carries the description and the figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from duobus.spark.options import Parsed

#: Options that say what is read, in the order in which a description has them.
_NAMING: Final = ("queue", "topic", "subscription", "queues", "queuesPattern", "subscriptionsPattern", "subQueue")
#: Names that a description lists of several.
_NAMES_MAX: Final = 3


def description_of(options: Parsed) -> str:
    """What a stream reads and how, for people: ``duobus[queue=orders, mode=claim]``."""
    parts = [f"{name}={_named(options[name])}" for name in _NAMING if options[name] is not None]
    return f"duobus[{', '.join((*parts, 'mode=' + options['readMode']))}]"


def _named(value: Any) -> str:
    if not isinstance(value, tuple):
        return str(value)
    more = len(value) - _NAMES_MAX
    return "+".join(value[:_NAMES_MAX]) + (f"+{more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class Status:
    """The figures of a stream when a batch was planned; None where a figure is not known, or the mode has none.

    Attributes:
        source: The description.
        waiting: Messages that could be received.
        behind: How much the stream is behind the newest message: messages that wait, or numbers between the batch and
            the newest one where nothing is claimed.
        oldest_age_ms: Age of the oldest message of the batch.
        claimed: Messages that the batch has claimed.
        claimed_bytes: Bytes of their bodies, or of the messages where the broker claims.
        deferred: Messages of earlier batches that are deferred and not removed yet.
        locks_held: Messages that the stream holds under lock.
    """

    source: str
    waiting: int | None = None
    behind: int | None = None
    oldest_age_ms: int | None = None
    claimed: int | None = None
    claimed_bytes: int | None = None
    deferred: int | None = None
    locks_held: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The form in Spark's progress; figures that are not known are left out."""
        found = {name: getattr(self, attribute) for name, attribute in FIGURES.items()}
        return {"source": self.source, **{name: value for name, value in found.items() if value is not None}}


#: Name of a figure in JSON to its attribute.
FIGURES: Final = {
    "waitingMessages": "waiting",
    "behindLatest": "behind",
    "oldestAgeMs": "oldest_age_ms",
    "claimedMessages": "claimed",
    "claimedBytes": "claimed_bytes",
    "deferredMessages": "deferred",
    "locksHeld": "locks_held",
}


def status_in(form: Any) -> Status | None:
    """The status in ``latestOffset`` of a source's progress; None where the source is another or has told nothing.

    Args:
        form: A member of the progress, as JSON or as an object made of JSON.
    """
    if isinstance(form, str):
        try:
            form = json.loads(form)
        except ValueError:
            return None
    if not isinstance(form, Mapping) or not str(form.get("source", "")).startswith("duobus["):
        return None
    figures = {attribute: form.get(name) for name, attribute in FIGURES.items()}
    return Status(str(form["source"]), **figures)
