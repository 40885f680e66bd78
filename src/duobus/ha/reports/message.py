"""Reports of paired clients as messages, and the wish of an operator that an entity counts as healthy again.

Both are messages of one queue of the secondary. Nobody receives them: readers peek, and every message expires by itself
after a few minutes, so that the queue holds what is true now, however many read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from azure.servicebus import ServiceBusMessage

#: A report is made at each change and after this time without one; seconds.
REPORT_S: Final = 60.0
#: A report is true for a little longer than until the next two.
_REPORT_LIFE: Final = timedelta(seconds=150)
#: For how long clients find a wish, which they look for while something is away.
_WISH_LIFE: Final = timedelta(minutes=2)
#: Entities that one report names; of more, the number is told.
ENTITIES_MAX: Final = 200
#: A body that is longer is none of these messages.
BODY_BYTES_MAX: Final = 256 * 1024
_TEXT_MAX: Final = 1_024
_REPORT: Final = "duobus-pair-state"
_WISH: Final = "duobus-pair-mark-healthy"


class EntityState(NamedTuple):
    """The state of an entity, or of some of its keys, as one client sees it.

    Attributes:
        entity: Path in the primary.
        fragment: ``13/16`` for the keys of fragment 13 of 16; empty for the whole entity.
        state: ``suspect`` or ``failed over``; an entity that no report names is healthy.
    """

    entity: str
    fragment: str
    state: str


class Report(NamedTuple):
    """What one client has reported.

    Attributes:
        client: An id that the client keeps while it lives.
        at_ms: When, by the client's clock, in ms since 1970.
        entities: What is not healthy.
        left_out: How many more entities are not healthy.
        resting: Backlog queues that the client leaves alone because they have failed.
    """

    client: str
    at_ms: int
    entities: tuple[EntityState, ...]
    left_out: int
    resting: int


def state_queue(primary_name: str) -> str:
    """Path of the queue in the secondary: ``contoso/x-duobus-pair-state``."""
    return f"{primary_name}/x-duobus-pair-state"


def report_of(client: str, at_ms: int, states: Iterable[EntityState], resting: int) -> Report:
    """A report that names as many entities as fit, in the order of their paths."""
    ordered = sorted(states)
    return Report(client, at_ms, tuple(ordered[:ENTITIES_MAX]), max(0, len(ordered) - ENTITIES_MAX), resting)


def report_message(report: Report) -> ServiceBusMessage:
    """A report as a message."""
    body = {
        "client": report.client,
        "atMs": report.at_ms,
        "entities": [one._asdict() for one in report.entities],
        "leftOut": report.left_out,
        "resting": report.resting,
    }
    return _message(_REPORT, body, _REPORT_LIFE)


def wish_message(entity: str) -> ServiceBusMessage:
    """The wish that all clients take an entity for healthy, as a message."""
    return _message(_WISH, {"entity": entity}, _WISH_LIFE)


def _message(subject: str, body: Mapping[str, Any], life: timedelta) -> ServiceBusMessage:
    text = json.dumps(body, ensure_ascii=False)
    return ServiceBusMessage(text, subject=subject, content_type="application/json", time_to_live=life)


def read_report(message: Any) -> Report | None:
    """The report in a message; None when the message is something else."""
    body = _body_of(message, _REPORT)
    if body is None:
        return None
    try:
        entities = tuple(
            EntityState(_text(one["entity"]), _text(one["fragment"]), _text(one["state"]))
            for one in list(body["entities"])[:ENTITIES_MAX]
        )
        left_out, resting = max(0, int(body["leftOut"])), max(0, int(body["resting"]))
        return Report(_text(body["client"]), int(body["atMs"]), entities, left_out, resting)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def read_wish(message: Any) -> str | None:
    """The entity that somebody wants to count as healthy; None when the message is something else."""
    body = _body_of(message, _WISH)
    entity = None if body is None else body.get("entity")
    return entity if isinstance(entity, str) and entity else None


def _body_of(message: Any, subject: str) -> dict[str, Any] | None:
    if message.subject != subject:
        return None
    try:
        raw = b"".join(message.body)
        body = json.loads(raw) if len(raw) <= BODY_BYTES_MAX else None
    except (TypeError, ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value[:_TEXT_MAX]


def latest(reports: Iterable[Report]) -> list[Report]:
    """The last report of each client, by the ids of the clients."""
    found: dict[str, Report] = {}
    for report in reports:
        before = found.get(report.client)
        if before is None or report.at_ms >= before.at_ms:
            found[report.client] = report
    return [found[client] for client in sorted(found)]


def states_of(reports: Iterable[Report]) -> dict[str, Any]:
    """What the last reports of all clients say together.

    An entity that no report names is healthy for every client. The entities come in order: those first that most
    clients have given up.
    """
    last = latest(reports)
    entities: dict[tuple[str, str], dict[str, Any]] = {}
    for report in last:
        for one in report.entities:
            about = {"entity": one.entity, "fragment": one.fragment, "failed_over": 0, "suspect": 0}
            found = entities.setdefault((one.entity, one.fragment), about)
            found["failed_over" if one.state == "failed over" else "suspect"] += 1
    ordered = sorted(
        entities.values(), key=lambda one: (-one["failed_over"], -one["suspect"], one["entity"], one["fragment"])
    )
    return {
        "clients": len(last),
        "entities": ordered,
        "left_out": max((report.left_out for report in last), default=0),
        "latest_ms": max((report.at_ms for report in last), default=None),
    }
