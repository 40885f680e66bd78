"""Claims over the wire: an extension of this broker, which no SDK has."""

from __future__ import annotations

import struct
import threading
import time
from typing import Any

import pytest
from kit_bus import KEY, LISTEN_ONLY, SEND_ONLY, Bus
from test_raw_deliveries import filled, management
from test_raw_sessions import sent

from duobus.codec import Array, Int
from duobus.model.access_rules import sign_token
from kits.raw_client import RawClient

KINDS = pytest.mark.parametrize("kind", ["plain", "partitioned"])


def ask(raw: RawClient, node: str, operation: str, **members: Any) -> tuple[int, dict[str, Any], Any]:
    """Ask for an operation on claims: (status, application properties, body)."""
    body = {name.replace("_", "-"): value for name, value in members.items()}
    properties, answer, _ = raw.request(f"{node}/$management", {"operation": f"duobus:{operation}"}, body)
    return int(properties["statusCode"]), properties, answer


def numbers(answer: Any) -> list[int]:
    """The sequence numbers that a claim tells."""
    found: list[int] = []
    for part in answer["fragments"]:
        for first, length in struct.iter_unpack(">QI", part["numbers"]):
            found += [part["fragment"] << 48 | count for count in range(first, first + length)]
    return found


@KINDS
def test_a_claim_hides_messages_from_all_others_until_it_is_settled(bus: Bus, raw: RawClient, kind: str) -> None:
    queue = bus.queue(kind)
    filled(raw, queue, 20)
    status, _, answer = ask(raw, queue, "claim", claim_id="c", max_count=12)
    assert (status, answer["message-count"], answer["available-count"]) == (200, 12, 8)
    assert ask(raw, queue, "claim", claim_id="c", max_count=20)[2] == answer
    status, _, peeked = management(raw, queue, "peek-message", {"from-sequence-number": 0, "message-count": Int(50)})
    assert (status, len(peeked["messages"])) == (200, 20)
    link = raw.receiver(queue)
    link.grant(20)
    assert len(raw.receive(link, 8)) == 8
    assert ask(raw, queue, "list-claims")[2]["claims"] == [
        {"claim-id": "c", "message-count": 12, "size": answer["size"]}
    ]
    told = Array(Int, [part["fragment"] for part in answer["fragments"]])
    settled = ask(raw, queue, "settle-claim", claim_id="c", fragments=told)
    assert settled[2] == {"message-count": 12, "returned-count": 0, "locked-count": 0}
    assert ask(raw, queue, "settle-claim", claim_id="c", fragments=told)[2]["message-count"] == 0
    assert ask(raw, queue, "list-claims")[2]["claims"] == []


def test_sizes_and_delivery_counts_are_packed(bus: Bus, raw: RawClient) -> None:
    queue = bus.queue()
    filled(raw, queue, 3)
    part = ask(raw, queue, "claim", claim_id="c", max_count=3)[2]["fragments"][0]
    assert struct.unpack(">QI", part["numbers"])[1] == 3
    sizes = struct.unpack(">3I", part["sizes"])
    assert len(set(sizes)) == 1
    assert struct.unpack(">II", part["delivery-counts"]) == (0, 3)
    assert ask(raw, queue, "release-claim", claim_id="c")[2] == {"message-count": 3, "locked-count": 0}
    part = ask(raw, queue, "claim", claim_id="d", max_count=3, max_bytes=sizes[0] + 1)[2]["fragments"][0]
    assert struct.unpack(">II", part["delivery-counts"]) == (1, 2)


def test_messages_of_a_claim_that_was_not_told_are_given_back(bus: Bus, raw: RawClient) -> None:
    queue = bus.queue()
    filled(raw, queue, 3)
    ask(raw, queue, "claim", claim_id="c", max_count=2)
    settled = ask(raw, queue, "settle-claim", claim_id="c", fragments=Array(Int, []))
    assert settled[2] == {"message-count": 0, "returned-count": 2, "locked-count": 0}
    assert len(numbers(ask(raw, queue, "claim", claim_id="d", max_count=3)[2])) == 3


def test_a_claim_waits_for_messages(bus: Bus, raw: RawClient) -> None:
    queue = bus.queue()
    begun = time.monotonic()
    assert ask(raw, queue, "claim", claim_id="c", max_count=2, max_wait=300)[2]["message-count"] == 0
    assert time.monotonic() - begun >= 0.3

    def send() -> None:
        with RawClient(bus.port) as other:
            other.put_token("", sign_token("sb://localhost/", SEND_ONLY, KEY, int(time.time()) + 600))
            filled(other, queue, 2)

    sending = threading.Timer(0.3, send)
    sending.start()
    begun = time.monotonic()
    answer = ask(raw, queue, "claim", claim_id="c", max_count=5, min_count=2, max_wait=20_000)[2]
    assert answer["message-count"] == 2
    assert time.monotonic() - begun < 15
    sending.join()


@pytest.mark.parametrize(
    ("members", "condition"),
    [
        ({"max_count": 5}, "com.microsoft:argument-error"),
        ({"claim_id": "", "max_count": 5}, "com.microsoft:argument-error"),
        ({"claim_id": "c" * 129, "max_count": 5}, "com.microsoft:argument-error"),
        ({"claim_id": "c"}, "com.microsoft:argument-error"),
        ({"claim_id": "c", "max_count": 20_001}, "com.microsoft:argument-out-of-range"),
        ({"claim_id": "c", "max_count": 1, "max_bytes": 0}, "com.microsoft:argument-out-of-range"),
        ({"claim_id": "c", "max_count": 1, "max_wait": 60_001}, "com.microsoft:argument-out-of-range"),
    ],
)
def test_a_claim_out_of_bounds_is_refused(bus: Bus, raw: RawClient, members: dict[str, Any], condition: str) -> None:
    queue = bus.queue()
    filled(raw, queue, 1)
    status, properties, _ = ask(raw, queue, "claim", **members)
    assert (status, properties["errorCondition"]) == (400, condition)
    assert ask(raw, queue, "list-claims")[2]["claims"] == []


@pytest.mark.parametrize(("rights", "status"), [(LISTEN_ONLY, 200), (SEND_ONLY, 401)])
def test_claims_need_the_right_to_listen(bus: Bus, rights: str, status: int) -> None:
    queue = bus.queue()
    with RawClient(bus.port) as raw:
        raw.put_token("", sign_token("sb://localhost/", rights, KEY, int(time.time()) + 600))
        for operation in ("claim", "settle-claim", "release-claim", "list-claims"):
            assert ask(raw, queue, operation, claim_id="c", max_count=1)[0] == status


def test_an_entity_that_requires_sessions_refuses_claims_and_its_dead_letters_do_not(bus: Bus, raw: RawClient) -> None:
    queue = bus.queue("sessions")
    sent(raw, queue, "s", b"m")
    status, properties, _ = ask(raw, queue, "claim", claim_id="c", max_count=1)
    assert (status, properties["errorCondition"]) == (400, "amqp:not-allowed")
    assert ask(raw, f"{queue}/$DeadLetterQueue", "claim", claim_id="c", max_count=1)[0] == 200
