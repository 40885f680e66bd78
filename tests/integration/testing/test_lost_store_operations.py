"""What clients get of entities while a store is away: definite errors in time, and the rest as ever (I9, I28, PE4)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import ServiceBusError

from duobus.testing.drills import Drill
from duobus.testing.namespace import Namespace

#: What a definite answer may take, seconds: the time that a store is waited for, and a busy machine.
ANSWER_S = 15.0
NEXT_DAY = timedelta(days=1)


class Scene(NamedTuple):
    """Links that were opened, and messages that were received, while all was well."""

    client: ServiceBusClient
    sender: Any
    receiver: Any
    locked: Any
    deferred: int
    scheduled: int
    session: Any
    in_session: Any


def take(receiver: Any) -> Any:
    (message,) = receiver.receive_messages(max_wait_time=20)
    return message


@pytest.fixture
def scene(duobus_namespace: Namespace, duobus_drill: Drill) -> Iterator[Scene]:
    """A plain queue and one with sessions, both in the store that then fails."""
    names = [f"{kind}-{number}" for kind in ("plain", "sessions") for number in (1, 2)]
    for name in names:
        duobus_namespace.create_queue(name, requires_session=name.startswith("sessions"))
    homes = {name: duobus_drill.fragments(duobus_namespace.name, name)[0] for name in names}
    sick = homes["plain-1"]
    sessions = next(name for name in names if name.startswith("sessions") and homes[name] == sick)
    with ServiceBusClient.from_connection_string(duobus_namespace.connection_string, retry_total=0) as client:
        with client.get_queue_sender(sessions) as sender:
            sender.send_messages(ServiceBusMessage("in a session", session_id="s"))
        with (
            client.get_queue_sender("plain-1") as sender,
            client.get_queue_receiver("plain-1") as receiver,
            client.get_queue_receiver(sessions, session_id="s") as session,
        ):
            sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
            deferred = take(receiver)
            receiver.defer_message(deferred)
            (scheduled,) = sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + NEXT_DAY)
            made = Scene(client, sender, receiver, take(receiver), deferred.sequence_number, scheduled, session, None)
            made = made._replace(in_session=take(session))
            duobus_drill.fail(sick)
            with pytest.raises(ServiceBusError):
                sender.send_messages(ServiceBusMessage("meets it"))
            assert duobus_drill.stores()[sick] != "open"
            yield made


def browse(scene: Scene) -> None:
    with scene.client.get_queue_receiver("plain-1") as fresh:
        fresh.peek_messages()


def accept(scene: Scene) -> None:
    with scene.client.get_queue_receiver(scene.session.entity_path, session_id="another") as fresh:
        fresh.session.get_state()


OPERATIONS: dict[str, Callable[[Scene], Any]] = {
    "send": lambda scene: scene.sender.send_messages(ServiceBusMessage("m"), timeout=16),
    "send-batch": lambda scene: scene.sender.send_messages([ServiceBusMessage("m"), ServiceBusMessage("n")]),
    "schedule": lambda scene: scene.sender.schedule_messages(ServiceBusMessage("m"), datetime.now(UTC) + NEXT_DAY),
    "cancel": lambda scene: scene.sender.cancel_scheduled_messages(scene.scheduled),
    "peek": browse,
    "deferred": lambda scene: scene.receiver.receive_deferred_messages(scene.deferred),
    "complete": lambda scene: scene.receiver.complete_message(scene.locked),
    "abandon": lambda scene: scene.receiver.abandon_message(scene.locked),
    "defer": lambda scene: scene.receiver.defer_message(scene.locked),
    "dead-letter": lambda scene: scene.receiver.dead_letter_message(scene.locked, reason="r"),
    "renew": lambda scene: scene.receiver.renew_message_lock(scene.locked),
    "accept-session": accept,
    "session-state": lambda scene: scene.session.session.get_state(),
    "set-session-state": lambda scene: scene.session.session.set_state(b"state"),
    "renew-session": lambda scene: scene.session.session.renew_lock(),
    "complete-in-session": lambda scene: scene.session.complete_message(scene.in_session),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_a_plain_queue_whose_store_is_away_has_a_definite_error_in_time(
    name: str, scene: Scene
) -> None:
    began_s = time.monotonic()
    with pytest.raises(ServiceBusError) as refused:
        OPERATIONS[name](scene)
    assert time.monotonic() - began_s < ANSWER_S
    assert str(refused.value)


def test_a_receive_from_a_queue_whose_store_is_away_ends_empty_when_it_said_so(scene: Scene) -> None:
    began_s = time.monotonic()
    assert scene.receiver.receive_messages(max_wait_time=1) == []
    assert time.monotonic() - began_s < ANSWER_S


@pytest.mark.parametrize("how", ["fail", "stall"])
def test_receivers_go_on_with_the_other_fragments_and_wait_for_none_that_is_away(
    duobus_namespace: Namespace, duobus_drill: Drill, how: str
) -> None:
    duobus_namespace.create_queue("spread", enable_partitioning=True)
    homes = duobus_drill.fragments(duobus_namespace.name, "spread")
    wanted: set[str] = set()
    removing = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with (
        ServiceBusClient.from_connection_string(duobus_namespace.connection_string, retry_total=0) as client,
        client.get_queue_sender("spread") as sender,
        client.get_queue_receiver("spread", receive_mode=removing) as before,
    ):
        for number in range(40):
            sender.send_messages(ServiceBusMessage(str(number), partition_key=str(number)))
        for message in before.peek_messages(100):
            if homes[message.sequence_number >> 48] == 1:
                wanted.add(str(message))
        assert 0 < len(wanted) < 40
        {"fail": duobus_drill.fail, "stall": duobus_drill.stall}[how](2)
        refused = 0
        for number in range(40, 56):
            began_s = time.monotonic()
            try:
                sender.send_messages(ServiceBusMessage(str(number), partition_key=str(number)), timeout=16)
                wanted.add(str(number))
            except ServiceBusError:
                refused += 1
            # Stored or refused, for good, long before the client gives up.
            assert time.monotonic() - began_s < ANSWER_S
        assert 0 < refused < 16
        assert duobus_drill.stores() == {1: "open", 2: "failed"}
        found: set[str] = set()
        with client.get_queue_receiver("spread", receive_mode=removing) as after:
            began_s = time.monotonic()
            for receiver in (before, after):
                found |= {str(message) for message in receiver.receive_messages(len(wanted) // 2, max_wait_time=5)}
            while len(found) < len(wanted) and time.monotonic() - began_s < ANSWER_S:
                found |= {str(message) for message in after.receive_messages(100, max_wait_time=1)}
            assert time.monotonic() - began_s < ANSWER_S
        assert found == wanted
