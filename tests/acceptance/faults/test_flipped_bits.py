"""Bits that flip in a store's file while the broker is stopped (I57): quarantined and reported, never delivered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient
from kit_faults import FAULTY, SOUND, Outcomes, Rig, dead_letters

pytestmark = pytest.mark.timeout(60)


def flip(path: Path, marker: bytes, distance: int = 0) -> None:
    """Flip one bit of the only place where ``marker`` stands in a file, ``distance`` bytes behind its beginning."""
    data = bytearray(path.read_bytes())
    assert data.count(marker) == 1
    data[data.index(marker) + distance] ^= 1
    path.write_bytes(data)


def stopped(rig: Rig, fill: Callable[[ServiceBusClient], None]) -> None:
    """Run a broker for as long as ``fill`` takes; its store is in one file afterwards, without a log."""
    rig.process.start()
    with rig.client() as client:
        fill(client)
    assert rig.process.terminate() == 0
    log = rig.store_path.with_name("store-1.db-wal")
    assert not log.exists() or not log.stat().st_size


def reports(rig: Rig) -> list[str]:
    """What the log says of messages that cannot be read."""
    return [line["reason"] for line in rig.events() if line["event"] == "store lacks messages"]


@pytest.mark.parametrize("distance", [0, 40])
def test_a_message_with_a_flipped_bit_is_reported_and_the_others_are_delivered(tmp_path: Path, distance: int) -> None:
    rig, outcomes = Rig(tmp_path), Outcomes()

    def some(client: ServiceBusClient) -> None:
        with client.get_queue_sender(FAULTY) as sender:
            for _ in range(20):
                assert outcomes.send(sender)

    stopped(rig, some)
    victim = sorted(outcomes.acknowledged)[7]
    flip(rig.store_path, victim.encode(), distance)
    with rig.process, rig.client() as client:
        found = outcomes.drain(client, FAULTY)
        assert set(found) == outcomes.acknowledged - {victim}
        assert any("1 in 'sbemulatorns/faulty'" in text for text in reports(rig))
        assert rig.metric("duobus_store_quarantined", "1") == 1
        assert rig.metric("duobus_store_quarantined", "2") == 0
        assert rig.metric("duobus_messages", FAULTY, "active") == 0
        assert rig.metric("duobus_messages_bytes", FAULTY) == 0
    # What is known to be bad is not counted among the messages after the next start either.
    with rig.process, rig.client() as client:
        assert rig.metric("duobus_messages", FAULTY, "active") == 0
        with client.get_queue_sender(FAULTY) as sender:
            assert outcomes.send(sender)
        outcomes.drain(client, FAULTY)
    outcomes.acknowledged.remove(victim)
    outcomes.verify()


def test_a_delivered_and_a_dead_message_with_flipped_bits_are_reported_at_the_start(tmp_path: Path) -> None:
    rig, outcomes = Rig(tmp_path), Outcomes()
    seen: list[str] = []

    def some(client: ServiceBusClient) -> None:
        with client.get_queue_sender(FAULTY) as sender, client.get_queue_receiver(FAULTY) as receiver:
            for _ in range(6):
                assert outcomes.send(sender)
            while len(seen) < 4:
                for message in receiver.receive_messages(max_message_count=4 - len(seen), max_wait_time=2):
                    seen.append(outcomes.name_of(message))
                    if len(seen) <= 2:
                        receiver.dead_letter_message(message, reason="tried")
                    else:
                        receiver.abandon_message(message)

    stopped(rig, some)
    victims = {seen[0], seen[2]}
    for victim in victims:
        flip(rig.store_path, victim.encode())
    with rig.process, rig.client() as client:
        assert len(reports(rig)) >= 1
        assert rig.metric("duobus_store_quarantined", "1") == 2
        # One lies dead and one waits in the queue: neither is counted.
        assert rig.metric("duobus_messages", FAULTY, "dead-letter") == 1
        assert set(dead_letters(outcomes, client, FAULTY)) == {seen[1]}
        assert set(outcomes.drain(client, FAULTY)) == outcomes.acknowledged - {*victims, seen[1]}
        assert rig.metric("duobus_messages", FAULTY, "active") == 0
        assert rig.metric("duobus_messages", FAULTY, "dead-letter") == 0
        assert rig.metric("duobus_messages_bytes", FAULTY) == 0
    outcomes.acknowledged -= victims
    outcomes.verify()


def test_a_deferred_message_with_a_flipped_bit_is_not_found_and_others_are(tmp_path: Path) -> None:
    rig, outcomes = Rig(tmp_path), Outcomes()
    deferred: dict[str, int] = {}

    def some(client: ServiceBusClient) -> None:
        with client.get_queue_sender(FAULTY) as sender, client.get_queue_receiver(FAULTY) as receiver:
            for _ in range(2):
                assert outcomes.send(sender)
            while len(deferred) < 2:
                for message in receiver.receive_messages(max_message_count=2, max_wait_time=2):
                    deferred[outcomes.name_of(message)] = message.sequence_number
                    receiver.defer_message(message)

    stopped(rig, some)
    victim, healthy = deferred
    flip(rig.store_path, victim.encode())
    with rig.process, rig.client() as client, client.get_queue_receiver(FAULTY) as receiver:
        assert rig.metric("duobus_messages", FAULTY, "deferred") == 1
        with pytest.raises(Exception, match=r"(?i)not.?found"):
            receiver.receive_deferred_messages([deferred[victim]])
        (back,) = receiver.receive_deferred_messages([deferred[healthy]])
        assert outcomes.name_of(back) == healthy
        receiver.complete_message(back)
        assert rig.metric("duobus_messages", FAULTY, "deferred") == 0


def test_a_damaged_first_page_closes_one_store_and_leaves_the_others(tmp_path: Path) -> None:
    rig, outcomes = Rig(tmp_path), Outcomes()

    def some(client: ServiceBusClient) -> None:
        for queue in (FAULTY, SOUND):
            with client.get_queue_sender(queue) as sender:
                assert outcomes.send(sender)

    stopped(rig, some)
    healthy = rig.store_path.read_bytes()
    flip(rig.store_path, b"SQLite format 3", 2)
    with rig.process, rig.client() as client:
        assert not rig.is_available(1)
        assert any(line["event"] == "store failed" for line in rig.events())
        with client.get_queue_sender(FAULTY) as sender:
            assert not outcomes.send(sender)
        assert len(outcomes.drain(client, SOUND)) == 1
    rig.store_path.write_bytes(healthy)
    with rig.process, rig.client() as client:
        outcomes.drain(client, FAULTY)
    outcomes.verify()
