"""A broker that is stopped for seconds and goes on: no double locks, and clients go on too."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit_faults import FAULTY, HASTY, Outcomes, Rig, until

from duobus.amqp import ACCEPTED, Dispositions, Link, Rejected, Transfers
from duobus.codec import build_message, scan
from kits.raw_client import RawClient, token

pytestmark = pytest.mark.timeout(60)

#: The shortest lock that there is; with what the clocks of two processes differ by.
LOCK_S, MARGIN_S = 5.0, 0.3


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A running broker."""
    made = Rig(tmp_path)
    with made.process:
        yield made


def raw_client(rig: Rig) -> RawClient:
    """A frame-level client with all rights."""
    client = RawClient(int(rig.process.ready["amqp_port"]))
    assert client.put_token("", token(""))[0] == 202
    return client


def outcome(client: RawClient, link: Link, delivery_id: int) -> Any:
    """What the broker answered to a message sent on a link, or to the settlement of one received on it."""

    def is_meant(event: Dispositions) -> bool:
        known = event.session is link.session and event.role is link.is_sender
        return known and any(first <= delivery_id <= last for first, last, _, _ in event.ranges)

    found = client.wait(Dispositions, where=is_meant)
    return next(state for first, last, _, state in found.ranges if first <= delivery_id <= last)


def frozen_for(rig: Rig, seconds: float) -> None:
    """Let real time pass over a stopped broker: nothing else makes its lock end while it cannot look."""
    started = time.monotonic()
    rig.process.freeze()
    try:
        until(lambda: time.monotonic() - started >= seconds)
    finally:
        rig.process.thaw()


def test_locks_that_end_while_the_broker_is_stopped_are_never_held_twice(rig: Rig) -> None:
    with raw_client(rig) as early, raw_client(rig) as late, raw_client(rig) as other:
        sender = early.sender(HASTY)
        for body in (b"one", b"two"):
            assert outcome(early, sender, early.send(sender, build_message(data=body))) is ACCEPTED
        holders = [(client, client.receiver(HASTY)) for client in (early, late)]
        held = []
        for client, link in holders:
            link.grant(1)
            held += client.receive(link, 1)
        waiting = other.receiver(HASTY)
        waiting.grant(10)
        other.flush()
        assert other.nothing_more(Transfers, 0.1)
        rig.process.freeze()
        # One settles in time, as far as it knows, the other when it is woken up; the broker sees both too late.
        holders[0][1].session.disposition(True, held[0][0], held[0][0], ACCEPTED, False)
        early.flush()
        frozen_for(rig, LOCK_S + MARGIN_S)
        holders[1][1].session.disposition(True, held[1][0], held[1][0], ACCEPTED, False)
        late.flush()
        for (client, link), (delivery_id, _) in zip(holders, held, strict=True):
            answer = outcome(client, link, delivery_id)
            assert isinstance(answer, Rejected)
            assert answer.error is not None
            assert answer.error.condition == "com.microsoft:message-lock-lost"
        again = other.receive(waiting, 2)
        bare = sorted(payload[scan(payload).bare :] for _, payload in again)
        assert bare == sorted(payload[scan(payload).bare :] for _, payload in held)
        for delivery_id, _ in again:
            waiting.session.disposition(True, delivery_id, delivery_id, ACCEPTED, False)
            assert outcome(other, waiting, delivery_id) is ACCEPTED
        assert other.nothing_more(Transfers, 0.2)
    assert rig.metric("duobus_messages", HASTY, "active") == 0


def test_sdk_clients_go_on_over_a_broker_that_stood_still(rig: Rig) -> None:
    outcomes = Outcomes()
    with rig.client(retry_total=3) as client, client.get_queue_sender(FAULTY) as sender:
        assert outcomes.send(sender)
        opened = rig.metric("duobus_connections_opened")
        answers: list[bool] = []

        def send_on() -> None:
            answers.extend(outcomes.send(sender) for _ in range(5))

        rig.process.freeze()
        thread = threading.Thread(target=send_on)
        thread.start()
        frozen_for(rig, 2)
        thread.join(60)
        assert answers == [True] * 5
        assert rig.metric("duobus_connections_opened") == opened
        outcomes.drain(client, FAULTY)
    outcomes.verify()
