"""What a partitioned queue over the stores of two servers has, at every server, with the official SDK (PE1, PE10)."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError, SessionCannotBeLockedError
from kit_cluster import Cluster, running_cluster, take, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # The SDK leaves the sockets of a server that was killed to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two servers with two stores each."""
    with running_cluster(tmp_path_factory.mktemp("features"), servers=2, stores=4) as found:
        found.await_served()
        yield found


def test_a_session_is_accepted_at_any_server_and_held_once(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue("named", enable_partitioning=True, requires_session=True)
    names = [f"s{number}" for number in range(8)]
    with (
        pair.client(0) as first,
        pair.client(1) as second,
        # Those that are refused would try again for eleven seconds each.
        pair.client(0, retry_total=0) as first_once,
        pair.client(1, retry_total=0) as second_once,
    ):
        with first.get_queue_sender("named") as sender:
            for name in names:
                sender.send_messages([ServiceBusMessage(f"{name}-{count}", session_id=name) for count in range(3)])
        fragments = set()
        for turn, name in enumerate(names):
            here, there, there_once = (first, second, second_once) if turn % 2 else (second, first, first_once)
            with here.get_queue_receiver("named", session_id=name) as receiver:
                assert receiver.session.session_id == name
                with pytest.raises(SessionCannotBeLockedError):
                    there_once.get_queue_receiver("named", session_id=name).__enter__()
                receiver.session.set_state(f"state of {name}")
                assert receiver.session.get_state() == f"state of {name}".encode()
                assert receiver.session.renew_lock() > datetime.now(UTC)
                found = take(receiver, 3)
                assert [str(message) for message in found] == [f"{name}-{count}" for count in range(3)]
                fragments.add(found[0].sequence_number >> 48)  # type: ignore[attr-defined]
                assert [str(one) for one in receiver.peek_messages(10, sequence_number=1)] == [
                    f"{name}-{count}" for count in range(3)
                ]
                receiver.defer_message(found[0])  # type: ignore[arg-type]
                receiver.complete_message(found[1])  # type: ignore[arg-type]
                receiver.dead_letter_message(found[2], reason="because")  # type: ignore[arg-type]
                (deferred,) = receiver.receive_deferred_messages(found[0].sequence_number)  # type: ignore[attr-defined]
                receiver.complete_message(deferred)
            with there.get_queue_receiver("named", session_id=name) as receiver:
                assert receiver.session.get_state() == f"state of {name}".encode()
        assert len(fragments) > 1
        with first.get_queue_receiver("named", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            for message in take(dead, 8):
                dead.complete_message(message)  # type: ignore[arg-type]


def test_the_next_available_session_comes_from_whichever_server_has_one(pair: Cluster) -> None:
    with pair.admin(1) as admin:
        admin.create_queue("next", enable_partitioning=True, requires_session=True)
    names = {f"s{number}" for number in range(12)}
    with pair.client(0) as bus, bus.get_queue_sender("next") as sender:
        for name in sorted(names):
            sender.send_messages(ServiceBusMessage(name, session_id=name))
        found = set()
        for turn in range(12):
            with (
                pair.client(turn % 2) as other,
                other.get_queue_receiver("next", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=30) as receiver,
            ):
                (message,) = take(receiver, 1)
                assert str(message) == receiver.session.session_id
                found.add(str(message))
                receiver.complete_message(message)  # type: ignore[arg-type]
        assert found == names
        for server in pair.servers:
            with pair.client(server, retry_total=0) as other, pytest.raises(OperationTimeoutError):
                other.get_queue_receiver("next", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1).__enter__()


def test_a_duplicate_is_dropped_whichever_server_gets_it(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue("once", enable_partitioning=True, requires_duplicate_detection=True)
    for server in (0, 1, 0):
        with pair.client(server) as bus, bus.get_queue_sender("once") as sender:
            for number in range(20):
                sender.send_messages(ServiceBusMessage(str(number), message_id=f"id-{number}"))
            sender.send_messages([ServiceBusMessage("key", message_id="id-k", partition_key="k")])
    with pair.client(1) as bus, bus.get_queue_receiver("once") as receiver:
        found = take(receiver, 21)
        assert sorted(str(message) for message in found) == sorted([*map(str, range(20)), "key"])
        assert len({message.sequence_number >> 48 for message in found}) > 4  # type: ignore[attr-defined]
        assert receiver.receive_messages(1, max_wait_time=1) == []


def test_messages_are_forwarded_from_it_and_to_it_each_once(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue("last", enable_partitioning=True, requires_duplicate_detection=True)
        admin.create_queue("middle", forward_to="last")
        admin.create_queue("whole", enable_partitioning=True, forward_to="middle")
        admin.create_queue("topmost", forward_to="whole")
    with pair.client(1) as bus, bus.get_queue_sender("topmost") as sender:
        for start in range(0, 60, 20):
            sender.send_messages([ServiceBusMessage(str(number)) for number in range(start, start + 20)])
    with pair.client(0) as bus, bus.get_queue_receiver("last") as receiver:
        found = take(receiver, 60)
        assert sorted(int(str(message)) for message in found) == list(range(60))
        for message in found:
            receiver.complete_message(message)  # type: ignore[arg-type]
        assert receiver.receive_messages(1, max_wait_time=1) == []


def test_all_servers_give_its_numbers_its_own_name_and_their_sum_is_all_of_it(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue("counted", enable_partitioning=True)
    with pair.client(0) as bus, bus.get_queue_sender("counted") as sender:
        for number in range(40):
            sender.send_messages(ServiceBusMessage("text", partition_key=f"key {number}"))
    waiting, fragments = [], []
    for server in pair.servers:
        with urllib.request.urlopen(f"{pair.http(server)}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        assert "~share" not in text
        waiting += re.findall(r'^duobus_messages{entity="counted",.*,state="active"} (.*)$', text, re.MULTILINE)
        fragments += re.findall(r'^duobus_fragment_available{entity="counted",fragment="(\d+)".* 1\.0$', text, re.M)
    # A server tells of what its own stores have.
    assert len(waiting) == 2
    assert sum(map(float, waiting)) == 40
    assert all(map(float, waiting))
    assert sorted(map(int, fragments)) == list(range(16))


def test_a_killed_owner_takes_its_sessions_along_for_seconds_only(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue("kept", enable_partitioning=True, requires_session=True)
    names = [f"s{number}" for number in range(8)]
    with pair.client(0) as bus, bus.get_queue_sender("kept") as sender:
        for name in names:
            sender.send_messages([ServiceBusMessage(f"{name}-{count}", session_id=name) for count in range(2)])
    pair.kill(1)
    try:
        with pair.client(0, retry_total=0) as bus:
            left = list(names)

            def accept() -> bool:
                try:
                    with bus.get_queue_receiver("kept", session_id=left[0]) as receiver:
                        found = take(receiver, 2)
                        assert [str(message) for message in found] == [f"{left[0]}-{count}" for count in range(2)]
                        for message in found:
                            receiver.complete_message(message)  # type: ignore[arg-type]
                except ServiceBusError:
                    return False
                left.pop(0)
                return not left

            until(accept)
    finally:
        pair.start(1)
        pair.await_ready(1)
        pair.await_served()
