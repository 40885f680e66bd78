"""The account finds what is lost, altered, repeated or revived, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from duobus.clock import Clock
from duobus_demo.corpus import digest_of
from duobus_demo.message_account import MessageAccount
from kits.manual_clock import ManualClock


def new_account() -> MessageAccount:
    return MessageAccount(Clock())


def send(account: MessageAccount, message_id: str, body: bytes = b"body", key: str | None = None) -> None:
    account.sending(message_id, body, key)
    account.acknowledged(message_id, "tcp")


def receive(
    account: MessageAccount,
    message_id: str,
    number: int,
    body: bytes = b"body",
    key: str | None = None,
    digest: str | None = "",
) -> None:
    found = digest_of(b"body") if digest == "" else digest
    account.received(message_id, body, digest=found, partition_key=key, number=number)


def counts(account: MessageAccount, *names: str) -> list[Any]:
    report = account.report()
    return [report[name] for name in names]


def test_message_that_came_out_as_it_went_in_is_received() -> None:
    account = new_account()
    send(account, "a")
    receive(account, "a", 1)
    account.completed("a", 1, "tcp")

    assert counts(account, "sent", "acknowledged", "received", "lost", "altered", "duplicates") == [1, 1, 1, 0, 0, 0]


def test_messages_are_counted_by_the_transport_that_took_and_gave_them() -> None:
    account = new_account()
    account.sending("a", b"body", None)
    account.acknowledged("a", "websocket")
    receive(account, "a", 1)
    account.completed("a", 1, "tls")

    (transports,) = counts(account, "transports")
    assert transports == {"tls": {"sent": 0, "received": 1}, "websocket": {"sent": 1, "received": 0}}


def test_acknowledged_message_that_never_comes_is_lost() -> None:
    account = new_account()
    send(account, "a")
    send(account, "b")
    receive(account, "b", 1)
    account.completed("b", 1, "tcp")

    assert account.missing() == ["a"]
    assert counts(account, "lost", "received") == [1, 1]


def test_message_that_was_delivered_and_not_completed_is_lost() -> None:
    account = new_account()
    send(account, "a")
    receive(account, "a", 1)

    assert counts(account, "lost", "received") == [1, 0]


def test_send_of_unknown_outcome_may_stay_away_without_being_lost() -> None:
    account = new_account()
    account.sending("a", b"body", None)
    account.send_unknown("a")

    assert counts(account, "sent", "acknowledged", "lost", "sends_unknown") == [1, 0, 0, 1]
    assert account.in_flight == 0


def test_completion_of_unknown_outcome_counts_as_received_once() -> None:
    account = new_account()
    send(account, "a")
    receive(account, "a", 1)
    account.completion_unknown("a")
    assert counts(account, "received", "received_unconfirmed", "lost") == [1, 1, 0]

    receive(account, "a", 1)
    account.completed("a", 1, "tcp")

    assert counts(account, "received", "received_unconfirmed", "duplicates", "revived") == [1, 0, 0, 0]


def test_message_stored_twice_is_a_duplicate_and_not_revived() -> None:
    account = new_account()
    account.sending("a", b"body", None)
    account.send_unknown("a")
    send(account, "a")
    for number in (1, 2):
        receive(account, "a", number)
        account.completed("a", number, "tcp")

    assert counts(account, "received", "duplicates", "stored_again", "revived", "sent_again") == [1, 1, 1, 0, 1]


def test_delivery_after_an_acknowledged_completion_is_revived() -> None:
    account = new_account()
    send(account, "a")
    receive(account, "a", 7)
    account.completed("a", 7, "tcp")
    receive(account, "a", 7)

    assert counts(account, "revived", "stored_again") == [1, 0]


@pytest.mark.parametrize(
    ("granted_until", "completed_until", "name"),
    [(1_000, 2_000, "overtaken"), (2_000, 2_000, "revived"), (3_000, 2_000, "revived"), (None, 2_000, "revived")],
)
def test_a_delivery_from_before_the_completion_that_is_looked_at_after_it_is_not_revived(
    granted_until: int | None, completed_until: int, name: str
) -> None:
    account = new_account()
    send(account, "a")
    account.completed("a", 7, "tcp", locked_until_ms=completed_until)
    digest = digest_of(b"body")
    account.received("a", b"body", digest=digest, partition_key=None, number=7, locked_until_ms=granted_until)

    assert {one: counts(account, one)[0] for one in ("overtaken", "revived")} == {"overtaken": 0, "revived": 0, name: 1}


def test_every_way_to_be_altered_is_named() -> None:
    account = new_account()
    for message_id in ("body", "digest", "none", "key", "same"):
        send(account, message_id, key="k")
    receive(account, "body", 1, body=b"other", key="k")
    receive(account, "digest", 2, digest=digest_of(b"other"), key="k")
    receive(account, "none", 3, digest=None, key="k")
    receive(account, "key", 4, key=None)
    receive(account, "stranger", 5, key="k")
    receive(account, "same", 6, key="k")

    assert account.altered() == {
        "body": "its body differs",
        "digest": "its application properties differ",
        "none": "its application properties differ",
        "key": "its partition key differs",
        "stranger": "its message id was never sent",
    }


def test_message_too_large_is_settled_and_neither_acknowledged_nor_lost() -> None:
    account = new_account()
    account.sending("a", b"body", None)
    assert account.in_flight == 1
    account.refused_as_too_large("a")

    assert (account.in_flight, account.settled_sends) == (0, 1)
    assert counts(account, "too_large", "acknowledged", "lost") == [1, 0, 0]


def test_fragments_are_told_by_the_upper_bits_and_redeliveries_count_once() -> None:
    account = new_account()
    for message_id, number in (("a", (3 << 48) + 1), ("a", (3 << 48) + 1), ("b", (3 << 48) + 2), ("c", 9)):
        send(account, message_id)
        receive(account, message_id, number)

    assert counts(account, "per_fragment", "deliveries") == [{"0": 1, "3": 2}, 4]


def test_rates_cover_the_time_from_first_send_to_last_outcome() -> None:
    clock = ManualClock()
    account = MessageAccount(clock)
    account.sending("a", b"body", None)
    clock.advance(500)
    account.acknowledged("a", "tcp")
    clock.advance(500)
    account.completed("a", 1, "tcp")

    assert counts(account, "rates") == [{"sent_per_second": 2.0, "received_per_second": 1.0}]


def test_watch_finds_the_next_acknowledgement_only() -> None:
    clock = ManualClock()
    account = MessageAccount(clock)
    send(account, "a")
    account.watch_sends()
    assert account.first_acknowledged_ms is None
    clock.advance(250)
    send(account, "b")
    at_ms = clock.monotonic_ms()
    clock.advance(250)
    send(account, "c")

    assert account.first_acknowledged_ms == at_ms
