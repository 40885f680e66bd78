"""What the syphon does for one backlog queue, step by step, without a broker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from duobus.ha.aio.syphon import SHORTEST_WAIT_S, Syphon, _batches, _Pump, _SyphonItem
from duobus.ha.events import SyphonFailed, SyphonSkipped

NOW_MS = 1_700_000_000_000


class Room:
    """A pump with its syphon around it."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.now_ms = 0
        client: Any = SimpleNamespace(fully_qualified_namespace="n")
        clock: Any = SimpleNamespace(now_ms=lambda: NOW_MS, monotonic_ms=lambda: self.now_ms)
        reporter: Any = SimpleNamespace(tell=self.told.append)
        self.syphon = Syphon(client, client, ["backlog"], clock=clock, reporter=reporter)
        self.pump = _Pump(self.syphon, "backlog")


def chunk(name: object = "m", seconds_ago: float | None = 5, **properties: Any) -> _SyphonItem:
    """A message of the backlog, as it was received and as it goes on."""
    at = None if seconds_ago is None else datetime.fromtimestamp(NOW_MS / 1000 - seconds_ago, UTC)
    received: Any = SimpleNamespace(enqueued_time_utc=at, name=name)
    key = properties.pop("key", None)
    annotations = None if key is None else {"x-opt-partition-key": key}
    message = AmqpAnnotatedMessage(data_body=b"x", annotations=annotations, properties=properties or None)
    return _SyphonItem(received, message)


def test_the_age_is_that_of_the_oldest_and_never_below_zero() -> None:
    pump = Room().pump
    assert pump._age_ms([chunk(seconds_ago=2), chunk(seconds_ago=9), chunk(seconds_ago=None)]) == 9_000
    assert pump._age_ms([chunk(seconds_ago=-9)]) == 0
    assert pump._age_ms([chunk(seconds_ago=None)]) == 0


def test_what_was_held_goes_back_when_its_destination_is_to_be_tried_again() -> None:
    room = Room()
    back: list[Any] = []

    async def abandon(received: Any) -> None:
        back.append(received.name)

    async def run() -> None:
        receiver: Any = SimpleNamespace(abandon_message=abandon)
        await room.pump._skip("q", [chunk(1), chunk(2)], ServiceBusServerBusyError())
        room.now_ms = room.syphon._retry_ms - 1
        await room.pump._give_back(receiver)
        assert back == []
        assert room.pump._wait_s() == SHORTEST_WAIT_S
        room.now_ms += 1
        await room.pump._give_back(receiver)
        assert back == [1, 2]
        await room.pump._give_back(receiver)
        assert back == [1, 2]

    asyncio.run(run())
    (skipped,) = room.told
    assert isinstance(skipped, SyphonSkipped)


def test_an_error_without_a_text_is_told_by_its_kind() -> None:
    room = Room()
    asyncio.run(room.pump._skip("q", [chunk()], TimeoutError()))
    asyncio.run(room.pump._skip("q", [chunk()], TimeoutError("too long")))
    assert ["TimeoutError" in repr(room.told[0]), "too long" in repr(room.told[1])] == [True, True]


def test_a_lock_that_was_lost_is_told_with_its_error() -> None:
    room = Room()

    async def complete(received: Any) -> None:
        if received.name == "lost":
            raise ValueError("the lock is gone")

    receiver: Any = SimpleNamespace(complete_message=complete)
    asyncio.run(room.pump._complete(receiver, "q", [chunk("kept"), chunk("lost")]))
    failed = [event for event in room.told if isinstance(event, SyphonFailed)]
    assert len(failed) == 1
    assert "the lock is gone" in repr(failed[0])


def test_messages_go_on_together_by_session_and_key() -> None:
    from azure.servicebus.amqp import AmqpMessageProperties

    def of(session: str | None) -> dict[str, Any]:
        return {} if session is None else AmqpMessageProperties(group_id=session)  # type: ignore[return-value]

    chunks = [chunk(1), chunk(2), chunk(3, key="k"), chunk(4)]
    chunks[1].message.properties = of("s")
    chunks[3].message.properties = of("s")
    found = [[one.received.name for one in batch] for batch in _batches(chunks)]
    assert found == [[1], [2, 4], [3]]
