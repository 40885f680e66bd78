"""Backlog messages on their way, without a broker: a destination that is away holds up nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from duobus.spark.jobs.job import settings_of
from duobus.spark.jobs.syphon import OPTIONS, primary_of
from duobus.spark.jobs.work.syphon import DEAD_LETTERED, DELIVERED, HELD, SyphonTask, rows_of
from duobus.spark.sink.sender import Post, SendFailed

NOW_MS = 1_800_000_000_000
QUEUE = "main/x-servicebus-transfer/0"


class Sender:
    """Takes messages, unless it is away or dislikes one."""

    def __init__(self, town: Town, entity: str) -> None:
        self._town, self._entity = town, entity

    def create_message_batch(self, size: int | None = None) -> ServiceBusMessageBatch:
        return ServiceBusMessageBatch(size or 262_144)

    def send_messages(self, message: Any) -> None:
        if self._entity in self._town.away:
            raise self._town.fault
        messages = list(message._messages) if isinstance(message, ServiceBusMessageBatch) else [message]
        raws = [one.raw_amqp_message if isinstance(one, ServiceBusMessage) else one for one in messages]
        if any(raw.properties.subject == "bad" for raw in raws):
            raise ServiceBusError("no such thing", condition=b"amqp:not-allowed")
        self._town.got.setdefault(self._entity, []).extend(raws)


class Town:
    """Entities, what they got, and which are away."""

    def __init__(self, *away: str) -> None:
        self.away = set(away)
        self.fault: Exception = ServiceBusConnectionError(message="away")
        self.got: dict[str, list[Any]] = {}

    def post(self) -> Post:
        return Post(lambda entity: Sender(self, entity), lambda _: None)  # type: ignore[arg-type, return-value]


def columns(*rows: dict[str, Any]) -> dict[str, list[Any]]:
    base = {"body": b"x", "entity": QUEUE, "namespace": "second", "enqueued_time": 5, "message_id": None}
    names = [*base, "sequence_number", "subject", "session_id", "application_properties", "application_property_types"]
    filled = [{"sequence_number": number, **base, **row} for number, row in enumerate(rows)]
    return {name: [row.get(name) for row in filled] for name in names}


def to(path: str, **more: Any) -> dict[str, Any]:
    return {"application_properties": [("x-ms-path", path), *more.pop("marks", [])], **more}


def carried(there: Town, back: Town, *rows: dict[str, Any], counts_time: bool = False) -> SyphonTask:
    carrier = SyphonTask(there.post(), back.post(), NOW_MS, counts_time=counts_time, hold_ms=60_000)
    for row in rows_of(columns(*rows)):
        carrier.take(row)
    carrier.finish()
    return carrier


def outcomes(carrier: SyphonTask) -> list[tuple[int, str]]:
    return sorted((one.number, one.outcome) for one in carrier.outcomes)


def test_messages_reach_their_destinations_as_they_were_sent() -> None:
    there = Town()
    marks = [("x-ms-sessionid", "s"), ("x-ms-timetolive", str(90_000 * 10_000)), ("n", "5")]
    row = to("orders", marks=marks, application_property_types=[("x-ms-timetolive", "timespan"), ("n", "long")])
    carrier = carried(there, Town(), row)
    (message,) = there.got["orders"]
    assert message.properties.group_id == "s"
    assert message.header.time_to_live == 90_000
    assert message.application_properties == {"n": 5}
    assert message.properties.message_id.startswith("backlog/")
    assert outcomes(carrier) == [(0, DELIVERED)]


def test_an_id_of_the_sender_is_kept_and_one_that_is_made_is_the_same_each_time() -> None:
    first, second = Town(), Town()
    for town in (first, second):
        carried(town, Town(), to("a", message_id="own"), to("a"))
    ids = [[message.properties.message_id for message in town.got["a"]] for town in (first, second)]
    assert ids[0] == ids[1]
    assert ids[0][0] == "own"


def test_one_destination_that_is_away_does_not_block_the_rest() -> None:
    there, back = Town("dead"), Town()
    rows = [to("dead" if number % 2 else f"live{number % 3}") for number in range(40)]
    carrier = carried(there, back, *rows)
    assert outcomes(carrier) == [(number, HELD if number % 2 else DELIVERED) for number in range(40)]
    assert len(back.got[QUEUE]) == 20
    assert {one.annotations["x-opt-scheduled-enqueue-time"]["VALUE"] for one in back.got[QUEUE]} == {NOW_MS + 60_000}
    assert all(one.application_properties["x-ms-path"] == "dead" for one in back.got[QUEUE])
    assert "dead" not in there.got


@pytest.mark.parametrize(
    "fault",
    [
        ServiceBusAuthenticationError(),
        ServiceBusAuthorizationError(),
        MessagingEntityDisabledError(),
        ServiceBusError("new", condition=b"com.example:new"),
        ValueError("The handler has already been shutdown."),
        RuntimeError("a bug"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_what_its_owner_has_to_mend_keeps_messages_in_the_backlog_and_holds_up_nobody(fault: Exception) -> None:
    there = Town("mine")
    there.fault = fault
    carrier = carried(there, Town(), *(to("mine" if number % 2 else "other") for number in range(20)))
    assert outcomes(carrier) == [(number, HELD if number % 2 else DELIVERED) for number in range(20)]


def test_what_cannot_be_delivered_is_put_aside_and_its_neighbours_go_on() -> None:
    there = Town()
    rows = [to("a"), to("a", subject="bad"), to("a"), {"application_properties": [("other", "x")]}]
    carrier = carried(there, Town(), *rows)
    assert outcomes(carrier) == [(0, DELIVERED), (1, DEAD_LETTERED), (2, DELIVERED), (3, DEAD_LETTERED)]
    assert len(there.got["a"]) == 2
    reasons = {one.number: one.reason for one in carrier.outcomes if one.outcome == DEAD_LETTERED}
    assert reasons[1] == "CannotBeDelivered"
    assert reasons[3] == "Destination queue not indicated in message when fetched from backlog."


def test_a_time_to_live_that_ran_out_in_the_backlog_is_put_aside() -> None:
    marks = [("x-ms-timetolive", str(1_000 * 10_000)), ("x-duobus-divertedat", str(NOW_MS - 5_000))]
    types = [("x-ms-timetolive", "timespan"), ("x-duobus-divertedat", "long")]
    row = to("a", marks=marks, application_property_types=types)
    assert outcomes(carried(Town(), Town(), row, counts_time=True)) == [(0, DEAD_LETTERED)]
    assert outcomes(carried(Town(), Town(), row)) == [(0, DELIVERED)]


def test_nothing_is_settled_when_the_backlog_takes_nothing_back() -> None:
    with pytest.raises(SendFailed):
        carried(Town("dead"), Town(QUEUE), to("dead"))


def test_a_message_too_large_for_its_destination_is_put_aside() -> None:
    carrier = carried(Town(), Town(), to("a", body=b"x" * 300_000), to("a"))
    assert outcomes(carrier) == [(0, DEAD_LETTERED), (1, DELIVERED)]


def test_the_sdk_tries_as_often_again_at_the_primary_as_at_the_backlog() -> None:
    given = {"connectionStringEnv": "HERE", "toConnectionStringEnv": "THERE", "checkpoint": "x"}
    assert primary_of(settings_of(given, OPTIONS)).retries == 3
    assert primary_of(settings_of(given | {"retryTotal": "1"}, OPTIONS)).retries == 1
