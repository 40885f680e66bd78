"""The Java SDK against the broker; each test runs one program of ``programs/``."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit_java import BUILD_LIMIT_S, Java, JavaBus

from kits.programs import LIMIT_S
from kits.store_away import MARK, broker_without_its_store

# The first test of a run builds the programs; a program has its own limit.
pytestmark = [pytest.mark.timeout(2 * BUILD_LIMIT_S + LIMIT_S), pytest.mark.xdist_group("java")]


@pytest.mark.parametrize("transport", ["tcp", "tls", "websocket"])
def test_one_message_a_batch_of_100_and_a_large_one_arrive_as_102(
    java: Java, java_bus: JavaBus, transport: str
) -> None:
    found = java.run("sending", queue=java_bus.queue(), **java_bus.route(transport))
    assert found["bodies"] == ["alone", *map(str, range(100))]
    assert found["large"] is True
    assert found["first"] == ["an id", "subject", 7]
    assert found["left"] is False


def test_every_way_to_settle_does_what_it_says(java: Java, java_bus: JavaBus) -> None:
    found = java.run("settling", queue=java_bus.queue(), connection=java_bus.process.connection_string)
    assert found == {
        "renewed": True,
        "again": ["abandoned", 1],
        "dead": ["dead", "a reason"],
        "peeked": ["deferred", "DEFERRED"],
        "deferred": "deferred",
        "scheduled": "SCHEDULED",
        "left": False,
    }


def test_sessions_keep_their_order_and_their_state(java: Java, java_bus: JavaBus) -> None:
    found = java.run("sessions", queue=java_bus.queue("session"), connection=java_bus.process.connection_string)
    assert found == {
        "locked": True,
        "a": [f"a{number}" for number in range(5)],
        "next": "b",
        "b": [f"b{number}" for number in range(5)],
        "state": "a state",
    }


def test_a_send_to_a_queue_whose_store_is_away_says_so_and_is_retried_until_it_is_back(
    java: Java, tmp_path: Path
) -> None:
    with broker_without_its_store(tmp_path) as there:
        found = java.run("away", **there)
    assert found["reason"] == "SERVER_BUSY_ERROR", found
    assert MARK in found["text"]
    assert found["transient"] is True
    assert found["bodies"] == ["waits"]
    assert found["took"] > 0.5


def test_a_transaction_shows_all_when_it_is_committed_and_nothing_when_it_is_rolled_back(
    java: Java, java_bus: JavaBus
) -> None:
    found = java.run("transactions", queue=java_bus.queue(), connection=java_bus.process.connection_string)
    assert found == {"before": 0, "after": ["one", "two"], "more": []}


def test_the_processor_completes_what_it_was_given(java: Java, java_bus: JavaBus) -> None:
    found = java.run("processing", queue=java_bus.queue(), connection=java_bus.process.connection_string)
    assert found == {"all": True, "errors": [], "left": False}


def test_subscriptions_get_what_their_rules_let_through(java: Java, java_bus: JavaBus) -> None:
    found = java.run("topics", topic="topic", connection=java_bus.process.connection_string)
    assert found == {"all": ["t0", "t1", "t2", "t3"], "even": ["t0", "t2"]}


def test_what_cannot_be_is_told_with_the_sdks_reason(java: Java, java_bus: JavaBus) -> None:
    found = java.run("refusals", queue=java_bus.queue(), connection=java_bus.process.connection_string)
    assert found == {"missing": "MESSAGING_ENTITY_NOT_FOUND", "large": "MESSAGE_SIZE_EXCEEDED"}


def test_the_administration_client_makes_changes_counts_and_deletes(java: Java, java_bus: JavaBus) -> None:
    server = java_bus.process
    found = java.run("administering", connection=server.connection_string, admin=server.ready["admin_url"])
    # What is missing is a feed without entries, as in the cloud: the SDK raises its error for it, with the status 200.
    assert found == {"changed": [3, "PT5M", True], "active": 0, "exists": False, "gone": 200}
