"""What a stream asks a broker for that claims, request by request, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusServerBusyError

from duobus.gateway.amqp.management.claim_operations import pack_counts
from duobus.spark.claims import broker_claims
from duobus.spark.claims.broker_claims import MESSAGES_MAX, BrokerClaims, Unsupported, taken_of
from duobus.spark.offsets import ClaimOffset, Key

OFFSET = ClaimOffset("here", 4, stream="name")


class Broker:
    """Answers requests about claims; each entity has messages 1, 2, 3 and so on of 10 bytes in fragment 2."""

    def __init__(self, clock: Any, **waiting: int) -> None:
        self.clock = clock
        self.waiting = waiting
        self.next = dict.fromkeys(waiting, 1)
        self.claims: dict[tuple[str, str], list[int]] = {}
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.refuses: set[str] = set()
        self.settled_at: list[str] = []
        self.away: list[list[int]] = []

    @contextmanager
    def settler(self, key: Key) -> Iterator[Any]:
        self.settled_at.append(key.entity)
        with self.reader(key) as receiver:
            yield receiver

    @contextmanager
    def reader(self, key: Key) -> Iterator[Any]:
        def request(name: bytes, body: dict[str, Any], callback: Any) -> Any:
            operation = name.decode().removeprefix("duobus:")
            self.asked.append((key.entity, operation, body))
            status = 501 if key.entity in self.refuses else 200
            value = None if status == 501 else getattr(self, operation.replace("-", "_"))(key.entity, body)
            answer = SimpleNamespace(value=value, application_properties={})
            return callback(status, answer, b"", amqp_transport=None)

        yield SimpleNamespace(_check_live=lambda: None, _mgmt_request_response_with_retry=request)

    def claim(self, entity: str, body: dict[str, Any]) -> dict[bytes, Any]:
        name = entity, body["claim-id"]
        if name not in self.claims and body["max-count"]:
            if not self.waiting[entity]:
                self.clock.pass_ms(body["max-wait"])
            number = min(self.waiting[entity], body["max-count"], -(-body["max-bytes"] // 10))
            self.waiting[entity] -= number
            if number:
                self.claims[name] = list(range(self.next[entity], self.next[entity] + number))
                self.next[entity] += number
        found = self.claims.get(name, [])
        if self.away and (away := self.away.pop(0)):
            return {b"fragments": [], b"size": 0, b"unavailable": away}
        if not found:
            return {b"fragments": [], b"size": 0, b"available-count": self.waiting[entity]}
        part = {
            b"fragment": 2,
            b"numbers": pack_counts(found),
            b"delivery-counts": (3).to_bytes(4, "big") + len(found).to_bytes(4, "big"),
        }
        told = {b"oldest-enqueued-time": 1_000 + found[0], b"available-count": self.waiting[entity]}
        return {b"fragments": [part], b"size": 10 * len(found), **told}

    def list_claims(self, entity: str, body: dict[str, Any]) -> dict[bytes, Any]:
        prefix = body.get("prefix", "")
        found = [claim_id for at, claim_id in self.claims if at == entity and claim_id.startswith(prefix)]
        return {b"claims": [{b"claim-id": claim_id.encode()} for claim_id in sorted(found)]}

    def settle_claim(self, entity: str, body: dict[str, Any]) -> dict[bytes, Any]:
        found = self.claims.pop((entity, body["claim-id"]), [])
        assert body["fragments"] == [2]
        return {b"message-count": len(found)}

    def release_claim(self, entity: str, body: dict[str, Any]) -> dict[bytes, Any]:
        assert body["count-delivery"] is False
        found = self.claims.pop((entity, body["claim-id"]), [])
        self.waiting[entity] += len(found)
        return {b"message-count": len(found)}


@pytest.fixture
def clock() -> Any:
    """Time that goes on when somebody waits."""
    now = [0]
    return SimpleNamespace(
        monotonic_ms=lambda: now[0], now_ms=lambda: now[0], pass_ms=lambda ms: now.__setitem__(0, now[0] + ms)
    )


def claims_of(broker: Broker) -> BrokerClaims:
    return BrokerClaims(broker.reader, broker.settler, lambda _, work: work(), broker.clock)


def named(part: int) -> str:
    return OFFSET.claim_id(5, part)


def test_a_batch_is_claimed_under_an_id_of_the_offset_before_it(clock: Any) -> None:
    broker = Broker(clock, orders=30)
    claims = claims_of(broker)
    claim, parts = claims.claim(("orders",), named, 12, 1_000)
    assert parts == 1
    assert claim == {Key("orders"): {(2 << 48) + number: 3 for number in range(1, 13)}}
    assert list(broker.claims) == [("orders", "name/5/0")]
    assert claims.oldest_ms == 1_001


def test_what_an_earlier_process_has_claimed_comes_first_and_whole(clock: Any) -> None:
    broker = Broker(clock, orders=50_000)
    first, parts = claims_of(broker).claim(("orders",), named, 45_000, 1_000)
    assert parts == 3
    assert claims_of(broker).claim(("orders",), named, 5, 1_000) == (first, 3)
    assert claims_of(broker).claim(("orders",), named, 0, 1_000) == (first, 3)


def test_only_the_first_batch_of_a_process_looks_for_what_was_left_behind(clock: Any) -> None:
    broker = Broker(clock, orders=10)
    claims = claims_of(broker)
    claims.claim(("orders",), named, 4, 0)
    claims.planned()
    claims.claim(("orders",), lambda part: f"name/6/{part}", 4, 0)
    assert [operation for _, operation, _ in broker.asked] == ["list-claims", "claim", "claim"]


def test_a_limit_beyond_one_request_takes_several(clock: Any) -> None:
    broker = Broker(clock, orders=50_000)
    claim, parts = claims_of(broker).claim(("orders",), named, 45_000, 1_000)
    assert (len(claim[Key("orders")]), parts) == (45_000, 3)
    assert [body["max-count"] for _, operation, body in broker.asked if operation == "claim"] == [
        MESSAGES_MAX,
        MESSAGES_MAX,
        5_000,
    ]


def test_bytes_end_a_batch(clock: Any) -> None:
    broker = Broker(clock, orders=50)
    claim, parts = claims_of(broker).claim(("orders",), named, 40, 1_000, max_bytes=95)
    assert (len(claim[Key("orders")]), parts) == (10, 1)


def test_bytes_beyond_one_request_take_several(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker refuses a request for more; a stream with maxBytesPerTrigger=1g, or with once, would ask for more."""
    monkeypatch.setattr(broker_claims, "BYTES_MAX", 100)
    broker = Broker(clock, orders=50)
    claim, parts = claims_of(broker).claim(("orders",), named, 1_000, 0, max_bytes=350)
    assert (len(claim[Key("orders")]), parts) == (35, 4)
    assert [body["max-bytes"] for _, operation, body in broker.asked if operation == "claim"] == [100, 100, 100, 50]


def test_entities_have_shares_and_those_with_more_get_what_is_left(clock: Any) -> None:
    broker = Broker(clock, rich=50, poor=3, empty=0)
    claim, parts = claims_of(broker).claim(("empty", "poor", "rich"), named, 30, 1_000)
    assert {key.entity: len(numbers) for key, numbers in claim.items()} == {"poor": 3, "rich": 27}
    assert parts == 2
    assert clock.monotonic_ms() == 0, "the one without messages is not waited for"


def test_nothing_is_waited_for_no_longer_than_said(clock: Any) -> None:
    broker = Broker(clock, orders=0)
    assert claims_of(broker).claim(("orders",), named, 5, 25_000) == ({}, 0)
    assert 25_000 <= clock.monotonic_ms() <= 35_000
    assert max(body["max-wait"] for _, operation, body in broker.asked if operation == "claim") == 10_000


def test_a_fuller_batch_is_waited_for_once(clock: Any) -> None:
    broker = Broker(clock, orders=3)
    claims_of(broker).claim(("orders",), named, 9, 25_000, min_messages=5, delay_ms=4_000)
    assert [(body["min-count"], body["max-wait"]) for _, operation, body in broker.asked if operation == "claim"] == [
        (5, 4_000)
    ]


def test_what_went_to_no_task_is_given_back_and_the_rest_is_not(clock: Any) -> None:
    broker = Broker(clock, orders=9)
    claims = claims_of(broker)
    claims.claim(("orders",), named, 4, 0)
    claims.free()
    assert (broker.waiting["orders"], broker.claims) == (9, {})
    claims.claim(("orders",), named, 4, 0)
    claims.planned()
    claims.free()
    assert broker.waiting["orders"] == 5


def test_a_batch_is_settled_by_its_ids_and_fragments(clock: Any) -> None:
    broker = Broker(clock, orders=50_000)
    claims = claims_of(broker)
    claim, _ = claims.claim(("orders",), named, 25_000, 0)
    claims.settle(claim, ("name/5/0", "name/5/1"))
    assert broker.claims == {}


def test_an_entity_without_claims_is_found_out_once(clock: Any) -> None:
    broker = Broker(clock, orders=3, sharded=3)
    broker.refuses = {"sharded"}
    claims = claims_of(broker)
    assert not claims.are_there(("orders", "sharded"))
    asked = len(broker.asked)
    assert not claims.are_there(("orders",))
    assert len(broker.asked) == asked
    assert claims_of(broker).are_there(("orders",))
    with pytest.raises(Unsupported):
        claims_of(broker).claim(("sharded",), named, 1, 0)


def test_claims_that_were_not_written_down_are_given_back_by_their_prefix(clock: Any) -> None:
    broker = Broker(clock, orders=50_000)
    claims_of(broker).claim(("orders",), named, 25_000, 0)
    assert claims_of(broker).free_all(("orders",), "name/5/") == 25_000
    assert broker.claims == {}


def test_an_answer_is_unpacked_fragment_by_fragment() -> None:
    answer = {
        b"size": 7,
        b"fragments": [
            {
                b"fragment": 1,
                b"numbers": pack_counts([4, 5, 9]),
                b"delivery-counts": bytes.fromhex("00000000000000010000000500000002"),
            },
            {b"fragment": 3, b"numbers": pack_counts([1]), b"delivery-counts": bytes.fromhex("0000000000000001")},
        ],
    }
    taken = taken_of(answer)
    assert taken.numbers == {(1 << 48) + 4: 0, (1 << 48) + 5: 5, (1 << 48) + 9: 5, (3 << 48) + 1: 0}
    assert taken.fragments == (1, 3)


def test_each_claim_tells_what_a_further_one_would_find(clock: Any) -> None:
    broker = Broker(clock, orders=30, bills=3)
    claims = claims_of(broker)
    claims.claim(("orders", "bills"), named, 20, 0)
    assert claims.available == {"orders": 13, "bills": 0}
    assert taken_of({b"fragments": [], b"size": 0}).available is None


def test_what_settles_is_asked_over_a_receiver_of_its_own(clock: Any) -> None:
    """The batch before is settled while the next one is claimed, and a receiver is of one thread."""
    broker = Broker(clock, orders=10)
    claims = claims_of(broker)
    claim, _ = claims.claim(("orders",), named, 4, 0)
    assert broker.settled_at == []
    claims.settle(claim, (named(0),))
    assert (broker.settled_at, broker.claims) == (["orders"], {})


def test_what_a_fragment_has_that_is_away_is_waited_for_when_a_batch_is_found_again(clock: Any) -> None:
    """It would be dropped from the batch, and a process that is killed before it settles would have it removed."""
    broker = Broker(clock, orders=10)
    claim, _ = claims_of(broker).claim(("orders",), named, 4, 0)
    offset = ClaimOffset("here", 5, claim, stream="name", parts=1)
    attempts: list[str] = []

    def retried(_: Key, work: Any) -> Any:
        while True:
            try:
                return work()
            except ServiceBusServerBusyError as error:
                attempts.append(str(error))

    broker.away = [[2, 3], [2]]
    claims = BrokerClaims(broker.reader, broker.settler, retried, broker.clock)
    assert claims.claimed(offset, (named(0),)) == claim
    assert len(attempts) == 2
    assert "fragment 2 of 'orders' is away" in attempts[0]
    broker.away = [[3]]
    assert claims.claimed(offset, (named(0),)) == {}
