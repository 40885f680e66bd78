"""Qpid Proton against the broker: each test runs one program of ``programs/``."""

from __future__ import annotations

import pytest
from kit_proton import INSTALL_LIMIT_S, Proton, ProtonBus

from kits.programs import LIMIT_S

# The first test of a run builds Proton; a program has its own limit.
pytestmark = pytest.mark.timeout(2 * INSTALL_LIMIT_S + LIMIT_S)


def test_a_plain_login_sends_receives_and_settles(proton: Proton, proton_bus: ProtonBus) -> None:
    found, _ = proton.run("settling", **proton_bus.login())
    assert (found["accepted"], found["bodies"]) == (3, ["message 0", "message 1", "message 2"])
    assert found["wrong"][0] == "ConnectionException"
    assert "Authentication failed" in found["wrong"][1]


def test_presettled_deliveries_pass_both_ways_and_are_gone(proton: Proton, proton_bus: ProtonBus) -> None:
    found, trace = proton.run("presettled", **proton_bus.login())
    assert found == {"bodies": list(range(50)), "settled": True, "rest": "Timeout"}
    assert "@disposition" not in trace


def test_one_disposition_over_a_range_settles_every_delivery_of_it(proton: Proton, proton_bus: ProtonBus) -> None:
    found, trace = proton.run("ranges", **proton_bus.login())
    assert found == {"sent": 100, "received": 100, "again": 0}
    assert "-> @disposition(21) [role=true, first=0x0, last=0x63, settled=true, state=@accepted" in trace


def test_released_modified_and_rejected_have_their_effects(proton: Proton, proton_bus: ProtonBus) -> None:
    found, _ = proton.run("outcomes", **proton_bus.login())
    assert found["again"] == [["modified", 1], ["released", 0]]
    assert found["rest"] == "Timeout"
    assert found["letter"] == "rejected"
    assert found["properties"] == {
        "DeadLetterReason": "test:broken",
        "DeadLetterErrorDescription": "beyond repair",
    }


def test_a_drain_takes_the_credit_and_the_link_goes_on(proton: Proton, proton_bus: ProtonBus) -> None:
    found, trace = proton.run("drain", **proton_bus.login())
    assert found["steps"] == [[["one", "two"], 0], [["one", "two"], 0]]
    assert found["bodies"] == ["one", "two", "three"]
    answers = [line for line in trace.splitlines() if "<- @flow" in line and "drain=true" in line]
    # Credit 5 and then 3, all of it counted as delivered.
    assert ["delivery-count=0x5" in line for line in answers] == [True, False]
    assert "delivery-count=0x8" in answers[1]


def test_an_aborted_delivery_leaves_nothing_and_the_link_goes_on(proton: Proton, proton_bus: ProtonBus) -> None:
    found, trace = proton.run("aborted", **proton_bus.login())
    assert "more=true" in trace
    assert "aborted=true" in trace
    assert found == {"bodies": ["whole"], "accepted": 1}


def test_a_message_of_many_frames_arrives_bit_exact(proton: Proton, proton_bus: ProtonBus) -> None:
    found, trace = proton.run("large", large=proton_bus.queue("large"), **proton_bus.login())
    assert (found["size"], found["same"]) == (1_572_864, True)
    assert trace.count("<- @transfer") > 20
    assert "amqp:link:message-size-exceeded" in trace
    assert found["refused"][0] == "SendException"


def test_a_token_put_by_hand_opens_the_entity(proton: Proton, proton_bus: ProtonBus) -> None:
    found, _ = proton.run("tokens", **proton_bus.login())
    assert found["before"][0] == "LinkDetached"
    assert "amqp:unauthorized-access" in found["before"][1]
    assert found["wrong"] == [401, True]
    assert found["right"] == [202, True]
    assert found["body"] == "in"


def test_transactions_commit_and_abort_without_waiting_for_outcomes(proton: Proton, proton_bus: ProtonBus) -> None:
    found, trace = proton.run("transactions", **proton_bus.login())
    assert found == {
        "commit": [["committed"], ["commit 1", "commit 2"]],
        "early": [["committed"], ["early 1", "early 2"]],
        "abort": [["aborted"], ["abort"]],
    }
    assert "<- @disposition(21) [role=true, first=0x0, last=0x0, settled=true, state=@declared(51)" in trace


def test_what_is_not_offered_is_detached_with_a_readable_error(proton: Proton, proton_bus: ProtonBus) -> None:
    found, _ = proton.run("refusals", **proton_bus.login())
    conditions = {name: text for name, (kind, text) in found.items() if kind == "LinkDetached"}
    assert set(conditions) == {"missing", "dynamic", "browsing", "relay"}, found
    assert "amqp:not-found" in conditions.pop("missing")
    assert all("amqp:not-implemented" in text for text in conditions.values()), conditions
