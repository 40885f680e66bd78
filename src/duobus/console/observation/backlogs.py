"""The backlog queues of pairs: what waits in them for which destination, for how long, and who reads them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from duobus.console.observation.readings import EntityCounts
from duobus.ha.aio.backlog_queues import Found, backlogs_among
from duobus.ha.options import BACKLOG_QUEUES_DEFAULT
from duobus.ha.transfer import Undeliverable, from_backlog

#: What stands for a destination that a message does not name.
UNNAMED: Final = ""
_BACKLOG: Final = re.compile(r"(?i)(.+)/x-servicebus-transfer/\d{1,9}")
_MS: Final = 1_000


class _Queue(NamedTuple):
    """A queue as ``backlogs_among`` reads one."""

    name: str
    active_message_count: int
    dead_letter_message_count: int


class Sample(NamedTuple):
    """Some messages of a backlog queue.

    Attributes:
        destinations: How many of them are for which entity of the primary.
        oldest_ms: When the oldest was put there, in ms since 1970; None without messages.
        examined: How many messages were looked at.
    """

    destinations: Counter[str]
    oldest_ms: int | None
    examined: int


def primaries_among(entities: Mapping[str, EntityCounts]) -> list[str]:
    """Names of the primaries that have backlog queues in a namespace, each once whatever its letters' case."""
    found: dict[str, str] = {}
    for path, counts in entities.items():
        match = _BACKLOG.fullmatch(path) if counts.kind == "queue" else None
        if match is not None:
            found.setdefault(match[1].lower(), match[1])
    return sorted(found.values())


def backlogs_of(entities: Mapping[str, EntityCounts], primary: str, count: int = BACKLOG_QUEUES_DEFAULT) -> list[Found]:
    """The backlog queues of a primary in the order of their numbers."""
    queues: list[Any] = [
        _Queue(path, counts.active, counts.dead) for path, counts in entities.items() if counts.kind == "queue"
    ]
    return backlogs_among(queues, primary, count)


def sample_of(messages: Iterable[Any]) -> Sample:
    """What some peeked messages of a backlog queue tell."""
    destinations: Counter[str] = Counter()
    oldest_ms: int | None = None
    examined = 0
    for message in messages:
        examined += 1
        try:
            destinations[from_backlog(message).path] += 1
        except (Undeliverable, ValueError, TypeError, AttributeError):
            # A message that somebody else has put there.
            destinations[UNNAMED] += 1
        at = message.enqueued_time_utc
        if at is not None:
            at_ms = round(at.timestamp() * _MS)
            oldest_ms = at_ms if oldest_ms is None else min(oldest_ms, at_ms)
    return Sample(destinations, oldest_ms, examined)


def merged(samples: Iterable[Sample]) -> Sample:
    """What the samples of several queues tell together."""
    destinations: Counter[str] = Counter()
    known: list[int] = []
    examined = 0
    for sample in samples:
        destinations += sample.destinations
        examined += sample.examined
        if sample.oldest_ms is not None:
            known.append(sample.oldest_ms)
    return Sample(destinations, min(known, default=None), examined)


def readers_of(connections: Iterable[Mapping[str, Any]], paths: Iterable[str]) -> dict[str, list[str]]:
    """The clients that receive from queues, by the path of the queue in lower case."""
    found: dict[str, list[str]] = {path.lower(): [] for path in paths}
    for connection in connections:
        for link in connection.get("links", ()):
            readers = found.get(str(link["address"]).lower())
            if readers is not None and link["role"] == "receiver":
                name = str(connection.get("client") or connection["connection"])
                if name not in readers:
                    readers.append(name)
    return found
